"""L1: put + pop of one request while 100 000 others wait, and while one does; through the transport's channel.

The queue is filled in one pipeline of the same script that `Channel._put` runs. Requests come in the worst order for
a list: all of one job, then all of the next, while jobs are served in turn. Samples of the full queue and of the almost
empty one, which lies in another database of the same server, are taken in turn. At the end everything is taken out and
acknowledged, and compared with what was put in; with one job, whose order is plain, what is left is purged and counted.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from kombu.connection import Connection

from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import LABEL_HEADER, ORIGIN_HEADER, PRIORITY_HEADER, SCOPE_HEADER, UNACKED_INDEX, script
from specgen.scheduler.transport import BOUNDS, broker_url

BATCH = 1000
PAYLOAD = "x" * 1500  # a request with a small kernel


@dataclass(frozen=True)
class Depth:
    """Milliseconds of a put and the pop after it, and what came out in the end."""

    queue: str
    jobs: int
    waiting: int
    samples: list[float]
    beside: list[float]  # of the almost empty queue
    lost: int  # put and never delivered
    doubled: int  # delivered twice


@contextmanager
def channel(valkey: Valkey, order: str, database: int) -> Iterator[tuple[Any, redis.Redis]]:
    """A channel of the real transport, and a client, on an empty database."""
    url = valkey.url.replace("db=0", f"db={database}")
    with redis.Redis.from_url(url, decode_responses=True) as client:
        client.flushdb()
        with Connection(broker_url(url), transport_options={"specgen_order": order}) as connection:
            yield connection.channel(), client
        client.flushdb()


def measure(valkey: Valkey, queue: str, *, jobs: int, waiting: int, samples: int, order: str) -> Depth:
    """Fill, take the samples, empty."""
    with channel(valkey, order, 0) as (full, client), channel(valkey, order, 2) as (empty, _):
        put = _fill(full, client, queue, jobs, waiting)
        empty._put(queue, _message("job0/0"))
        times, beside = [], []
        popped: list[str] = []
        for i in range(samples):
            message = _message(f"job{i % jobs}/0")
            times.append(_put_and_pop(full, queue, message, popped))
            put.append(message["properties"]["delivery_tag"])
            beside.append(_put_and_pop(empty, queue, _message("job0/0"), []))
        purged = full._purge(queue) if jobs == 1 else 0
        popped += _empty(full, client, queue)
        lost = len(set(put) - set(popped)) - purged
        return Depth(queue, jobs, waiting, times, beside, lost, len(popped) - len(set(popped)))


def _put_and_pop(found: Any, queue: str, message: dict[str, Any], popped: list[str]) -> float:
    begun = time.perf_counter()
    found._put(queue, message)
    taken = found._get(queue)
    took = time.perf_counter() - begun
    popped.append(taken["properties"]["delivery_tag"])
    return took * 1000


def _message(scope: str) -> dict[str, Any]:
    tag = uuid.uuid4().hex
    headers = {SCOPE_HEADER: scope, ORIGIN_HEADER: "fork", LABEL_HEADER: "cpu", PRIORITY_HEADER: "0", "id": tag}
    properties = {"delivery_tag": tag, "delivery_info": {"exchange": "", "routing_key": ""}}
    return {"body": PAYLOAD, "headers": headers, "properties": properties}


def _fill(found: Any, client: redis.Redis, queue: str, jobs: int, waiting: int) -> list[str]:
    tags: list[str] = []
    sha = client.script_load(script("put"))
    payload = '{"body": "' + PAYLOAD + '", "headers": {}, "properties": {"delivery_tag": "%s", "delivery_info": {}}}'
    for first in range(0, waiting, BATCH):
        pipe = client.pipeline(transaction=False)
        for i in range(first, min(first + BATCH, waiting)):
            tag = uuid.uuid4().hex
            tags.append(tag)
            scope = f"job{i * jobs // waiting}/0"
            args = found.keys.args(queue, tag, payload % tag, scope, "0", tag, "cpu", 0)
            pipe.evalsha(sha, 0, *args)
        pipe.execute()
    return tags


def _empty(found: Any, client: redis.Redis, queue: str) -> list[str]:
    """Every ticket, delivered and acknowledged."""
    tags: list[str] = []
    grab, done = client.script_load(script("grab")), client.script_load(script("done"))
    while True:
        pipe = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipe.evalsha(grab, 0, *found.keys.args(UNACKED_INDEX, "", "cpu", BOUNDS, queue))
        taken = [(answer[1], answer[3]) for answer in pipe.execute() if answer]
        if not taken:
            return tags
        pipe = client.pipeline(transaction=False)
        for tag, delivery in taken:
            pipe.evalsha(done, 0, *found.keys.args(UNACKED_INDEX, tag, delivery))
        pipe.execute()
        tags += [tag for tag, _ in taken]
