"""`specgen evaluate`: one candidate's outcome, judged here and now as a device worker would."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from specgen.cli.main import app, terminal
from specgen.cli.run import configure
from specgen.errors import EnvironmentLacking, InfrastructureError, ProblemError, SettingsError, UserError
from specgen.evaluation.cell import Device, close_zygote, devices
from specgen.evaluation.cell import evaluate as judge
from specgen.evaluation.problems import backend_of, load_problem
from specgen.evaluation.sandbox import probe
from specgen.evaluation.sanitizer import TOOLS
from specgen.prompts.feedback import FEEDBACK, feedback
from specgen.prompts.profile import profile_rows
from specgen.runtime.stack import chosen_gpus
from specgen.settings import Settings
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, Status, source_id

console = terminal()
PHASES = {"both": (Phase.VALIDATE, Phase.PROFILE), "validate": (Phase.VALIDATE,), "profile": (Phase.PROFILE,)}


@app.command("evaluate")
def evaluate_candidate(
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="a file that defines class ModelNew")],
    problem: Annotated[str, typer.Option(help="T1 … T20, E1, L1/12, or a file")],
    backend: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    device: Annotated[int, typer.Option(min=0, help="number of the core or GPU")] = 0,
    phase: Annotated[str, typer.Option(help="validate, profile or both")] = "both",
    tolerance: Annotated[float, typer.Option(min=0.0, help="absolute and relative; 0: the problem's default")] = 0.0,
    sandbox: Annotated[str, typer.Option(help="bubblewrap, or none (your own decision)")] = "",
    build: Annotated[str, typer.Option(help="auto (the fast build where it applies) or stock")] = "",
    sanitize: Annotated[str, typer.Option(help=f"on a GPU, one of {', '.join(TOOLS)} of compute-sanitizer")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one result a line")] = False,
) -> None:
    """Judge one candidate: status, speedup with its spread, floor, counters, or why it was refused.

    Exits 0 only if it is valid, 1 if it is not, 2 where something given cannot be used (the problem's own failure and a
    device that is not here are among that), 3 where judging it failed.
    """
    if phase not in PHASES:
        raise SettingsError(f"no phase is called {phase!r}", ", ".join(PHASES))
    if build not in ("", "auto", "stock"):
        raise SettingsError(f"no build is called {build!r}", "auto or stock")
    if sanitize not in ("", *TOOLS):
        raise SettingsError(f"compute-sanitizer has no tool {sanitize!r}", ", ".join(TOOLS))
    if sanitize and backend == "cpu":
        raise SettingsError("compute-sanitizer looks at GPUs", "--backend cuda")
    if build:
        os.environ["SPECGEN_EVALUATION__BUILD"] = build
    settings = configure("", sandbox)
    task = load_problem(problem, backend_of(backend))
    if tolerance:
        task = task.model_copy(update={"tolerance": tolerance})
    source, place = _read(candidate), _device(settings, backend, device)
    if settings.evaluation.sandbox == "bubblewrap":
        probe()
    results: list[EvaluationResult] = []
    try:
        for step in PHASES[phase]:
            results.append(_judge(settings, place, task, source, step, "" if results else sanitize))
            if as_json:
                sys.stdout.write(results[-1].model_dump_json() + "\n")
            if results[-1].status is not Status.VALID:
                break
    finally:
        close_zygote()
    if not as_json:
        show(results)
    finish(results[-1])


def finish(last: EvaluationResult) -> None:
    """The exit code by whose fault it is: returns for 0, raises for 1, 2 and 3."""
    if last.status is Status.REFERENCE_ERROR:
        raise ProblemError(f"the problem's reference failed: {last.error[:300]}", "`specgen problems show` checks it")
    if last.status.kind == "infrastructure" and last.status is not Status.PROFILER_UNAVAILABLE:
        raise InfrastructureError(f"it could not be judged: {last.error[:300]}", "see the lines above")
    if last.speedup is None:
        raise typer.Exit(1)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise UserError(f"the candidate cannot be read: {exc}", "a Python file that defines class ModelNew") from exc


def _device(settings: Settings, backend: str, index: int) -> Device:
    """Pins a GPU for everything that this process starts."""
    if backend == "cuda":
        found = chosen_gpus(str(index))[0]
        os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}
        return found
    cores = devices(settings)
    if index >= len(cores):
        raise EnvironmentLacking(f"no CPU device {index} here", f"devices: 0 to {len(cores) - 1}")
    return cores[index]


def _judge(
    settings: Settings, device: Device, task: ProblemSpec, source: str, phase: Phase, sanitize: str
) -> EvaluationResult:
    policy = settings.evaluation.model_copy(update={"sanitize": sanitize or settings.evaluation.sanitize})
    request = EvaluationRequest(
        request_id=uuid.uuid4().hex,
        job_id="evaluate",
        iteration=0,
        candidate_id=source_id(source),
        phase=phase,
        origin=Origin.MAIN,
        source=source,
        problem=task,
        label=task.backend,
        time_budget_s=policy.validate_budget_s if phase is Phase.VALIDATE else policy.profile_budget_s,
        warmups=policy.warmups,
        timed_runs=policy.timed_runs,
    )
    return judge(request, device, policy, settings.cache_path)


def show(results: list[EvaluationResult]) -> None:
    """For people: the verdict, the profile as prompts have it, and the feedback."""
    last = results[-1]
    console.print(_table(_summary(results)))
    if last.profile:
        console.print(
            _table([(row.label, f"{row.value} {row.unit}", row.meaning) for row in profile_rows(last.profile)])
        )
    if last.error:
        console.print(last.error, markup=False)
    for said in dict.fromkeys(filter(None, (result.environment.get("sanitizer") for result in results))):
        if said not in last.error:
            console.print(said, markup=False)


def _summary(results: list[EvaluationResult]) -> list[tuple[str, str]]:
    last = results[-1]
    speedup = f"{last.speedup:.3f}x ± {last.speedup_std or 0:.3f}" if last.speedup is not None else ""
    floor = last.environment.get("floor_ms")
    rows = [
        ("status", f"{last.status} ({', '.join(str(result.phase) for result in results)})"),
        ("meaning", feedback(last.status).meaning if last.status in FEEDBACK else ""),
        ("rule", last.rule),
        ("speedup", speedup),
        ("floor", f"{floor} ms" if floor else ""),
        ("labels", ", ".join(last.labels)),
        ("build", f"{last.build_route}, {sum(result.build_s for result in results):.2f} s"),
        ("parameters", last.environment.get("parameters", "")),
        ("profiler", last.environment.get("profiler", "")),
    ]
    return [(name, text) for name, text in rows if text]


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(show_header=False)
    for row in rows:
        table.add_row(*(escape(text.strip()) for text in row))
    return table
