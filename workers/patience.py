"""Waiting for a Redis that is away or takes no writes: a restart or a full disk costs time, not results."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis
import structlog

from specgen.scheduler.keys import is_away

PATIENCE_S = 600.0
FOREVER = float("inf")
TOLD_S = 30.0  # between two lines about it
AWAY = (redis.RedisError, OSError)  # as far as `is_away` says so
T = TypeVar("T")

log = structlog.get_logger(__name__)


def patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Call it again while Redis is away or refuses writes (its disk or memory is full, it loads), with a line in the
    log every half minute. Raises its error after ``patience_s``."""
    started, told = time.monotonic(), float("-inf")
    while True:
        try:
            return call()
        except AWAY as exc:
            now = time.monotonic()
            if not is_away(exc) or now - started > patience_s:
                raise
            if now - told > TOLD_S:
                log.warning("redis_away", error=str(exc), waited_s=round(now - started), at_most_s=patience_s)
                told = now
            time.sleep(0.2)
