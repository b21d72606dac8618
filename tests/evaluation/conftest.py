"""One cache (with the façade's support library) for the whole session, and a call that evaluates a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specgen.evaluation.cell import Device, close_zygote, evaluate
from specgen.evaluation.problems import load_problem
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, source_id

CORE = min(os.sched_getaffinity(0))
DEVICE = Device(name=f"test-cpu{CORE}", backend="cpu", index=CORE)

Evaluate = Callable[..., EvaluationResult]


def request(
    source: str,
    problem: str | ProblemSpec = "T4",
    phase: Phase = Phase.VALIDATE,
    budget_s: float = 120.0,
    **more: object,
) -> EvaluationRequest:
    spec = load_problem(problem) if isinstance(problem, str) else problem
    return EvaluationRequest(
        request_id="request", job_id="job", iteration=0, candidate_id=source_id(source), phase=phase,
        origin=Origin.MAIN, source=source, problem=spec, time_budget_s=budget_s, **more,
    )  # fmt: skip


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    given = os.environ.get("SPECGEN_TEST_CACHE")
    yield Path(given) if given else tmp_path_factory.mktemp("cache")
    close_zygote()


def support_of(cache_root: Path) -> Path:
    """The build support, made if it is not there."""
    from specgen.evaluation.build import ensure_support

    return ensure_support(cache_root)


@pytest.fixture
def judge(cache_root: Path) -> Evaluate:
    def call(source: str, problem: str | ProblemSpec = "T4", **more: object) -> EvaluationResult:
        return evaluate(request(source, problem, **more), DEVICE, EvaluationPolicy(), cache_root)

    return call
