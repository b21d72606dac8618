"""`specgen evaluate`: one candidate's outcome, judged here and now as a device worker would."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from specgen.cli.main import app, terminal
from specgen.cli.run import configure
from specgen.errors import EnvironmentLacking, InfrastructureError, SettingsError, UserError
from specgen.evaluation.cell import Device, close_zygote, devices
from specgen.evaluation.cell import evaluate as judge
from specgen.evaluation.problems import backend_of, load_problem
from specgen.evaluation.sandbox import probe
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
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one result a line")] = False,
) -> None:
    """Judge one candidate: status, speedup with its spread, floor, counters, or why it was refused.

    Exits 0 only if it is valid, 1 if it is not, 3 where this machine could not judge it.
    """
    if phase not in PHASES:
        raise SettingsError(f"no phase is called {phase!r}", ", ".join(PHASES))
    if build not in ("", "auto", "stock"):
        raise SettingsError(f"no build is called {build!r}", "auto or stock")
    if build:
        os.environ["SPECGEN_EVALUATION__BUILD"] = build
    settings = configure("", sandbox)
    task = load_problem(problem, backend_of(backend))
    if tolerance:
        task = task.model_copy(update={"tolerance": tolerance})
    source, place = _read(candidate), _device(settings, backend, device)
    if settings.evaluation.sandbox == "bubblewrap":
        probe()
    results = []
    try:
        for step in PHASES[phase]:
            results.append(_judge(settings, place, task, source, step))
            if as_json:
                sys.stdout.write(results[-1].model_dump_json() + "\n")
            if results[-1].status is not Status.VALID:
                break
    finally:
        close_zygote()
    if not as_json:
        _show(results)
    if results[-1].status.kind == "infrastructure" and results[-1].status is not Status.PROFILER_UNAVAILABLE:
        raise InfrastructureError(f"it could not be judged: {results[-1].error[:300]}", "see the lines above")
    if results[-1].speedup is None:
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


def _judge(settings: Settings, device: Device, task: ProblemSpec, source: str, phase: Phase) -> EvaluationResult:
    policy = settings.evaluation
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


def _show(results: list[EvaluationResult]) -> None:
    table = Table(show_header=False)
    last = results[-1]
    rows = [("status", f"{last.status} ({', '.join(str(r.phase) for r in results)})")]
    if last.rule:
        rows.append(("rule", last.rule))
    if last.speedup is not None:
        rows.append(("speedup", f"{last.speedup:.3f}x ± {last.speedup_std or 0:.3f}"))
    if profile := last.profile:
        for name, timing in (("candidate", profile.candidate), ("reference", profile.reference)):
            spread = f"{timing.mean_ms:.4f} ms ± {timing.std_ms:.4f}, least {timing.min_ms:.4f}, {timing.runs} runs"
            rows.append((name, spread))
        rates = f"{profile.achieved_gb_s or 0:.1f} of {profile.ceiling_gb_s or 0:.1f} GB/s"
        rows.append(("reached", f"{rates}, {profile.achieved_gflop_s or 0:.1f} GFLOP/s; bound by {profile.roofline}"))
    if floor := last.environment.get("floor_ms"):
        rows.append(("floor", f"{floor} ms"))
    if last.labels:
        rows.append(("labels", ", ".join(last.labels)))
    rows.append(("build", f"{last.build_route}, {sum(result.build_s for result in results):.2f} s"))
    rows.append(("parameters", last.environment.get("parameters", "")))
    rows += [(name, f"{value:g}") for name, value in (profile.counters if profile else {}).items() if value is not None]
    for name, text in rows:
        if text:
            table.add_row(name, escape(text))
    console.print(table)
    if last.error:
        console.print(last.error, markup=False)
