"""What the measurements share: a Valkey of their own, requests through the real sender, tasks of a stock Celery.

Both sides use one server (stock another database of it), and send from one thread of one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import redis

from benchmarks.stock_queue import app as stock_app
from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import LABEL_HEADER, ORIGIN_HEADER, PRIORITY_HEADER, SCOPE_HEADER, Keys, script
from specgen.scheduler.pool import CLOSED_S, TASKS
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec

TIMEOUT_S = 60.0
STARTS = "bench:start:"  # list of each task of a light worker or a stock worker: when it started (unix s)


class Ours:
    """SpecGen's side: requests, roles and boundaries as controllers and the scheduler make them."""

    def __init__(self, url: str) -> None:
        from specgen.settings import get_settings
        from workers.app import app, send_request

        self.app, self.send = app, send_request
        self.keys = Keys(order=get_settings().pool.order)
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def submit(self, scope: str, *, sleep_s: float = 0.0, phase: Phase = Phase.VALIDATE) -> str:
        """Enqueue a request as `RedisPool.submit` does, but in this thread; its id."""
        request = make_request(scope, phase=phase, source=json.dumps({"sleep_s": sleep_s}))
        headers = {
            SCOPE_HEADER: scope,
            ORIGIN_HEADER: request.origin.value,
            LABEL_HEADER: request.label,
            PRIORITY_HEADER: "0",
        }
        self.send(TASKS[phase], {"request": request.model_dump(mode="json")}, phase.value, headers, request.request_id)
        return request.request_id

    def close(self, scope: str) -> None:
        """The boundary."""
        self.client.register_script(script("close"))(args=self.keys.args(scope, CLOSED_S, 0))

    def result(self, scope: str, request_id: str) -> EvaluationResult:
        """Wait for it."""
        last = "0"
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            answer = cast("Any", self.client.xread({self.keys.results(scope): last}, block=1000)) or {}
            streams = answer.items() if isinstance(answer, dict) else answer
            for _, batches in streams:
                for entry, fields in (e for b in batches for e in ([b] if isinstance(b[0], str) else b)):
                    last = entry
                    result = EvaluationResult.model_validate_json(fields["result"])
                    if result.request_id == request_id:
                        return result
        raise TimeoutError(f"no result of {request_id}")

    def set_role(self, workers: Sequence[str], role: str) -> None:
        """As the scheduler does."""
        pairs = [text for worker in workers for text in (worker, role)]
        self.client.register_script(script("assign"))(args=self.keys.args("", *pairs))
        self.app.control.broadcast("apply_role", destination=list(workers))


class Stock:
    """The stock side."""

    def __init__(self, url: str, broker: str) -> None:
        self.url, self.client = url, redis.Redis.from_url(url, decode_responses=True)
        self.app = stock_app
        self.app.conf.broker_url = broker

    def submit(self, *, sleep_s: float = 0.0, queue: str = "stock") -> str:
        """Enqueue; its id."""
        token = uuid.uuid4().hex
        self.app.send_task("stamp", args=(token, sleep_s, self.url), task_id=token, queue=queue)
        return token

    def started(self, token: str) -> float:
        """Wait until it has started; when (unix s)."""
        return started(self.client, token)


def started(client: redis.Redis, token: str) -> float:
    """Wait for the stamp that a light worker or a stock worker writes; unix s."""
    found = cast("Any", client.blpop([STARTS + token], timeout=int(TIMEOUT_S)))
    if found is None:
        raise TimeoutError(f"task {token} did not start within {TIMEOUT_S:g} s")
    return float(found[1])


def make_request(
    scope: str, *, phase: Phase = Phase.VALIDATE, origin: Origin = Origin.FORK, source: str = "{}"
) -> EvaluationRequest:
    """One request of a scope ``<job>/<iteration>``."""
    job, _, iteration = scope.rpartition("/")
    return EvaluationRequest(
        request_id=uuid.uuid4().hex,
        job_id=job,
        iteration=int(iteration),
        candidate_id="c",
        phase=phase,
        origin=origin,
        source=source,
        problem=ProblemSpec(name="p", source="x"),
        enqueued_at=time.time(),
    )


def wait(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Poll every 2 ms. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.002)


def quantile(values: Sequence[float], q: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@contextmanager
def server(**environment: str) -> Iterator[tuple[Valkey, Path]]:
    """A Valkey with its folder; ``SPECGEN_…`` of this process and of those that it starts point there."""
    with tempfile.TemporaryDirectory(prefix="sgb-") as folder:
        with Valkey(Path(folder) / "valkey.sock", Path(folder)) as valkey:
            os.environ |= {"SPECGEN_REDIS_URL": valkey.url, "SPECGEN_HOME": folder, **environment}
            os.environ["BENCH_BROKER"] = f"redis+socket://{valkey.socket}?virtual_host=1"
            yield valkey, Path(folder)


@contextmanager
def processes(commands: Sequence[Sequence[str]], log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Python modules as processes, all ended at the end."""
    started: list[subprocess.Popen[bytes]] = []
    with log.open("ab") as out:
        try:
            for command in commands:
                command = [sys.executable, "-m", *command]
                started.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
            yield started
        except TimeoutError as exc:
            lines = log.read_text(errors="replace").strip().splitlines()[-5:]
            raise TimeoutError(f"{exc}; the last that was said: {' | '.join(lines)}") from exc
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(60)
