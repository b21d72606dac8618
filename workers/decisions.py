"""ElasticScheduler's decisions on their way into SQL.

The scheduler has no database login: it appends decisions to a stream, and iteration workers store them. A consumer
group hands each entry to one worker, acknowledged only once it is stored. Runs as a thread of an iteration
worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import redis
import structlog

from specgen.errors import StoreUnavailable
from specgen.scheduler.keys import Keys
from specgen.settings import Settings
from specgen.store import SchedulerDecision, Store

GROUP = "sql"
BLOCK_MS = 1000
RETRY_S = 1.0

log = structlog.get_logger(__name__)


def store_decisions(client: redis.Redis, keys: Keys, store: Store, consumer: str, *, block_ms: int | None) -> int:
    """Store what is new, and what this consumer took before without storing it; returns how many."""
    stored = 0
    for start in ("0", ">"):
        answer: Any = client.xreadgroup(GROUP, consumer, {keys.decisions: start}, count=100, block=block_ms)
        entries = answer[0][1] if answer else []
        for entry, fields in entries:
            names = ("devices", "validators", "profilers", "max_validate", "max_profile", "moved", "dropped")
            figures = {name: int(fields[name]) for name in names}
            decision = SchedulerDecision(scope=fields["scope"], policy=fields["policy"], **figures)
            store.add_decision(decision, decided_at=float(fields["at"]), key=f"{keys.prefix}:{entry}"[-64:])
            client.xack(keys.decisions, GROUP, entry)
            stored += 1
    return stored


def follow(settings: Settings, open_store: Callable[[], Store], consumer: str, stop: threading.Event) -> None:
    """Until ``stop``; whatever cannot be reached is tried again."""
    keys = Keys(settings.prefix)
    with redis.Redis.from_url(settings.redis, decode_responses=True) as client:
        while not stop.is_set():
            try:
                client.xgroup_create(keys.decisions, GROUP, id="0", mkstream=True)
            except redis.ResponseError as exc:
                if "BUSYGROUP" not in str(exc):
                    raise
            except redis.RedisError as exc:
                log.warning("decisions_wait", error=str(exc))
                stop.wait(RETRY_S)
                continue
            try:
                while not stop.is_set():
                    store_decisions(client, keys, open_store(), consumer, block_ms=BLOCK_MS)
            except (redis.RedisError, StoreUnavailable) as exc:
                log.warning("decisions_wait", error=str(exc))
                stop.wait(RETRY_S)
