"""Runs hostile candidates through whole evaluations, and looks at the host and at the next candidate afterwards."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hostile.candidates import HONEST, Hostile
from specgen.evaluation import cell as cells
from specgen.evaluation import processes
from specgen.evaluation.problems import load_problem
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, Status, source_id

CORE = min(os.sched_getaffinity(0))
DEVICE = cells.Device(name=f"hostile-cpu{CORE}", backend="cpu", index=CORE)
_MEMORY_BYTES = 1280 << 20  # so little that filling it takes a second; an honest kernel needs 400 MiB
_TRACES = ("hostile-absolute", "hostile-parent", "hostile-inner", "hostile-through")


@dataclass(frozen=True)
class Outcome:
    """How one ended. ``escape`` says in words what must not be; empty: nothing."""

    name: str
    status: str
    seconds: float
    escape: str


def request(source: str, budget_s: float = 60.0, phase: Phase = Phase.VALIDATE) -> EvaluationRequest:
    """For T4."""
    return EvaluationRequest(
        request_id=uuid.uuid4().hex, job_id="hostile", iteration=0, candidate_id=source_id(source), phase=phase,
        origin=Origin.MAIN, source=source, problem=load_problem("T4"), time_budget_s=budget_s,
    )  # fmt: skip


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Sandboxes of this process get less memory meanwhile."""
    before = cells.memory_limit_bytes

    def little(share: int) -> int:
        del share
        return _MEMORY_BYTES

    cells.memory_limit_bytes = little
    try:
        yield
    finally:
        cells.memory_limit_bytes = before


def run(hostile: Hostile, cache_root: Path) -> Outcome:
    """Once, or twice where the second meets what the first left."""
    begun = time.monotonic()
    with little_memory():
        outcome = _once(hostile, cache_root)
        if hostile.again and not outcome.escape:
            outcome = _once(hostile, cache_root)
    escape = outcome.escape
    if not escape and hostile.again:
        escape = _next_is_harmed(cache_root)
    return Outcome(hostile.name, outcome.status, time.monotonic() - begun, escape)


def _once(hostile: Hostile, cache_root: Path) -> Outcome:
    begun = time.monotonic()
    cell = cells.Cell.start(DEVICE, EvaluationPolicy(), cache_root)
    try:
        cell.submit(request(hostile.source, hostile.budget_s))
        while (result := cell.poll(5.0)) is None:
            pass
        group = cell.pgid
        found = [group, *processes.descendants(group)] if group else []
    finally:
        cell.kill()
    seconds = time.monotonic() - begun
    return Outcome(hostile.name, result.status, seconds, _escape(hostile, result, found, seconds))


def _escape(hostile: Hostile, result: EvaluationResult, pids: list[int], seconds: float) -> str:
    end = time.monotonic() + 30  # a killed process ends once the kernel has taken a million files away
    while (left := [pid for pid in pids if processes.running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    if left:
        return f"left running: {left}"
    if traces := [name for name in _TRACES if Path("/tmp", name).exists()]:
        return f"left on the host: {traces}"
    if result.status not in hostile.ends:
        return f"ended {result.status}, not {'/'.join(sorted(hostile.ends))}: {result.error[:300]}"
    if seconds > hostile.budget_s + 60:
        return f"took {seconds:.0f} s with a budget of {hostile.budget_s:.0f} s"
    return ""


def _next_is_harmed(cache_root: Path) -> str:
    result = evaluate(HONEST, cache_root)
    return "" if result.status is Status.VALID else f"the next candidate ended {result.status}: {result.error[:300]}"


def evaluate(source: str, cache_root: Path, budget_s: float = 60.0) -> EvaluationResult:
    """As a worker does."""
    return cells.evaluate(request(source, budget_s), DEVICE, EvaluationPolicy(), cache_root)
