"""What the tests of device workers ask Redis."""

from __future__ import annotations

import socket

import redis

from specgen.scheduler import process_groups
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import DeviceState, PoolState
from specgen.types import EvaluationResult

KEYS = Keys()
WORKER = f"device-cpu0@{socket.gethostname()}"


def results(client: redis.Redis, scope: str = "j/1") -> list[EvaluationResult]:
    return [EvaluationResult.model_validate_json(f["result"]) for _, f in client.xrange(KEYS.results(scope))]


def running(client: redis.Redis, worker: str = WORKER) -> process_groups.GroupRecord | None:
    """The group of the evaluation that runs now."""
    if not client.hexists(KEYS.busy, worker):
        return None
    group = process_groups.parse(client.hget(KEYS.groups, worker))
    return group if group and process_groups.members(group.pgid) else None


def device_state(redis_url: str) -> DeviceState | None:
    """The only device, as commands show it."""
    with PoolState(redis_url) as pool:
        found = pool.devices()
    return found[0] if found else None
