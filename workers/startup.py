"""How an iteration worker or a builder comes up: Redis and the database are waited for, another version is refused.

Not here: what it does then (`workers.iteration`, `workers.builder`), the same for devices (`workers.presence`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis
import structlog

from specgen.errors import EnvironmentLacking, StoreUnavailable
from specgen.scheduler.keys import Keys, is_away
from specgen.scheduler.members import Membership, keep
from specgen.settings import Settings

RETRY_S, LONGEST_WAIT_S = 0.5, 30.0
REFUSED = 2  # exit code
T = TypeVar("T")

log = structlog.get_logger(__name__)


def enter_pool(settings: Settings, name: str, stop: threading.Event, kind: str = "iterations") -> None:
    """Become a member of the pool until ``stop``. Ends this process where the pool runs another version."""
    client = redis.Redis.from_url(settings.redis, decode_responses=True)
    membership = Membership(client, Keys(settings.prefix), name, kind)
    try:
        waiting("redis", membership.join, lambda exc: isinstance(exc, redis.RedisError | OSError) and is_away(exc))
    except EnvironmentLacking as exc:
        sys.stderr.write(f"{exc.message}\n{exc.hint}\n")
        sys.exit(REFUSED)
    keep(membership, stop)


def await_database(open_store: Callable[[], T]) -> T:
    """The store, once the database answers and is migrated."""
    return waiting("database", open_store, lambda exc: isinstance(exc, StoreUnavailable | EnvironmentLacking))


def waiting(what: str, call: Callable[[], T], passes: Callable[[Exception], bool]) -> T:
    """Call it until it raises nothing that passes by itself; a line in the log tells what is waited for. Blocking."""
    wait_s = RETRY_S
    while True:
        try:
            return call()
        except Exception as exc:
            if not passes(exc):
                raise
            log.warning("worker_waits", waits_for=what, error=str(exc), again_in_s=wait_s)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
