"""Reallocation: what a step costs with many devices, and what the dead band and the windows of the maxima are worth.

``python -m benchmarks.allocation [--quick]``. The first part runs the scheduler on its own Valkey with devices that
only have heartbeats. The second is a simulation (no Redis) of jobs whose iterations fork, validate and profile on one
pool, with the allocation as shipped; its service times are rough, so it compares rules and predicts nothing.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import structlog

from benchmarks.figures import figure, machine
from specgen.runtime.valkey import Valkey
from specgen.scheduler.allocation import Load, Role, Worker, allocate, assign, plan
from specgen.scheduler.elastic import ElasticScheduler
from specgen.scheduler.keys import Keys, script

KEYS = Keys()
LABELS = ("cuda", "h200")
VALIDATE_S, PROFILE_S = 6.0, 14.0  # mean device seconds
ITERATION_S = 90.0
FORKS_PER_S = 0.07  # of one job

# ------------------------------------------------------------------------------------------------- cost


class Nobody:
    """No worker listens."""

    def apply_role(self, workers: list[str]) -> None:
        """Nobody to tell."""

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
        """Nobody answers."""
        del workers
        return {}


def median_ms(act: Callable[[], object], before: Callable[[], object], samples: int) -> float:
    taken = []
    for _ in range(samples):
        before()
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


def cost(client: redis.Redis, devices: int, samples: int) -> None:
    """Print what the scheduler does with so many devices, in milliseconds (median)."""
    client.flushall()
    names = [f"device-gpu{i % 8}@host{i // 8:04}" for i in range(devices)]
    for name in names:
        about = {"device": name, "backend": "cuda", "labels": LABELS, "facts": {str(i): "x" * 20 for i in range(20)}}
        client.eval(script("heartbeat"), 0, *KEYS.args(name, json.dumps(about)))
    scheduler = ElasticScheduler(client, KEYS, Nobody(), interval_s=0.01)

    def alive() -> None:
        seconds, micros = client.time()
        client.zadd(KEYS.devices, dict.fromkeys(names, seconds + micros / 1e6))

    sides = itertools.cycle([(9, 1), (1, 9)])

    def boundary(l_val: int, l_prof: int) -> None:
        alive()
        told = {"scope": "j/1", "maxima": {"cuda": [l_val, l_prof]}, "dropped": 0}
        client.lpush(KEYS.boundaries, json.dumps(told))

    alive()
    scheduler.step()

    def nothing() -> None:  # a step less its wait for a boundary
        scheduler.lead()
        scheduler._feel()

    figure(f"allocation.step.{devices}", median_ms(nothing, alive, samples), "ms", "nothing happened", None)
    look = median_ms(scheduler._look, alive, samples)
    figure(f"allocation.look.{devices}", look, "ms", "devices came or went", None)
    steady = median_ms(scheduler.step, lambda: boundary(5, 5), samples)
    figure(f"allocation.boundary.{devices}", steady, "ms", "nobody moves", None)
    swing = median_ms(scheduler.step, lambda: boundary(*next(sides)), samples)
    figure(f"allocation.swing.{devices}", swing, "ms", "four in five move", None)


# ------------------------------------------------------------------------------------------- simulation


@dataclass
class Request:
    """Of one scope, in one queue at a time."""

    scope: int
    queue: Role
    arrived: float


@dataclass
class Simulation:
    """One pool, many jobs. ``rule`` is one of RULES."""

    rule: str
    devices: int
    jobs: int
    seed: int
    valid: Callable[[float], float]  # the share of validations that pass, at a time
    now: float = 0.0
    moved: list[tuple[float, int]] = field(default_factory=list)
    waits: dict[Role, list[float]] = field(default_factory=lambda: {"validate": [], "profile": []})
    profiled: int = 0
    profilers: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random, self.ticks = random.Random(self.seed), itertools.count()
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.queues: dict[Role, list[Request]] = {"validate": [], "profile": []}
        self.open: dict[int, list[int]] = {}  # scope -> maxima since it was opened
        self.roles: dict[str, Role] = dict.fromkeys((f"w{i:03}" for i in range(self.devices)), "both")
        self.running: dict[str, Request] = {}
        self.turns: dict[tuple[str, ...], int] = {}
        self.window = [0, 0]
        self._reallocate([0, 0])

    def run(self, until: float) -> Simulation:
        """For so many seconds of simulated time."""
        for _ in range(self.jobs):
            self._at(self.random.uniform(0, ITERATION_S), self._begin, None)
        while self.events and self.events[0][0] < until:
            self.now, _, what, data = heapq.heappop(self.events)
            what(data)
            self._serve()
        return self

    def _at(self, delay: float, what: Callable[[Any], None], data: object) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.ticks), what, data))

    def _begin(self, _: object) -> None:
        scope = next(self.ticks)
        self.open[scope] = [len(self.queues["validate"]), len(self.queues["profile"])]
        self._at(self.random.expovariate(FORKS_PER_S), self._fork, scope)
        self._at(self.random.lognormvariate(0, 0.5) * ITERATION_S, self._end, scope)

    def _fork(self, scope: int) -> None:
        if scope in self.open:
            self._enqueue(Request(scope, "validate", self.now))
            self._at(self.random.expovariate(FORKS_PER_S), self._fork, scope)

    def _enqueue(self, request: Request) -> None:
        queue = self.queues[request.queue]
        queue.append(request)
        side = request.queue == "profile"
        for maxima in [self.window, *self.open.values()]:
            maxima[side] = max(maxima[side], len(queue))

    def _serve(self) -> None:
        for worker, role in self.roles.items():
            for side in ("profile", "validate") if role == "both" else (role,):
                queue = self.queues[side]
                if queue and worker not in self.running:
                    request = queue.pop(0 if side == "profile" else -1)
                    self.running[worker] = request
                    self.waits[request.queue].append(self.now - request.arrived)
                    mean = PROFILE_S if side == "profile" else VALIDATE_S
                    self._at(self.random.lognormvariate(0, 0.4) * mean, self._done, (worker, request))

    def _done(self, data: tuple[str, Request]) -> None:
        worker, request = data
        if self.running.get(worker) is not request:
            return
        del self.running[worker]
        if request.queue == "profile":
            self.profiled += 1
        elif self.random.random() < self.valid(self.now):
            self._enqueue(Request(request.scope, "profile", self.now))

    def _end(self, scope: int) -> None:
        maxima = self.open.pop(scope)
        for queue in self.queues.values():
            queue[:] = [request for request in queue if request.scope != scope]
        self.running = {worker: it for worker, it in self.running.items() if it.scope != scope}
        self._reallocate(self.window if self.rule == "reset at each boundary" else maxima)
        self.window = [len(self.queues["validate"]), len(self.queues["profile"])]
        self._begin(None)

    def _reallocate(self, maxima: list[int]) -> None:
        l_val, l_prof = maxima
        if self.rule == "service time":
            l_val, l_prof = round(l_val * 1000 * VALIDATE_S), round(l_prof * 1000 * PROFILE_S)
        before = dict(self.roles)
        if self.rule in ("no band", "reset at each boundary"):
            split = allocate(l_val, l_prof, self.devices)
            self.roles = assign(split, dict(self.roles), list(self.running))
        else:
            workers = [Worker(name, ("cuda",), role, name in self.running) for name, role in self.roles.items()]
            load, flexible = Load({"cuda": (l_val, l_prof)}, self.jobs), self.rule == "flexible"
            for group in plan(workers, load, flexible=flexible, turns=self.turns):
                self.roles |= group.moves
                self.turns[group.labels] = group.turn
        self.moved.append((self.now, sum(self.roles[name] != role for name, role in before.items())))
        self.profilers.append((self.now, sum(role == "profile" for role in self.roles.values())))


RULES = ("reset at each boundary", "no band", "shipped", "service time", "flexible")


def compare(devices: int, jobs: int, seeds: int, hours: float) -> None:
    """Print for each rule, under a constant load: workers moved a boundary, waits, and feedback an hour."""
    for rule in RULES:
        runs = [Simulation(rule, devices, jobs, seed, lambda _: 0.45).run(hours * 3600) for seed in range(seeds)]
        moved = statistics.mean(n for run in runs for _, n in run.moved[1:])
        waits = {side: statistics.mean(w for run in runs for w in run.waits[side]) for side in ("validate", "profile")}
        name = f"allocation.{devices}x{jobs}.{rule.replace(' ', '_')}"
        figure(f"{name}.moved", moved, "workers a boundary", "constant load", None)
        for side, wait in waits.items():
            figure(f"{name}.wait_{side}", wait, "s", "mean", None)
        figure(f"{name}.profiled", statistics.mean(run.profiled for run in runs) / hours, "an hour", "", None)


def step_response(devices: int, jobs: int, seeds: int) -> None:
    """L2 in closed loop: nearly nothing passes validation, then everything does. Boundaries after the step, for each
    job, that left the split nearer to where it was than to where it stays; the iterations under way count, too."""
    late = []
    for seed in range(seeds):
        run = Simulation("shipped", devices, jobs, seed, lambda now: 0.02 if now < 3600 else 1.0).run(7200)
        before = statistics.median(n for at, n in run.profilers if 1800 < at < 3600)
        after = statistics.median(n for at, n in run.profilers if at > 5400)
        following = [n for at, n in run.profilers if at > 3600]
        late.append(next(i for i, n in enumerate(following) if n > (before + after) / 2) / jobs)
    figure(f"allocation.l2.{devices}x{jobs}", max(late), "boundaries of each job", "<= 1", max(late) <= 1)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocation", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples and seeds")
    quick: bool = parser.parse_args().quick
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    print(f"machine: {machine()}")
    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        server = Valkey(Path(folder) / "v.sock", Path(folder))
        server.start()
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            for devices in (10, 100, 1000):
                cost(client, devices, 5 if quick else 30)
        server.stop()
    for devices, jobs in ((10, 1), (10, 10), (10, 40), (32, 40)):
        compare(devices, jobs, 1 if quick else 5, 1.0 if quick else 4.0)
        step_response(devices, jobs, 2 if quick else 10)


if __name__ == "__main__":
    main()
