"""Running one candidate through the whole evaluator on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, cast

from specgen.evaluation.cell import Device, evaluate
from specgen.evaluation.problems import load_problem
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, source_id


def judged(
    source: str, problem: str | ProblemSpec, cache: Path, *, backend: str = "cpu", phase: Phase = Phase.VALIDATE,
    warmups: int = 10, runs: int = 40, budget_s: float = 240.0,
) -> EvaluationResult:  # fmt: skip
    """The evaluator's result on the first core this process may use, or on the first GPU."""
    core = min(os.sched_getaffinity(0))
    kind = cast(Literal["cpu", "cuda"], backend)
    device = Device("honest-gpu0", "cuda", 0) if backend == "cuda" else Device(f"honest-cpu{core}", "cpu", core)
    spec = load_problem(problem, kind) if isinstance(problem, str) else problem.model_copy(update={"backend": kind})
    request = EvaluationRequest(
        request_id="honest", job_id="honest", iteration=0, candidate_id=source_id(source), phase=phase,
        origin=Origin.MAIN, source=source, problem=spec, label=backend, time_budget_s=budget_s, warmups=warmups,
        timed_runs=runs,
    )  # fmt: skip
    return evaluate(request, device, EvaluationPolicy(), cache)
