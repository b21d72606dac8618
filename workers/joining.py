"""How a process that is no device becomes a member of the pool, or is refused (`specgen.scheduler.members`)."""

from __future__ import annotations

import threading

import redis

from specgen.errors import EnvironmentLacking
from specgen.scheduler.keys import Keys
from specgen.scheduler.members import Membership, keep
from specgen.settings import Settings
from workers.ending import refuse
from workers.patience import FOREVER, patiently


def join_pool(settings: Settings, name: str, kind: str, stop: threading.Event) -> None:
    """Join, and stay until ``stop``. Ends the process with code 2 where a live member has another version; a Redis that
    is away is waited for. For a main thread before its work begins."""
    client = redis.Redis.from_url(settings.redis, decode_responses=True)
    membership = Membership(client, Keys(settings.prefix, settings.pool.order), name, kind)
    try:
        patiently(membership.join, FOREVER)
    except EnvironmentLacking as exc:
        refuse(exc)
    keep(membership, stop)
