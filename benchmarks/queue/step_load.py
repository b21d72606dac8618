"""L2: the profiling load steps up, and down again; how many boundaries pass until the split follows.

A real Redis and the real ElasticScheduler; simulated devices that learn their roles from Redis; one job whose
iterations enqueue so many requests of each kind at once, with a few more or fewer by chance, and wait for them. The
split that a load asks for is the one that most boundaries of its phase ended with. The split follows a step with the
first boundary at which it lies at that split or one device beside it. A change of roles after that is an oscillation.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import redis

from benchmarks.queue.system import make_request
from benchmarks.simulated_device import SCRIPTS, Device
from benchmarks.wire import Wire
from specgen.runtime.valkey import Valkey
from specgen.scheduler.elastic import ElasticScheduler
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import RedisPool
from specgen.types import Phase

SERVICE_S = 0.06  # long beside the time that enqueueing an iteration takes


class NoControl:
    """Simulated devices read their roles themselves."""

    def apply_role(self, workers: list[str]) -> None:
        """Nothing to send."""

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:  # noqa: ARG002
        """Nobody answers."""
        return {}


@dataclass(frozen=True)
class Step:
    """One change of the load."""

    load: tuple[int, int]  # requests to validate and to profile in an iteration
    split: tuple[int, int]  # validators and profilers
    boundaries: int  # until the split followed; 0: it was there already
    changes: int  # of roles, after it followed


@contextmanager
def scheduler(valkey: Valkey, keys: Keys) -> Iterator[None]:
    """The real one, in a thread."""
    stop = threading.Event()
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        elastic = ElasticScheduler(client, keys, NoControl(), interval_s=0.2)
        thread = threading.Thread(target=elastic.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


async def simulate(
    valkey: Valkey, pool: RedisPool, *, devices: int, loads: list[tuple[int, int]], iterations: int, seed: int
) -> list[Step]:
    """Each load for so many iterations; what became of every step but the first."""
    chance, keys = random.Random(seed), Keys()
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        client.flushdb()
        wire = await Wire.connect(str(valkey.socket))
        await wire.load(SCRIPTS)
        crew = [Device(f"device{i}", keys, lambda *_: SERVICE_S, 1.0) for i in range(devices)]
        tasks = [asyncio.create_task(device.run(str(valkey.socket))) for device in crew]
        with scheduler(valkey, keys):
            await _until(lambda: client.hlen(keys.roles) == devices)
            splits: list[list[tuple[int, int, int]]] = []
            number = 0
            for load in loads:
                splits.append([])
                for _ in range(iterations):
                    number += 1
                    wanted = [max(0, round(chance.gauss(count, count**0.5 / 2))) for count in load]
                    await _iteration(client, keys, pool, number, wanted)
                    splits[-1].append(_decision(client, keys, number))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        wire.close()
    return [_follow(load, found) for load, found in list(zip(loads, splits, strict=True))[1:]]


async def _iteration(client: redis.Redis, keys: Keys, pool: RedisPool, number: int, wanted: list[int]) -> None:
    scope = f"job/{number}"
    await pool.open(scope)
    requests = [
        make_request(scope, phase=phase)
        for phase, count in zip((Phase.VALIDATE, Phase.PROFILE), wanted, strict=True)
        for _ in range(count)
    ]
    await asyncio.gather(*(pool.submit(request) for request in requests))
    await _until(
        lambda: (
            not client.hlen(keys.busy) and not any(map(int, cast("list[str]", client.hvals(f"{keys.prefix}:lengths"))))
        )
    )
    await pool.close(scope)
    await _until(lambda: any(found["scope"] == scope for found in _decisions(client, keys)))


def _decisions(client: redis.Redis, keys: Keys) -> list[dict[str, str]]:
    return [fields for _, fields in cast("list[tuple[str, dict[str, str]]]", client.xrevrange(keys.decisions, count=5))]


def _decision(client: redis.Redis, keys: Keys, number: int) -> tuple[int, int, int]:
    """Validators, profilers and moves of this boundary."""
    for fields in _decisions(client, keys):
        if fields["scope"] == f"job/{number}":
            return int(fields["validators"]), int(fields["profilers"]), int(fields["moved"])
    raise LookupError(f"no decision on boundary {number}")


def _follow(load: tuple[int, int], found: list[tuple[int, int, int]]) -> Step:
    split = Counter((val, prof) for val, prof, _ in found).most_common(1)[0][0]
    first = next(i for i, (_, prof, _) in enumerate(found) if abs(prof - split[1]) <= 1)
    return Step(
        load, split, first + 1 if found[first][2] or first else 0, sum(moved for _, _, moved in found[first + 1 :])
    )


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (what is waited for happens in Redis)
            await asyncio.sleep(0.005)
