"""Commands about jobs that exist: jobs, show, best, pause, stop, cancel, priority."""

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
from specgen.types import JobState

console = terminal()


def _store() -> Store:
    return Store.open(get_settings().database)


@app.command()
def jobs() -> None:
    """All jobs, newest last."""
    with contextlib.closing(_store()) as store:
        table = Table()
        for column in ("job", "problem", "search", "priority", "state", "wish", "reason"):
            table.add_column(column)
        for job in store.jobs():
            name, priority = job.spec.problem.name, f"{job.priority:+d}" if job.priority else "0"
            reason = (job.reason or "").partition("\n")[0]  # `show` has the rest
            table.add_row(job.id, name, job.spec.search, priority, job.state.value, job.wish.value, reason)
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


JobId = Annotated[str, typer.Argument(metavar="JOB")]


@app.command()
def pause(job_id: JobId) -> None:
    """Let a job rest at its next boundary; `specgen resume` goes on with it."""
    with contextlib.closing(Client()) as client:
        _told(job_id, client.pause(job_id), "will pause at the boundary of its iteration")


@app.command()
def stop(job_id: JobId) -> None:
    """Stop a job at once; `specgen resume` goes on with it."""
    with contextlib.closing(Client()) as client:
        _told(job_id, client.stop(job_id), "will stop")


@app.command()
def cancel(job_id: JobId) -> None:
    """Stop a job at once and for good."""
    with contextlib.closing(Client()) as client:
        _told(job_id, client.cancel(job_id), "will be cancelled")


@app.command(context_settings={"ignore_unknown_options": True})
def priority(
    job_id: JobId,
    number: Annotated[int, typer.Argument(metavar="N", help="-9 to 9; higher goes first")],
) -> None:
    """Change a job's priority: of its requests and iterations from now on."""
    with contextlib.closing(Client()) as client:
        client.set_priority(job_id, number)
    console.print(f"{job_id} has priority {number}", markup=False)


def _told(job_id: str, state: JobState, will: str) -> None:
    """What has happened, or what its worker will do within a second or at the boundary."""
    gone = state is JobState.CANCELLED or "cancel" in will
    again = "" if gone else f"; go on with: specgen resume {job_id}"
    console.print(f"{job_id} {f'is {state}' if state.terminal else will}{again}", markup=False)
