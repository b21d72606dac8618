"""Latency of the device queues: enqueue → start, a switch of subscription, an abort; each beside stock Celery.

``python -m benchmarks.queue [--quick]``. Starts its own Valkey, a device worker (its evaluation sleeps) and a stock
worker on the same server (another database), and takes samples of both in turn, so that noise of the
machine meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis

from benchmarks.figures import figure, machine
from benchmarks.stock_queue import STARTED
from benchmarks.stock_queue import app as stock
from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import ORIGIN_HEADER, SCOPE_HEADER, Keys
from specgen.scheduler.pool import TASKS, PoolState, RedisPool
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec

KEYS = Keys()
TIMEOUT_S = 60.0
PAUSE_S = 0.08  # after each sample: the next cell warms up meanwhile


@dataclass(frozen=True)
class Sizes:
    """How many samples of each kind."""

    latency: int = 300
    switches: int = 50
    aborts: int = 50
    stock_switches: int = 25
    stock_aborts: int = 6


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_S} s for {what}")
        time.sleep(0.002)


class Ours:
    """The device worker: SpecGen's tasks as they are, with a cell that sleeps."""

    def __init__(self, url: str) -> None:
        from workers.app import app, send_request

        self.app, self.pool, self.runner = app, RedisPool(url, send_request), asyncio.Runner()
        self.send = send_request
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def submit(self, scope: str, *, sleep_s: float = 0.0, phase: Phase = Phase.VALIDATE) -> str:
        """Enqueue a request; its id."""
        job, _, iteration = scope.partition("/")
        request = EvaluationRequest(
            request_id=uuid.uuid4().hex,
            job_id=job,
            iteration=int(iteration),
            candidate_id="c",
            phase=phase,
            origin=Origin.FORK,
            source=json.dumps({"sleep_s": sleep_s}),
            problem=ProblemSpec(name="p", source="x"),
        )
        request = request.model_copy(update={"enqueued_at": time.time()})
        headers = {SCOPE_HEADER: scope, ORIGIN_HEADER: request.origin.value}
        # as `RedisPool.submit` does, but in this thread: the stock task is sent from it, too
        self.send(TASKS[phase], {"request": request.model_dump(mode="json")}, phase.value, headers, request.request_id)
        return request.request_id

    def close(self, scope: str) -> None:
        """The boundary."""
        self._run(lambda pool: pool.close(scope))

    def started(self, scope: str, request_id: str) -> EvaluationResult:
        """Wait for its result."""
        found: list[EvaluationResult] = []

        def look() -> bool:
            for _, fields in cast("Any", self.client.xrange(KEYS.results(scope))):
                result = EvaluationResult.model_validate_json(fields["result"])
                if result.request_id == request_id:
                    found.append(result)
            return bool(found)

        wait(look, "a result")
        return found[0]

    def set_role(self, worker: str, role: str) -> None:
        """As the scheduler does."""
        self.client.hset(KEYS.roles, worker, role)
        self.app.control.broadcast("apply_role", destination=[worker])

    def _run(self, body: Callable[[RedisPool], Coroutine[Any, Any, object]]) -> None:
        self.runner.run(body(self.pool))

    def disconnect(self) -> None:
        """Before the server ends."""
        self._run(lambda pool: pool.aclose())
        self.runner.close()


class Stock:
    """The stock worker."""

    def __init__(self, url: str) -> None:
        self.url, self.client = url, redis.Redis.from_url(url, decode_responses=True)

    def submit(self, *, sleep_s: float = 0.0, queue: str = "stock") -> tuple[str, float]:
        """Enqueue; its id, and when (unix s)."""
        token = uuid.uuid4().hex
        sent = time.time()
        stock.send_task("stamp", args=(token, sleep_s, self.url), task_id=token, queue=queue)
        return token, sent

    def started(self, token: str) -> float:
        """Wait until it has started; when (unix s)."""
        wait(lambda: self.client.hexists(STARTED, token), "a stock task")
        return float(str(self.client.hget(STARTED, token)))


def started_at(result: EvaluationResult) -> float:
    return float(result.environment["started_at"])


def latency(ours: Ours, other: Stock, count: int) -> tuple[list[float], list[float]]:
    """Enqueue → start, idle worker, milliseconds; in turn."""
    mine, theirs = [], []
    for i in range(count + 10):
        scope = f"latency/{i}"
        result = ours.started(scope, ours.submit(scope))
        time.sleep(PAUSE_S)
        token, sent = other.submit()
        begun = other.started(token)
        time.sleep(PAUSE_S)
        if i >= 10:  # the first few find cold connections
            mine.append(result.queue_s * 1000)
            theirs.append((begun - sent) * 1000)
    return mine, theirs


