"""The database and the pool, compared, and put right: why losing Redis costs time, not jobs.

The database knows every job that has not ended; a message in Redis only moves it on. Once a minute one of the iteration
workers looks in both directions:

* A job without a living lease whose task neither waits nor runs is enqueued again.
* A scope that is open in the pool although its iteration is closed, or its job has ended, is closed: nothing of it is
  served any more, and it reserves no device.

A task too many is harmless: the lease lets one work, the other ends. Requests that the pool has lost are the business
of their iteration (`specgen.controller.evaluations`), which alone knows what it still waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import redis
import structlog
from kombu.exceptions import OperationalError

from specgen.client import iteration_key
from specgen.errors import PoolUnavailable, StoreUnavailable
from specgen.scheduler.pool import PoolState
from specgen.settings import Settings
from specgen.store import JobRecord, Store
from specgen.types import JobState

EVERY_S = 60.0
AFTER = timedelta(seconds=60)  # without a lease, or with one that lapsed so long ago

log = structlog.get_logger(__name__)


def orphaned(job: JobRecord, now: datetime) -> bool:
    """Nobody holds it, and not just because it was submitted or handed on a moment ago."""
    since = job.lease_expires_at or job.started_at or job.created_at
    return now - since > AFTER


def send_lost(client: redis.Redis, settings: Settings, store: Store, send: Callable[[str], object]) -> list[str]:
    """Enqueue the jobs that nobody works on and that no message will move on; returns their ids."""
    now, sent = datetime.now(UTC), []
    for job in (*store.jobs(JobState.QUEUED), *store.jobs(JobState.RUNNING)):
        if orphaned(job, now) and not client.exists(iteration_key(settings.prefix, job.id)):
            send(job.id)
            sent.append(job.id)
            log.info("job_enqueued_again", job_id=job.id, state=job.state.value)
    return sent


def close_ghosts(pool: PoolState, store: Store) -> list[str]:
    """Close the scopes that nobody will; returns them. Each is looked up again just before, since a job may have been
    resumed meanwhile (and should that happen between the two, its iteration opens its scope again)."""
    closed = []
    for scope in sorted(store.over(pool.open_scopes())):
        if store.over((scope,)):
            dropped = pool.close_scope(scope)
            closed.append(scope)
            log.info("ghost_scope_closed", scope=scope, dropped=dropped)
    return closed


def keep_reconciling(
    settings: Settings, open_store: Callable[[], Store], send: Callable[[str], object], stop: threading.Event
) -> None:
    """Until ``stop``; what cannot be reached is tried again a minute later."""
    turn = f"{settings.prefix}:reconciling"
    with (
        redis.Redis.from_url(settings.redis, decode_responses=True) as client,
        PoolState(settings.redis, settings.prefix) as pool,
    ):
        while not stop.wait(EVERY_S):
            try:
                if client.set(turn, "", nx=True, px=int(EVERY_S * 900)):  # one worker of many, once a minute
                    send_lost(client, settings, open_store(), send)
                    close_ghosts(pool, open_store())
            except (redis.RedisError, OperationalError, PoolUnavailable, StoreUnavailable) as exc:
                log.warning("reconcile_waits", error=str(exc))
