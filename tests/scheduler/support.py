"""Requests, and device workers as real processes, for the queue's tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from specgen.scheduler.keys import LABEL_HEADER, ORIGIN_HEADER, PRIORITY_HEADER, SCOPE_HEADER
from specgen.types import EvaluationRequest, Origin, Phase, ProblemSpec

ROOT = Path(__file__).parents[2]


def request(name: str, scope: str = "j/1", *, phase: str = "validate", origin: str = "fork", source: str = "{}", **kw):
    job, _, iteration = scope.partition("/")
    return EvaluationRequest(
        request_id=f"{name}-{uuid.uuid4().hex[:8]}",
        job_id=job,
        iteration=int(iteration),
        candidate_id=name,
        phase=Phase(phase),
        origin=Origin(origin),
        source=source,
        problem=ProblemSpec(name="p", source="x"),
        **kw,
    )


def headers(
    scope: str = "j/1", origin: str = "fork", task: str = "", label: str = "cpu", priority: int = 0
) -> dict[str, str]:
    own = {SCOPE_HEADER: scope, ORIGIN_HEADER: origin, LABEL_HEADER: label, PRIORITY_HEADER: str(priority)}
    return own | {"id": task or uuid.uuid4().hex, "task": "t"}


def wait_for(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what or condition}"
        time.sleep(0.01)
    return value


class WorkerProcess:
    """A worker or scheduler in a session of its own, so that all of it can be killed."""

    def __init__(self, arguments: list[str], redis_url: str, home: Path, **env: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / f"{uuid.uuid4().hex[:6]}.log"
        variables = {k: v for k, v in os.environ.items() if not k.startswith("SPECGEN_")}
        variables |= {"SPECGEN_REDIS_URL": redis_url, "SPECGEN_HOME": str(home)}
        variables |= {"SPECGEN_EVALUATION__AUDIT_RATE": "0"}
        variables |= {"SPECGEN_CELL": "benchmarks.sleep_cell:SleepCell", "OMP_NUM_THREADS": "1", **env}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, timeout_s: float = 15.0) -> int:
        """SIGTERM; what is left is killed."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL to the worker and its pool process, at once: a machine that loses power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def devices(client: redis.Redis, prefix: str = "specgen") -> list[str]:
    return client.zrange(f"{prefix}:devices", 0, -1)