def switches(ours: Ours, other: Stock, worker: str, sizes: Sizes) -> tuple[list[float], list[float]]:
    """A request waits in a queue that an idle worker does not serve; the switch → its start, milliseconds."""
    mine, theirs = [], []
    ours.set_role(worker, "validate")
    time.sleep(0.5)
    for i in range(sizes.switches):
        role = Phase.PROFILE if i % 2 == 0 else Phase.VALIDATE
        scope = f"switch/{i}"
        request = ours.submit(scope, phase=role)
        time.sleep(0.05)
        begun = time.time()
        ours.set_role(worker, role.value)
        mine.append((started_at(ours.started(scope, request)) - begun) * 1000)
        time.sleep(0.05)
    for i in range(sizes.stock_switches):
        old, new = ("stock", "stock2") if i % 2 == 0 else ("stock2", "stock")
        token, _ = other.submit(queue=new)
        time.sleep(0.05)
        begun = time.time()
        stock.control.cancel_consumer(old)
        stock.control.add_consumer(new)
        theirs.append((other.started(token) - begun) * 1000)
        time.sleep(0.05)
    if sizes.stock_switches % 2:
        stock.control.cancel_consumer("stock2")
        stock.control.add_consumer("stock")
    ours.set_role(worker, "both")
    time.sleep(1.2)
    return mine, theirs


def aborts(ours: Ours, other: Stock, worker: str, sizes: Sizes) -> tuple[list[float], list[float]]:
    """A request runs, another waits; the first one's end is ordered → the second one's start, milliseconds."""
    mine, theirs = [], []
    for i in range(sizes.aborts):
        ours.submit(f"abort/{i}", sleep_s=60)
        wait(lambda: ours.client.keys(KEYS.start("*")), "the request to run")
        time.sleep(0.1)
        request = ours.submit(f"next/{i}")
        begun = time.time()
        ours.close(f"abort/{i}")
        mine.append((started_at(ours.started(f"next/{i}", request)) - begun) * 1000)
        wait(lambda: not ours.client.hexists(KEYS.busy, worker), "idle")
        time.sleep(0.1)
    for _ in range(sizes.stock_aborts):
        token, _ = other.submit(sleep_s=60)
        other.started(token)
        time.sleep(0.1)
        following, _ = other.submit()
        begun = time.time()
        stock.control.revoke(token, terminate=True, signal="SIGKILL")
        theirs.append((other.started(following) - begun) * 1000)
    return mine, theirs


def quantile(values: list[float], q: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@contextmanager
def services() -> Iterator[tuple[Ours, Stock, str]]:
    """Valkey, a device worker and a stock worker, all ended at the end."""
    with tempfile.TemporaryDirectory(prefix="sgb-") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        with Valkey(Path(folder) / "valkey.sock", Path(folder)) as server, (Path(folder) / "log").open("wb") as log:
            os.environ |= {
                "SPECGEN_REDIS_URL": server.url,
                "SPECGEN_HOME": folder,
                "SPECGEN_CELL": "benchmarks.sleep_cell:SleepCell",
                "BENCH_BROKER": f"redis+socket://{server.socket}?virtual_host=1",
            }
            stock.conf.broker_url = os.environ["BENCH_BROKER"]
            common = [
                "--pool",
                "prefork",
                "--concurrency",
                "1",
                "--without-gossip",
                "--without-mingle",
                "-l",
                "WARNING",
            ]
            for command in (
                ["workers.device", "--device", "cpu0", "-l", "WARNING"],
                ["celery", "-A", "benchmarks.stock_queue", "worker", "-Q", "stock", "-n", "stock@%h", *common],
            ):
                processes.append(
                    subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log, start_new_session=True)
                )
            try:
                ours, other = Ours(server.url), Stock(server.url)
                with PoolState(server.url) as pool:
                    wait(lambda: pool.devices() or processes[0].poll(), "the device worker")
                    worker = pool.devices()[0].worker
                other.started(other.submit()[0])
                yield ours, other, worker
                ours.disconnect()
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait(60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few samples: shows that it runs, holds no bar")
    quick = parser.parse_args().quick
    sizes = Sizes(30, 6, 6, 4, 1) if quick else Sizes()
    begun = time.monotonic()
    with services() as (ours, other, worker):
        version = cast("Any", ours.client.info("server")).get("valkey_version", "?")
        print(f"# {machine()}, load {os.getloadavg()[0]:.1f}, Valkey {version}")
        results = {
            "enqueue_to_start": latency(ours, other, sizes.latency),
            "switch": switches(ours, other, worker, sizes),
            "abort": aborts(ours, other, worker, sizes),
        }
    bars = {"enqueue_to_start": 20.0, "switch": 60.0, "abort": 100.0}
    for name, (mine, theirs) in results.items():
        p99 = quantile(mine, 0.99)
        print(f"# {name}: N = {len(mine)}, stock N = {len(theirs)}")
        figure(f"{name}_p50", statistics.median(mine), "ms", "", None)
        figure(f"{name}_p99", p99, "ms", f"<= {bars[name]:g}", p99 <= bars[name])
        figure(f"{name}_stock_p50", statistics.median(theirs), "ms", "", None)
        figure(f"{name}_stock_p99", quantile(theirs, 0.99), "ms", "", None)
    mine, theirs = results["enqueue_to_start"]
    ratio = quantile(mine, 0.99) / quantile(theirs, 0.99)
    figure("enqueue_to_start_p99_over_stock", ratio, "x", "<= 1.1", ratio <= 1.1)
    print(f"# took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
