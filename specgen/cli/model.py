"""Commands about models: serve (the project's own server), record, validate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specgen.cli.main import app, err, terminal
from specgen.cli.operate import become

model = typer.Typer(no_args_is_help=True, help="The project's own model server, and recordings of others.")
app.add_typer(model, name="model")
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@model.command("serve", context_settings=_PASSED_ON, add_help_option=False)
def model_serve(context: typer.Context) -> None:
    """An OpenAI-compatible server: synthetic, or replaying recordings (`--help` lists its options)."""
    become("specgen.llm.server", *context.args)


@model.command("record", context_settings=_PASSED_ON, add_help_option=False)
def model_record(context: typer.Context) -> None:
    """A proxy in front of a provider that records every stream (`--help` lists its options)."""
    become("specgen.llm.recorder", *context.args)


@model.command("validate")
def model_validate(
    place: Annotated[Path, typer.Argument(help="a folder of recordings, or one file")],
) -> None:
    """Read recordings and say what is wrong with which; exits with 2 if anything is."""
    from specgen.llm.recordings import check

    damaged = cut = good = 0
    for finding in check(place):
        if finding.recording is None:
            damaged += 1
            err.print(finding.error, markup=False)
        else:
            good += 1
            cut += not finding.recording.whole
    ends = f" ({cut} of them end before the model did)" if cut else ""
    terminal().print(f"{good} good{ends}, {damaged} damaged", markup=False)
    if damaged:
        raise typer.Exit(2)
