"""Enqueue → start, switch and abort with 2, 8 and 32 light workers (`benchmarks.queue.light`) of each side at once.

Two processes a side, and more where eight workers in each are not enough. Samples of both sides are taken in turn, in
one run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.queue.light import SERVES, name_of
from benchmarks.queue.system import Ours, Stock, processes, started, wait
from specgen.types import Phase

PROCESSES, EACH = 2, 8  # at least so many processes; at most so many workers in each
PAUSE_S = 0.01
SETTLE_S = 0.03


@dataclass(frozen=True)
class Counts:
    """How many samples of each kind, of each side."""

    latency: int = 120
    switches: int = 40
    rounds: int = 5  # of switching half of the workers at once
    aborts: int = 40


@dataclass
class Found:
    """Milliseconds."""

    ours: list[float] = field(default_factory=list)
    stock: list[float] = field(default_factory=list)


@contextmanager
def workers(count: int, ours: Ours, folder: Path) -> Iterator[tuple[list[str], list[str]]]:
    """So many light workers of each side, all of them serving; their names."""
    ours.client.delete(SERVES)
    each = min(EACH, -(-count // PROCESSES))
    commands = [
        ["benchmarks.queue.light", side, str(first), str(min(each, count - first))]
        for side in ("ours", "stock")
        for first in range(0, count, each)
    ]
    with processes(commands, folder / "light.log"):
        wait(lambda: ours.client.hlen(SERVES) == 2 * count, f"{2 * count} light workers")
        time.sleep(0.5)
        names = [[name_of(side, index) for index in range(count)] for side in ("ours", "stock")]
        yield names[0], names[1]
    ours.client.flushdb()


def latency(ours: Ours, other: Stock, count: int) -> Found:
    """Enqueue → start, all workers idle."""
    found = Found()
    for i in range(count + 5):
        sent = time.time()
        mine = started(ours.client, ours.submit(f"latency/{i}")) - sent
        time.sleep(PAUSE_S)
        sent = time.time()
        theirs = other.started(other.submit()) - sent
        time.sleep(PAUSE_S)
        if i >= 5:
            found.ours.append(mine * 1000)
            found.stock.append(theirs * 1000)
    return found


def switches(ours: Ours, other: Stock, mine: Sequence[str], theirs: Sequence[str], count: int) -> Found:
    """A request waits where nobody serves it; the order to one idle worker of all → its start."""
    found = Found()
    _serve(ours, mine, "validate")
    for i in range(count):
        worker = [mine[i % len(mine)]]
        request = ours.submit(f"switch/{i}", phase=Phase.PROFILE)
        time.sleep(SETTLE_S)
        begun = time.time()
        ours.set_role(worker, "profile")
        found.ours.append((started(ours.client, request) - begun) * 1000)
        _serve(ours, worker, "validate")
        time.sleep(SETTLE_S)

        worker = [theirs[i % len(theirs)]]
        token = other.submit(queue="stock2")
        time.sleep(SETTLE_S)
        begun = time.time()
        other.app.control.cancel_consumer("stock", destination=worker)
        other.app.control.add_consumer("stock2", destination=worker)
        found.stock.append((other.started(token) - begun) * 1000)
        other.app.control.cancel_consumer("stock2", destination=worker)
        other.app.control.add_consumer("stock", destination=worker)
        _wait_serves(ours, worker, "stock")
        time.sleep(SETTLE_S)
    return found


def half_at_once(ours: Ours, mine: Sequence[str], rounds: int) -> list[float]:
    """Half of the workers are moved by one order; the order → the start of each of as many waiting requests, ms."""
    found, moved = [], list(mine)[: max(1, len(mine) // 2)]
    for i in range(rounds):
        requests = [ours.submit(f"half/{i}", phase=Phase.PROFILE) for _ in moved]
        time.sleep(SETTLE_S)
        begun = time.time()
        ours.set_role(moved, "profile")
        found += [(started(ours.client, request) - begun) * 1000 for request in requests]
        _serve(ours, moved, "validate")
    return found


def aborts(ours: Ours, other: Stock, workers: int, count: int) -> Found:
    """All workers run a request of a scope of their own, another request waits; one scope's end → the other's start."""
    found = Found()
    scopes = [f"run{i}/0" for i in range(workers)]
    for scope in scopes:
        started(ours.client, ours.submit(scope, sleep_s=600))
    tokens = [other.submit(sleep_s=600) for _ in range(workers)]
    for token in tokens:
        other.started(token)
    for i in range(count):
        time.sleep(SETTLE_S + 0.025 * i / count)  # at any moment between two looks at the scope
        request = ours.submit(f"next/{i}")
        begun = time.time()
        ours.close(scopes[i % workers])
        found.ours.append((started(ours.client, request) - begun) * 1000)
        scopes[i % workers] = f"run{i % workers}/{i + 1}"
        started(ours.client, ours.submit(scopes[i % workers], sleep_s=600))

        token = other.submit()
        begun = time.time()
        other.app.control.revoke(tokens[i % workers], terminate=True)
        found.stock.append((other.started(token) - begun) * 1000)
        tokens[i % workers] = other.submit(sleep_s=600)
        other.started(tokens[i % workers])
    return found


def _serve(ours: Ours, workers: Sequence[str], role: str) -> None:
    ours.set_role(workers, role)
    _wait_serves(ours, workers, role)


def _wait_serves(ours: Ours, workers: Sequence[str], queue: str) -> None:
    wait(lambda: all(found == queue for found in ours.client.hmget(SERVES, workers)), f"{queue} to be served")
