"""Commands about models: check an endpoint, serve (the project's own server), record, validate."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specgen.cli.main import app, err, terminal
from specgen.cli.operate import become
from specgen.cli.run import profile_of
from specgen.errors import ModelAccessError, ModelUnavailable
from specgen.settings import get_settings

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


@model.command("check")
def model_check(
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint")] = "",
    name: Annotated[str, typer.Option("--model", help="model name")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="key of the endpoint")] = "",
    profile: Annotated[str, typer.Option(help="named LLM profile of specgen.toml")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """One short real round trip (some hundred tokens): reasoning, fork, cancel, cached tokens, as they were seen.

    Exits with 1 if jobs would run without speculation.
    """
    from specgen.llm.checking import check

    given = profile_of(get_settings(), profile, base_url, name, api_key)
    try:
        report = asyncio.run(check(given))
    except ModelUnavailable as exc:
        raise ModelAccessError(exc.message, exc.hint) from exc
    if as_json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    else:
        marks = {True: "+", False: "-", None: " "}
        for line in report.lines:
            terminal().print(f"{marks[line.holds]} {line.what:18} {line.seen}", markup=False)
        terminal().print(f"jobs {'speculate' if report.speculates else 'run without speculation'} with this server")
    if not report.speculates:
        raise typer.Exit(1)


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
