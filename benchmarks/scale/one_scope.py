"""Sweep of the queue of one scope: the boundary that drops it, beside requests of other jobs that stay."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import redis

from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.pool import CLOSED_S

BATCH = 1000


@dataclass(frozen=True)
class Setting:
    """How much of it."""

    queued: tuple[int, ...] = (10, 100, 1000)
    beside: int = 10_000
    samples: int = 30


def measure(valkey: Valkey, setting: Setting) -> dict[int, list[float]]:
    """Queue of the scope → milliseconds of its boundary. Half waits to be validated, half to be profiled."""
    found: dict[int, list[float]] = {count: [] for count in setting.queued}
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        client.flushdb()
        close = client.register_script(script("close"))
        _fill(client, setting.beside, lambda i: f"other{i % 100}/1")
        for sample in range(setting.samples):
            for count in setting.queued:
                scope = f"job/{sample * 10_000 + count}"
                _fill(client, count, _always(scope))
                begun = time.perf_counter()
                dropped, _ = close(args=Keys().args(scope, CLOSED_S, 0))
                found[count].append((time.perf_counter() - begun) * 1000)
                if dropped != count:
                    raise RuntimeError(f"{dropped} of {count} dropped")
        client.flushdb()
    return found


def _always(scope: str) -> Callable[[int], str]:
    return lambda _: scope


def _fill(client: redis.Redis, count: int, scope_of: Callable[[int], str]) -> None:
    sha, keys = client.script_load(script("put")), Keys()
    for first in range(0, count, BATCH):
        pipe = client.pipeline(transaction=False)
        for i in range(first, min(first + BATCH, count)):
            tag, queue = uuid.uuid4().hex, ("validate", "profile")[i % 2]
            pipe.evalsha(sha, 0, *keys.args(queue, tag, "x" * 1000, scope_of(i), "0", tag, "cpu", 0))
        pipe.execute()
