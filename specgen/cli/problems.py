"""`specgen problems`: what can be optimised (built in, or of a KernelBench checkout), and what one problem costs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from specgen.cli.main import app, terminal
from specgen.errors import ProblemError
from specgen.evaluation.kernelbench import Checkout, Entry, checkout, needs
from specgen.evaluation.problems import USER_TOLERANCE, backend_of, builtins, load_problem
from specgen.evaluation.register import Registration, register
from specgen.settings import get_settings

problems = typer.Typer(help="The problems: a list, and what one costs.")
app.add_typer(problems, name="problems")
console = terminal()

Kernelbench = Annotated[str, typer.Option(help="a KernelBench checkout; default: SPECGEN_KERNELBENCH")]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]


@problems.callback(invoke_without_command=True)
def listing(
    context: typer.Context,
    kernelbench: Kernelbench = "",
    level: Annotated[int, typer.Option(min=0, max=4, help="of KernelBench; 0: all")] = 0,
    number: Annotated[int, typer.Option(min=0, help="of KernelBench, within its level; 0: all")] = 0,
    match: Annotated[str, typer.Option(help="a part of the name, file or task")] = "",
    as_json: AsJson = False,
) -> None:
    """List the built-in problems, or a KernelBench checkout's with --kernelbench, --level or --number."""
    if context.invoked_subcommand is not None:
        return
    if kernelbench or level or number:
        rows = [_entry(entry) for entry in _checkout(kernelbench).entries(level or None, match, number or None)]
    else:
        rows = [
            {
                "name": item.name, "task": item.task, "kernelbench": item.file,
                "backends": ", ".join(item.backends), "tolerance": f"{item.tolerance:g}",
            }
            for item in builtins()
            if any(match.lower() in text.lower() for text in (item.name, item.task, item.file))
        ]  # fmt: skip
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
    elif not rows:
        filters = {"level": level, "number": number, "match": match}
        asked = " and ".join(f"{name} {value}" for name, value in filters.items() if value)
        raise ProblemError(f"no problem has {asked}", "leave the filters out for all")
    else:
        table = Table()
        for column in rows[0]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(text) for text in row.values()))
        console.print(table)


def _checkout(given: str) -> Checkout:
    return checkout(given or get_settings().kernelbench)


def _entry(entry: Entry) -> dict[str, str]:
    try:
        wanted = needs(entry.path.read_text(encoding="utf-8"))
        text, judged = wanted.text, f"no ({', '.join(wanted.objects)})" if wanted.objects else "yes"
    except (OSError, UnicodeDecodeError) as exc:
        text, judged = f"cannot be read: {exc}", "no"
    return {
        "name": entry.name, "file": entry.file, "needs": text, "judged": judged, "tolerance": f"{USER_TOLERANCE:g}",
    }  # fmt: skip


@problems.command()
def show(
    name: Annotated[str, typer.Argument(metavar="PROBLEM", help="T4, L1/12, or a KernelBench-format file")],
    backend: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    tolerance: Annotated[float, typer.Option(min=0, help="absolute and relative; 0: the problem's default")] = 0.0,
    timeout: Annotated[float, typer.Option(min=1, help="seconds for the reference's process")] = 300.0,
    kernelbench: Kernelbench = "",
    as_json: AsJson = False,
) -> None:
    """What a problem costs and whether its tolerance is fit: memory, floor, strawmen, reference time."""
    problem = load_problem(name, backend_of(backend), tolerance=tolerance or None, checkout=kernelbench or None)
    found = register(problem, timeout)
    if as_json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        return
    for label, text in _lines(found):
        console.print(f"{label:12} {text}", markup=False)


def _lines(found: Registration) -> list[tuple[str, str]]:
    least = f"{_ms(found.floor_ms)} by {found.floor_bound}"
    rates = f"{found.gb_s:.0f} GB/s and {found.gflop_s / 1000:.3g} TFLOP/s ({found.limits})"
    needed = f"{_count(found.needed_flops)} needed" if found.needed_flops else "none stated as needed"
    products = f"{_count(found.product_flops)} of them in products"
    lines = [
        ("problem", f"{found.name}, {found.backend}, tolerance {found.tolerance:g}"),
        ("origin", found.origin),
        ("reference", f"sha256 {found.sha256}"),
        ("device", found.device),
        ("outputs", "; ".join(found.outputs)),
        ("memory", f"inputs {_bytes(found.input_bytes)}, parameters {_bytes(found.parameter_bytes)}, "
                   f"outputs {_bytes(found.output_bytes)}, peak {_bytes(found.peak_bytes)}"),
        ("arithmetic", f"{_count(found.flops)} operations, {products}; {needed}"),
        ("floor", f"{least}: {_bytes(found.moved_bytes)} moved once; {rates}"),
        ("time", _ms(found.reference_ms) if found.reference_ms is not None else "not run"),
        ("inputs", f"{found.distributions} kinds" if found.distributions else ""),
        *(("strawman", _straw(name, found)) for name in found.straw_errors),
        *(("warning", text) for text in found.warnings),
    ]  # fmt: skip
    return [(label, text) for label, text in lines if text]


def _straw(name: str, found: Registration) -> str:
    errors = ", ".join(f"{value:.3g} on {kind}" for kind, value in found.straw_errors[name].items())
    return f"{name} {'ACCEPTED' if name in found.strawmen else 'refused'}: error of the output's scale {errors}"


def _ms(value: float) -> str:
    return f"{value:.4g} ms"


def _count(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.0f}"


def _bytes(value: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} bytes"
