"""Fairness: many jobs of unequal appetite on few devices, more than these can serve, under each order.

A real Redis, requests through the real sender and `RedisPool`, simulated devices. Job i asks for 1/(i+1) of what the
first asks for. Each closes its scope every `ITERATION_S` and goes on in the next, at moments of its own.

Per order: the longest time that a served request had waited; the longest time that a job was not served although it had
something waiting; and Jain's index, (Σx)²/(nΣx²), of x = requests served over the job's max-min fair share of all that
were served. It is one where every job got its share, 1/n where one got all.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

import redis
from celery import Celery

from benchmarks.queue.system import make_request
from benchmarks.simulated_device import SCRIPTS, Device
from benchmarks.wire import Wire
from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import RedisPool
from specgen.types import Origin, Phase

SERVICE_S = 0.04
OVERLOAD = 1.5  # asked for, over what the devices can serve
ITERATION_S = 2.0
MAIN_SHARE, PROFILE_SHARE = 0.1, 0.3


@dataclass(frozen=True)
class Setting:
    """How many, how long."""

    jobs: int = 30
    devices: int = 4
    seconds: float = 8.0
    seed: int = 1


@dataclass
class Fairness:
    """What was seen under one order."""

    order: str
    longest_wait_s: float
    longest_starvation_s: float
    jain: float
    served: int
    asked: int
    unserved_jobs: int


@dataclass
class Log:
    """Events by job, on one clock."""

    events: dict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # +1, -1, 0 at a close
    enqueued: dict[str, float] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)

    def put(self, job: str, request: str) -> None:
        """Enqueued just now."""
        self.enqueued[request] = time.monotonic()
        self.events[job].append((self.enqueued[request], 1))

    def grab(self, scope: str, request: str) -> None:
        """Served just now."""
        now = time.monotonic()
        self.events[scope.rpartition("/")[0]].append((now, -1))
        self.waits.append(now - self.enqueued.get(request, now))

    def close(self, job: str) -> None:
        """What waited is dropped."""
        self.events[job].append((time.monotonic(), 0))


async def simulate(valkey: Valkey, order: str, setting: Setting) -> Fairness:
    """One order."""
    from workers.app import sender

    app = Celery(f"bench-{order}", set_as_current=False)
    app.config_from_object("celeryconfig")
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "specgen_order": order}
    with redis.Redis.from_url(valkey.url) as client:
        client.flushdb()
    pool, log, keys = RedisPool(valkey.url, sender(app), order=order), Log(), Keys(order=order)
    wire = await Wire.connect(str(valkey.socket))
    await wire.load(SCRIPTS)
    crew = [Device(f"device{i}", keys, lambda *_: SERVICE_S, 1.0, on_grab=log.grab) for i in range(setting.devices)]
    devices = [asyncio.create_task(device.run(str(valkey.socket))) for device in crew]
    total = sum(1 / (i + 1) for i in range(setting.jobs))
    rate = OVERLOAD * setting.devices / SERVICE_S / total
    ends = time.monotonic() + setting.seconds
    jobs = [_job(pool, log, f"job{i}", rate / (i + 1), ends, setting.seed * 1000 + i) for i in range(setting.jobs)]
    await asyncio.gather(*jobs)
    for task in devices:
        task.cancel()
    await asyncio.gather(*devices, return_exceptions=True)
    await pool.aclose()
    app.close()
    wire.close()
    return _judge(order, log)


async def _job(pool: RedisPool, log: Log, job: str, rate: float, ends: float, seed: int) -> None:
    chance, iteration = random.Random(seed), 0
    boundary = time.monotonic() + chance.random() * ITERATION_S
    await pool.open(f"{job}/0")
    while (now := time.monotonic()) < ends:
        pause = chance.expovariate(rate)
        await asyncio.sleep(min(pause, boundary - now, ends - now) if boundary > now else 0)
        if time.monotonic() >= boundary:
            log.close(job)
            await pool.close(f"{job}/{iteration}")
            iteration, boundary = iteration + 1, boundary + ITERATION_S
            await pool.open(f"{job}/{iteration}")
        elif time.monotonic() < ends:
            phase = Phase.PROFILE if chance.random() < PROFILE_SHARE else Phase.VALIDATE
            origin = Origin.MAIN if chance.random() < MAIN_SHARE else Origin.FORK
            request = make_request(f"{job}/{iteration}", phase=phase, origin=origin)
            log.put(job, request.request_id)
            await pool.submit(request)
    log.close(job)


def _judge(order: str, log: Log) -> Fairness:
    asked = {job: sum(kind == 1 for _, kind in events) for job, events in log.events.items()}
    served = {job: sum(kind == -1 for _, kind in events) for job, events in log.events.items()}
    shares = max_min(asked, sum(served.values()))
    wanting = [job for job in asked if asked[job]]
    return Fairness(
        order=order,
        longest_wait_s=max(log.waits, default=0.0),
        longest_starvation_s=max((starvation(sorted(events)) for events in log.events.values()), default=0.0),
        jain=jain([served[job] / shares[job] for job in wanting]),
        served=sum(served.values()),
        asked=sum(asked.values()),
        unserved_jobs=sum(not served[job] for job in wanting),
    )


def round_s(setting: Setting) -> float:
    """How long it takes to serve every job once from `validate`, what is to be profiled being served first."""
    return setting.jobs * SERVICE_S / setting.devices / (1 - OVERLOAD * PROFILE_SHARE)


def starvation(events: list[tuple[float, int]]) -> float:
    """The longest time between two services of a job, or before the first, in which something of it waited."""
    waiting, since, longest = 0, 0.0, 0.0
    for at, kind in events:
        if waiting > 0 and kind != 1:
            longest = max(longest, at - since)
        if waiting == 0 or kind == -1:
            since = at
        waiting = max(0, waiting + kind) if kind else 0
    return longest


def max_min(demands: dict[str, int], capacity: float) -> dict[str, float]:
    """Each gets what it asks for, as far as equal shares of what is left allow: the smallest first."""
    shares, left = {}, capacity
    ordered = sorted((job for job in demands if demands[job]), key=lambda job: demands[job])
    for i, job in enumerate(ordered):
        shares[job] = min(demands[job], left / (len(ordered) - i))
        left -= shares[job]
    return shares


def jain(values: list[float]) -> float:
    """Jain's index of fairness."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0
