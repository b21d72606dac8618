"""``python -m benchmarks.queue [--quick] [--only latency many depth step fairness]``: the device queues, measured.

Starts its own Valkey, and beside SpecGen's workers stock Celery ones on the same server. ``latency``: one real device
worker. ``many``: 2, 8 and 32 light workers. ``depth``: L1, 100 000 waiting. ``step``: L2. ``fairness``: does a job
starve. Prints figures, and says of each whether it holds its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from benchmarks.figures import figure, machine
from benchmarks.queue import depth, many_workers, one_worker, starvation, step_load
from benchmarks.queue.system import Ours, Stock, quantile, server
from specgen.runtime.valkey import Valkey
from specgen.scheduler.pool import RedisPool

START_MS, SWITCH_MS, ABORT_MS, DEPTH_MS, RATIO = 20.0, 60.0, 100.0, 5.0, 1.1
ROUNDS = 2  # a job is served before every other was served twice


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    sizes: one_worker.Sizes = field(default_factory=one_worker.Sizes)
    workers: tuple[int, ...] = (2, 8, 32)
    counts: many_workers.Counts = field(default_factory=many_workers.Counts)
    waiting: int = 100_000
    jobs: int = 200
    depth_samples: int = 500
    devices: int = 16
    iterations: int = 7
    fairness: starvation.Setting = field(default_factory=starvation.Setting)
    seed: int = 1


QUICK = Plan(
    sizes=one_worker.Sizes(10, 4, 3, 2, 1),
    workers=(2,),
    counts=many_workers.Counts(10, 4, 1, 4),
    waiting=2000,
    jobs=20,
    depth_samples=20,
    devices=6,
    iterations=3,
    fairness=starvation.Setting(jobs=5, devices=2, seconds=1.5),
)


@dataclass
class Bench:
    """One run."""

    valkey: Valkey
    folder: Path
    plan: Plan

    def __post_init__(self) -> None:
        self.ours, self.stock = Ours(self.valkey.url), Stock(self.valkey.url, os.environ["BENCH_BROKER"])

    def latency(self) -> None:
        """One real device worker."""
        sizes = self.plan.sizes
        with one_worker.workers(self.valkey, self.stock, self.folder) as worker:
            (mine, theirs), evaluated = one_worker.latency(self.ours, self.stock, sizes.latency)
            switch = one_worker.switches(self.ours, self.stock, worker, sizes)
            abort = one_worker.aborts(self.ours, self.stock, worker, sizes)
        self.ours.client.flushdb()
        pair("enqueue_to_start", mine, theirs, START_MS, ratio=True)
        figure("enqueue_to_evaluation_p99", quantile(evaluated, 0.99), "ms", "", None)
        pair("switch", *switch, SWITCH_MS)
        pair("abort", *abort, ABORT_MS)

    def many(self) -> None:
        """Light workers."""
        counts = self.plan.counts
        for n in self.plan.workers:
            with many_workers.workers(n, self.ours, self.folder) as (mine, theirs):
                start = many_workers.latency(self.ours, self.stock, counts.latency)
                switch = many_workers.switches(self.ours, self.stock, mine, theirs, counts.switches)
                half = many_workers.half_at_once(self.ours, mine, counts.rounds)
                abort = many_workers.aborts(self.ours, self.stock, n, counts.aborts)
            pair(f"enqueue_to_start_{n}_workers", start.ours, start.stock, START_MS, ratio=True)
            pair(f"switch_{n}_workers", switch.ours, switch.stock, SWITCH_MS)
            figure(f"switch_half_of_{n}_workers_p99", quantile(half, 0.99), "ms", "", None)
            pair(f"abort_{n}_workers", abort.ours, abort.stock, ABORT_MS)

    def depth(self) -> None:
        """L1."""
        plan, lost, doubled = self.plan, 0, 0
        for queue in ("validate", "profile"):
            for jobs in (1, plan.jobs):
                found = depth.measure(
                    self.valkey, queue, jobs=jobs, waiting=plan.waiting, samples=plan.depth_samples, order="fair_laf"
                )
                lost, doubled = lost + found.lost, doubled + found.doubled
                name = f"put_pop_{queue}_{jobs}_jobs"
                print(f"# {name}: {plan.waiting} waiting, N = {len(found.samples)} each, almost empty beside it")
                bar(f"{name}_p99", quantile(found.samples, 0.99), DEPTH_MS)
                figure(f"{name}_p50", statistics.median(found.samples), "ms", "", None)
                figure(f"{name}_p99_almost_empty", quantile(found.beside, 0.99), "ms", "", None)
                figure(f"{name}_p50_almost_empty", statistics.median(found.beside), "ms", "", None)
        figure("put_pop_lost", lost, "requests", "0", lost == 0)
        figure("put_pop_doubled", doubled, "requests", "0", doubled == 0)

    def step(self) -> None:
        """L2."""
        plan = self.plan
        steps = asyncio.run(self._step())
        print(f"# step: {plan.devices} devices, {plan.iterations} boundaries a load, seed {plan.seed}")
        for one in steps:
            print(f"#   {one.load[0]} to validate, {one.load[1]} to profile: {one.split[0]} + {one.split[1]} devices")
        worst, changes = max(one.boundaries for one in steps), sum(one.changes for one in steps)
        figure("boundaries_until_the_split_follows", worst, "boundaries", "<= 1", worst <= 1)
        figure("role_changes_without_a_change_of_load", changes, "changes", "0", changes == 0)

    async def _step(self) -> list[step_load.Step]:
        plan, pool = self.plan, RedisPool(self.valkey.url, self.ours.send)
        loads = [(60, 20), (60, 60), (60, 20), (20, 60)]
        try:
            return await step_load.simulate(
                self.valkey, pool, devices=plan.devices, loads=loads, iterations=plan.iterations, seed=plan.seed
            )
        finally:
            await pool.aclose()

    def fairness(self) -> None:
        """No job starves."""
        setting = self.plan.fairness
        print(f"# fairness: {setting}, asked {starvation.OVERLOAD:g} × what can be served")
        for order in ("fair_laf", "mains_first", "paper"):
            found = asyncio.run(starvation.simulate(self.valkey, order, setting))
            limit = ROUNDS * starvation.round_s(setting)
            fair = order == "fair_laf"
            print(f"# {order}: served {found.served} of {found.asked}, {found.unserved_jobs} jobs never")
            figure(f"longest_starvation_{order}", found.longest_starvation_s, "s", f"<= {limit:.2f}" if fair else "",
                   found.longest_starvation_s <= limit if fair else None)  # fmt: skip
            figure(f"longest_wait_{order}", found.longest_wait_s, "s", "", None)
            figure(f"jain_{order}", found.jain, "", "", None)


def bar(name: str, value: float, limit: float, unit: str = "ms") -> None:
    """A figure that must not be larger."""
    figure(name, value, unit, f"<= {limit:g}", value <= limit)


def pair(name: str, mine: Sequence[float], theirs: Sequence[float], limit: float, *, ratio: bool = False) -> None:
    """Ours against its bar, stock beside it."""
    print(f"# {name}: N = {len(mine)}, stock N = {len(theirs)}")
    bar(f"{name}_p99", quantile(mine, 0.99), limit)
    figure(f"{name}_p50", statistics.median(mine), "ms", "", None)
    figure(f"{name}_stock_p99", quantile(theirs, 0.99), "ms", "", None)
    figure(f"{name}_stock_p50", statistics.median(theirs), "ms", "", None)
    if ratio:
        bar(f"{name}_p99_over_stock", quantile(mine, 0.99) / quantile(theirs, 0.99), RATIO, "x")
        figure(f"{name}_p50_over_stock", statistics.median(mine) / statistics.median(theirs), "x", "", None)


def main() -> None:
    """Measure and print."""
    sections = ("latency", "many", "depth", "step", "fairness")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description="The device queues, measured.")
    parser.add_argument("--quick", action="store_true", help="few samples: shows that it runs, holds no bar")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections, help="these parts")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    begun = time.monotonic()
    with server(SPECGEN_CELL=one_worker.CELL) as (valkey, folder):
        bench = Bench(valkey, folder, QUICK if arguments.quick else Plan())
        print(f"# {machine()}, load {os.getloadavg()[0]:.1f}")
        for section in arguments.only:
            since = time.monotonic()
            measure: Callable[[], None] = getattr(bench, section)
            measure()
            print(f"# {section} took {time.monotonic() - since:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"# took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
