"""A simulated device: it evaluates nothing, and answers after the paper's service times, divided by the model's speed.

Chosen by ``SPECGEN_CELL=benchmarks.search.cell:SimulatedCell``; everything around it is real (Celery worker, claims,
abort, streams). The status is that of the mistake which the source carries: the source is compared with the correct
rendering of the design in its comment, and with each of the edits by which `specgen.llm.synthetic.flaws` spoils one.
The speedup is `benchmarks.search.cost`'s for the design, with a few per cent of noise by hash. No number of it is a
measurement of a kernel, and every result says so in its environment.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from pathlib import Path
from typing import Self

from benchmarks.search import cost
from specgen.evaluation.cell import Device
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.flaws import Flaw, recognise
from specgen.llm.synthetic.tasks import TASKS, Task
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Phase, Profile, Status, Timing

SPEED = "SPECGEN_SIMULATED_SPEED"
SERVICE_S = {Phase.VALIDATE: 22.9, Phase.PROFILE: 26.5}  # §3.1, GLM-5.1, at speed 1
SERVICE_SPREAD = 0.3  # uniform around the mean; §3.1 gives means only
NOISE = 0.02  # standard deviation of the logarithm of a speedup
STATUS = {
    Flaw.NONE: Status.VALID,
    Flaw.COMPILE: Status.COMPILE_ERROR,
    Flaw.RAISES: Status.RUNTIME_ERROR,
    Flaw.FAULT: Status.DEVICE_FAULT,
    Flaw.NUMERIC: Status.WRONG_VALUE,
    Flaw.NO_MODELNEW: Status.NO_MODELNEW,
}
_COMMENT = re.compile(r"^# design: task=(\w+) ", re.MULTILINE)


class NotModelled(ValueError):
    """The source is none that the synthetic model writes."""


def inspect(source: str) -> tuple[Task, Design, Flaw, str]:
    """The task, the design, the mistake, and the mistaken text. Raises NotModelled."""
    named = _COMMENT.search(source)
    task = next((task for task in TASKS if named and task.name == named[1]), None)
    if task is None or task.name not in cost.MODELLED:
        raise NotModelled(
            "a simulated device knows only kernels of the synthetic model for " + ", ".join(cost.MODELLED)
        )
    design = next(task.space.comments_in(source), None)
    if design is None:
        raise NotModelled(f"no design of {task.name} in the comment")
    if (found := recognise(source, task, design)) is not None:
        return task, design, *found
    raise NotModelled("the source differs from its design by no known mistake")


def normal(*words: str) -> float:
    """A standard normal number by hash: the same words, the same number."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    first, second = (int.from_bytes(part, "big") / 2**64 for part in (digest[:8], digest[8:16]))
    return math.sqrt(-2 * math.log(first or 2**-64)) * math.cos(2 * math.pi * second)


def service_s(request: EvaluationRequest, speed: float) -> float:
    """How long the device is held."""
    number = int.from_bytes(hashlib.sha256(f"{request.candidate_id}{request.phase}".encode()).digest()[:8], "big")
    return SERVICE_S[request.phase] / speed * (1 + SERVICE_SPREAD * (2 * number / 2**64 - 1))


class SimulatedCell:
    """The interface of `specgen.evaluation.cell.Cell`. No process: there is nothing to run."""

    PROBE = "# probe"
    pgid = 0

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path) -> Self:
        """Nothing is started."""
        del device, policy, cache_root
        return cls()

    def submit(self, request: EvaluationRequest) -> None:
        """The device is held from now on."""
        self._request = request
        self._ends = time.monotonic()
        if request.source != self.PROBE:
            self._ends += service_s(request, float(os.environ[SPEED]))

    def poll(self, timeout_s: float) -> EvaluationResult | None:
        """The verdict, once the time is over."""
        left = self._ends - time.monotonic()
        time.sleep(max(0.0, min(timeout_s, left)))
        return judge(self._request) if left <= timeout_s else None

    def kill(self, grace_s: float = 2.0) -> None:
        """Nothing runs."""


def judge(request: EvaluationRequest) -> EvaluationResult:
    """What the simulation says of a candidate."""
    if request.source == SimulatedCell.PROBE:
        return _result(request, Status.VALID, 1.0, 1.0)
    try:
        task, design, flaw, wrong = inspect(request.source)
    except NotModelled as exc:
        return _result(request, Status.LOAD_ERROR, error=f"simulated device: {exc}")
    if flaw is not Flaw.NONE:
        line = " ".join(wrong.split())[:120]
        return _result(request, STATUS[flaw], error=f"error: (simulated) {STATUS[flaw].value} by `{line}`")
    noise = math.exp(NOISE * normal(request.candidate_id, request.phase.value))
    return _result(request, Status.VALID, cost.REFERENCE_US[task.name], cost.microseconds(task.name, design) / noise)


def _result(
    request: EvaluationRequest, status: Status, reference_us: float = 0.0, candidate_us: float = 0.0, error: str = ""
) -> EvaluationResult:
    profiled = status is Status.VALID and request.phase is Phase.PROFILE
    return EvaluationResult(
        request_id=request.request_id,
        candidate_id=request.candidate_id,
        phase=request.phase,
        status=status,
        error=error,
        speedup=reference_us / candidate_us if status is Status.VALID else None,
        profile=Profile(candidate=_timing(candidate_us), reference=_timing(reference_us)) if profiled else None,
        environment={"device": "simulated", "speedup": "model of designs, not measured"},
    )


def _timing(us: float) -> Timing:
    return Timing(mean_ms=us / 1e3, std_ms=us * NOISE / 1e3, min_ms=us / 1e3, median_ms=us / 1e3, runs=40)
