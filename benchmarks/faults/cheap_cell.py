"""A cell that takes any source and judges it by its hash after a short sleep: whole jobs at the price of a sleep.

Chosen by ``SPECGEN_CELL=benchmarks.faults.cheap_cell:CheapCell``. As with `SleepCell` the evaluation is a real process
in a group of its own. Every start and every end is a line of ``SPECGEN_FAULTS_LOG``, so that what was executed twice
can be counted. A source that is a JSON object is an order: ``sleep_s``, ``ignore_sigterm``, ``children``,
``kill_worker``, ``deaf`` (does not notice that its worker died). With ``SPECGEN_FAULTS_POISON=n`` every n-th source (by
hash) kills its worker.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.sleep_cell import SleepCell
from specgen.evaluation.cell import Device
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Phase, Profile, Status, Timing

LOG = "SPECGEN_FAULTS_LOG"
POISON = "SPECGEN_FAULTS_POISON"
_PROGRAM = """
import json, os, select, signal, sys, time
order = json.loads(sys.stdin.readline() or sys.exit())
if order["ignore_sigterm"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(order["children"]):
    if os.fork() == 0:
        break
if order["deaf"]:
    time.sleep(order["sleep_s"])
elif select.select([sys.stdin], [], [], order["sleep_s"])[0]:
    sys.exit()  # the worker is gone
os.write(1, b"done")
"""


def order(source: str) -> dict[str, Any]:
    """What the evaluation of ``source`` does."""
    number = _number(source)
    poison = int(os.environ.get(POISON, "0"))
    found: dict[str, Any] = {
        "sleep_s": 0.1 + number % 300 / 1000,
        "ignore_sigterm": number % 7 == 0,
        "children": number % 3 == 0,
        "deaf": number % 5 == 0,
        "kill_worker": bool(poison) and number % poison == 0,
    }
    if source.lstrip().startswith("{"):
        found |= json.loads(source)
    return found


def _number(source: str) -> int:
    return int(hashlib.sha256(source.encode()).hexdigest()[:12], 16)


def note(what: str, request: EvaluationRequest) -> None:
    """A line of the log: one write, whole or not at all."""
    if path := os.environ.get(LOG):
        line = f"{what} {request.request_id} {request.phase.value} {request.job_id} {time.time():.6f}\n"
        with open(path, "a", encoding="utf-8") as log:
            log.write(line)


class CheapCell(SleepCell):
    """See the module."""

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path) -> Self:
        """Start the process; device, policy and cache do not matter to it."""
        del device, policy, cache_root
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process)

    def submit(self, request: EvaluationRequest) -> None:
        """Begin; or, where asked, kill the pool process as a crashing driver would."""
        note("start", request)
        given = order(request.source)
        if given["kill_worker"]:
            os.kill(os.getpid(), signal.SIGKILL)
        self._request, self._started = request, time.time()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given).encode() + b"\n")
        self._process.stdin.flush()

    def poll(self, timeout_s: float) -> EvaluationResult | None:
        """The verdict by the source's hash, or infra_error where the process ended without one."""
        assert self._request is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return None
        done = bool(os.read(self._process.stdout.fileno(), 16))
        note("end" if done else "died", self._request)
        return _verdict(self._request, done=done)


def _verdict(request: EvaluationRequest, *, done: bool) -> EvaluationResult:
    number = _number(request.source)
    status = Status.INFRA_ERROR if not done else Status.COMPILE_ERROR if number % 4 == 0 else Status.VALID
    valid, speedup = status is Status.VALID, 0.5 + number % 1000 / 500
    timing = Timing(mean_ms=1.0, std_ms=0.0, min_ms=1.0, median_ms=1.0, runs=1)
    return EvaluationResult(
        request_id=request.request_id,
        candidate_id=request.candidate_id,
        phase=request.phase,
        status=status,
        error="" if valid else "the evaluation process ended without a result" if not done else "error: by its hash",
        speedup=speedup if valid else None,
        profile=Profile(candidate=timing, reference=timing) if valid and request.phase is Phase.PROFILE else None,
    )
