"""Jobs that nobody works on are enqueued again: what makes losing Redis cost time, not jobs.

The database knows every job that has not ended; a message in Redis only moves it on. Every minute an iteration worker
looks for such jobs without a living lease and sends their task again, each at most once in five minutes. A task too
many is harmless: the lease lets one work, the other ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import redis
import structlog
from kombu.exceptions import OperationalError

from specgen.errors import StoreUnavailable
from specgen.settings import Settings
from specgen.store import JobRecord, Store
from specgen.types import JobState

EVERY_S = 60.0
AFTER = timedelta(seconds=60)  # without a lease, or with one that lapsed so long ago
AGAIN_S = 300

log = structlog.get_logger(__name__)


def orphaned(job: JobRecord, now: datetime) -> bool:
    """Nobody holds it, and not just because it was submitted or handed on a moment ago."""
    since = job.lease_expires_at or job.started_at or job.created_at
    return now - since > AFTER


def reconcile(client: redis.Redis, settings: Settings, store: Store, send: Callable[[str], object]) -> list[str]:
    """Send the tasks of orphaned jobs; returns their ids."""
    now, sent = datetime.now(UTC), []
    for job in (*store.jobs(JobState.QUEUED), *store.jobs(JobState.RUNNING)):
        mark = f"{settings.prefix}:nudged:{job.id}"
        if orphaned(job, now) and client.set(mark, now.isoformat(), nx=True, ex=AGAIN_S):
            send(job.id)
            sent.append(job.id)
            log.info("job_enqueued_again", job_id=job.id, state=job.state.value)
    return sent


def keep_reconciling(
    settings: Settings, open_store: Callable[[], Store], send: Callable[[str], object], stop: threading.Event
) -> None:
    """Until ``stop``; what cannot be reached is tried again a minute later."""
    with redis.Redis.from_url(settings.redis, decode_responses=True) as client:
        while not stop.wait(EVERY_S):
            try:
                reconcile(client, settings, open_store(), send)
            except (redis.RedisError, OperationalError, StoreUnavailable) as exc:
                log.warning("reconcile_waits", error=str(exc))
