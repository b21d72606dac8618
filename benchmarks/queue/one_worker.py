"""Enqueue → start, a switch of subscription, an abort: one real device worker beside one stock Celery worker.

The device worker runs SpecGen's tasks as they are, in its pool process, with a cell that sleeps. Samples of both are
taken in turn, so that noise of the machine meets both. A start is the moment at which Celery begins the task.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.queue.system import Ours, Stock, processes, wait
from specgen.runtime.valkey import Valkey
from specgen.scheduler.pool import PoolState
from specgen.types import EvaluationResult, Phase

PAUSE_S = 0.08  # after each sample: the next cell warms up meanwhile
WARM_UP = 10  # the first few find cold connections
CELL = "benchmarks.queue.stamp_cell:StampCell"
POOL = ["--pool", "prefork", "--concurrency", "1", "--without-gossip", "--without-mingle", "-l", "WARNING"]

Samples = tuple[list[float], list[float]]
"""Ours and stock, milliseconds."""


@dataclass(frozen=True)
class Sizes:
    """How many samples of each kind."""

    latency: int = 220
    switches: int = 50
    aborts: int = 50
    stock_switches: int = 15
    stock_aborts: int = 6


def began_at(result: EvaluationResult) -> float:
    return float(result.environment["began_at"])


def latency(ours: Ours, other: Stock, count: int) -> tuple[Samples, list[float]]:
    """Enqueue → start, idle workers; and enqueue → evaluation for ours, which first claims the request."""
    mine, theirs, evaluated = [], [], []
    for i in range(count + WARM_UP):
        scope = f"latency/{i}"
        sent = time.time()
        result = ours.result(scope, ours.submit(scope))
        time.sleep(PAUSE_S)
        stock_sent = time.time()
        begun = other.started(other.submit())
        time.sleep(PAUSE_S)
        if i >= WARM_UP:
            mine.append((began_at(result) - sent) * 1000)
            evaluated.append((float(result.environment["started_at"]) - sent) * 1000)
            theirs.append((begun - stock_sent) * 1000)
    return (mine, theirs), evaluated


def switches(ours: Ours, other: Stock, worker: str, sizes: Sizes) -> Samples:
    """A request waits in a queue that an idle worker does not serve; the switch → its start."""
    mine, theirs = [], []
    ours.set_role([worker], "validate")
    time.sleep(0.5)
    for i in range(sizes.switches):
        role = Phase.PROFILE if i % 2 == 0 else Phase.VALIDATE
        scope = f"switch/{i}"
        request = ours.submit(scope, phase=role)
        time.sleep(0.05)
        begun = time.time()
        ours.set_role([worker], role.value)
        mine.append((began_at(ours.result(scope, request)) - begun) * 1000)
        time.sleep(0.05)
    for i in range(sizes.stock_switches):
        old, new = ("stock", "stock2") if i % 2 == 0 else ("stock2", "stock")
        token = other.submit(queue=new)
        time.sleep(0.05)
        begun = time.time()
        other.app.control.cancel_consumer(old)
        other.app.control.add_consumer(new)
        theirs.append((other.started(token) - begun) * 1000)
        time.sleep(0.05)
    if sizes.stock_switches % 2:
        other.app.control.cancel_consumer("stock2")
        other.app.control.add_consumer("stock")
    ours.set_role([worker], "both")
    time.sleep(1.2)
    return mine, theirs


def aborts(ours: Ours, other: Stock, worker: str, sizes: Sizes) -> Samples:
    """A request runs, another waits; the first one's end is ordered → the second one's start."""
    mine, theirs = [], []
    for i in range(sizes.aborts):
        ours.submit(f"abort/{i}", sleep_s=60)
        wait(lambda: ours.client.keys(ours.keys.start("*")), "the request to run")
        time.sleep(0.1 + 0.025 * i / sizes.aborts)  # at any moment between two looks at the scope
        request = ours.submit(f"next/{i}")
        begun = time.time()
        ours.close(f"abort/{i}")
        mine.append((began_at(ours.result(f"next/{i}", request)) - begun) * 1000)
        wait(lambda: not ours.client.hexists(ours.keys.busy, worker), "idle")
        time.sleep(0.1)
    for _ in range(sizes.stock_aborts):
        token = other.submit(sleep_s=60)
        other.started(token)
        time.sleep(0.1)
        following = other.submit()
        begun = time.time()
        other.app.control.revoke(token, terminate=True, signal="SIGKILL")
        theirs.append((other.started(following) - begun) * 1000)
    return mine, theirs


@contextmanager
def workers(valkey: Valkey, other: Stock, folder: Path) -> Iterator[str]:
    """A device worker and a stock worker; the name of the former."""
    commands = [
        ["workers.device", "--device", "cpu0", "-l", "WARNING"],
        ["celery", "-A", "benchmarks.stock_queue", "worker", "-Q", "stock", "-n", "stock@%h", *POOL],
    ]
    with processes(commands, folder / "workers.log") as started, PoolState(valkey.url) as pool:
        wait(lambda: pool.devices() or started[0].poll() is not None, "the device worker")
        wait(lambda: pool.devices(), "the device worker", 1.0)
        other.started(other.submit())
        yield pool.devices()[0].worker
