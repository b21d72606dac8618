"""A cell that evaluates nothing: it sleeps as long as the candidate's source says. For queue tests and measurements.

Chosen by ``SPECGEN_CELL=benchmarks.sleep_cell:SleepCell``. It is a real process in a group of its own, so that
aborting, hanging and outliving its worker are real. The source is JSON: ``{"sleep_s": 0.1, "ignore_sigterm": false,
"kill_worker": false, "child": false, "exit": false}``; ``exit`` ends the process without a result. The order of a probe
is the text of the file that ``SPECGEN_SLEEP_PROBE`` names, if there is one: a device breaks and is repaired by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from specgen.evaluation.cell import Device
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Phase, Profile, Status, Timing

_PROGRAM = """
import json, os, signal, sys, time
order = json.loads(sys.stdin.readline() or sys.exit())
if order.get("ignore_sigterm"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if order.get("child"):
    os.fork()
time.sleep(order.get("sleep_s", 0))
if order.get("exit"):
    sys.exit(1)
os.write(1, b"done")
"""
_PROBE_FILE = os.environ.get("SPECGEN_SLEEP_PROBE", "")
_TIMING = Timing(mean_ms=1.0, std_ms=0.0, min_ms=1.0, median_ms=1.0, runs=1)


class SleepCell:
    """The interface of `specgen.evaluation.cell.Cell`."""

    PROBE = Path(_PROBE_FILE).read_text(encoding="utf-8") if os.path.exists(_PROBE_FILE) else "{}"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._request: EvaluationRequest | None = None
        self._started = 0.0
        self.pgid = process.pid

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path) -> Self:
        """Start the sleeper; device, policy and cache do not matter to it."""
        del device, policy, cache_root
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process)

    def submit(self, request: EvaluationRequest) -> None:
        """Begin to sleep; or, where asked, kill the pool process as a crashing driver would."""
        order = json.loads(request.source)
        if order.get("kill_worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        self._request, self._started = request, time.time()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: `poll` says so
            self._process.stdin.write(request.source.replace("\n", " ").encode() + b"\n")
            self._process.stdin.flush()

    def poll(self, timeout_s: float) -> EvaluationResult | None:
        """A valid result once it has slept; infra_error where it died before."""
        assert self._request is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return None
        if not os.read(self._process.stdout.fileno(), 16):
            return self._result(Status.INFRA_ERROR, error="the evaluation process ended without a result")
        return self._result(Status.VALID)

    def _result(self, status: Status, error: str = "") -> EvaluationResult:
        assert self._request is not None
        valid = status is Status.VALID
        profiling = self._request.phase is Phase.PROFILE
        return EvaluationResult(
            request_id=self._request.request_id,
            candidate_id=self._request.candidate_id,
            phase=self._request.phase,
            status=status,
            error=error,
            speedup=1.0 if valid else None,
            profile=Profile(candidate=_TIMING, reference=_TIMING) if profiling and valid else None,
            environment={"started_at": repr(self._started)},
        )

    def kill(self, grace_s: float = 2.0) -> None:
        """SIGTERM, grace, SIGKILL on the group; reaped."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pgid, number)
            try:
                self._process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pgid, signal.SIGKILL)  # what its leader left behind
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
