"""Commands that read the store: jobs, show, best, stop."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from specgen.cli.main import app, terminal
from specgen.client import Client
from specgen.errors import UserError
from specgen.report.table import job_table
from specgen.settings import get_settings
from specgen.store import Store

console = terminal()


def _store() -> Store:
    return Store.open(get_settings().database)


@app.command()
def jobs() -> None:
    """All jobs, newest last."""
    with contextlib.closing(_store()) as store:
        table = Table()
        for column in ("job", "problem", "search", "state", "reason"):
            table.add_column(column)
        for job in store.jobs():
            table.add_row(job.id, job.spec.problem.name, job.spec.search, job.state.value, job.reason or "")
        console.print(table)


@app.command()
def show(job_id: Annotated[str, typer.Argument(metavar="JOB")]) -> None:
    """One job's iterations."""
    with contextlib.closing(_store()) as store:
        store.job(job_id)
        console.print(job_table(store, job_id))


@app.command()
def best(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    out: Annotated[str, typer.Option(help="write it there instead of printing it")] = "",
) -> None:
    """The fastest valid kernel's source."""
    with contextlib.closing(_store()) as store:
        if (kernel := store.best(job_id)) is None:
            raise UserError(f"job {job_id!r} has no valid kernel", "`specgen jobs` lists the jobs")
        if out:
            Path(out).write_text(kernel.source)
        else:
            sys.stdout.write(kernel.source)  # to the letter: it may go into a file


@app.command()
def stop(job_id: Annotated[str, typer.Argument(metavar="JOB")]) -> None:
    """Stop a running job; `specgen resume` goes on with it."""
    with contextlib.closing(Client()) as client:
        client.job(job_id)
        client.stop(job_id)
        console.print(f"{job_id} will stop; go on with: specgen resume {job_id}", markup=False)
