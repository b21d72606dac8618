"""ElasticScheduler's process: ``python -m workers.scheduler``. A second one waits as a standby.

Joins `specgen.scheduler.elastic` to Celery's remote control. SIGTERM and SIGINT end it at once and give the lease up;
while none runs, roles stay as they are and work goes on. A Redis that is down, at the start or later, is waited for; a
pool with another version of SpecGen in it is refused.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import sys
import threading
import time

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from specgen.errors import EnvironmentLacking
from specgen.scheduler.elastic import ElasticScheduler
from specgen.scheduler.keys import Keys, is_away
from specgen.scheduler.members import Membership, keep
from specgen.settings import get_settings
from workers.app import app
from workers.ending import until_signal

INSPECT_TIMEOUT_S = 1.0
RETRY_S = 0.5
SAY_S = 10.0  # between two lines about a Redis that is still away

log = structlog.get_logger(__name__)


class CeleryControl:
    """`Control` by broadcasts to named workers, each on a connection of its own: none is stale after a restart."""

    def __init__(self, celery: Celery) -> None:
        celery.conf.broker_pool_limit = 0  # a pool of connections that was closed for a stale one stays closed
        self._celery = celery

    def apply_role(self, workers: list[str]) -> None:
        """Tell workers to read their role; one that misses it is found by the next comparison."""
        for attempt in (1, 2):
            try:
                self._celery.control.broadcast("apply_role", destination=workers)
                return
            except (OperationalError, redis.RedisError, OSError) as exc:
                log.warning("control_failed", attempt=attempt, error=str(exc))

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
        """Which queues each worker consumes; those that do not answer within a second are left out."""
        if not workers:
            return {}
        try:
            answers = self._celery.control.inspect(destination=workers, timeout=INSPECT_TIMEOUT_S, limit=len(workers))
            queues = answers.active_queues() or {}
        except (OperationalError, redis.RedisError, OSError) as exc:
            log.warning("inspect_failed", error=str(exc))
            return {}
        return {worker: frozenset(queue["name"] for queue in found) for worker, found in queues.items()}


def join(membership: Membership, stop: threading.Event, url: str) -> None:
    """Become a member of the pool, however long Redis is away; returns early once ``stop`` is set.

    Raises EnvironmentLacking where the pool runs another version.
    """
    said_at: float | None = None
    while not stop.is_set():
        try:
            membership.join()
            return
        except (redis.RedisError, OSError) as exc:
            if not is_away(exc):
                raise
            if said_at is None or time.monotonic() - said_at >= SAY_S:
                log.warning("waiting_for_redis", url=url, error=str(exc))
                said_at = time.monotonic()
            stop.wait(RETRY_S)


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings, stop = get_settings(), until_signal()
    keys = Keys(settings.prefix, settings.pool.order)
    with redis.Redis.from_url(settings.redis, decode_responses=True) as client:
        scheduler = ElasticScheduler(
            client, keys, CeleryControl(app), policy=settings.pool.split, interval_s=settings.pool.scheduler_interval_s
        )
        membership = Membership(client, keys, f"scheduler@{scheduler.name}", "scheduler")
        try:
            join(membership, stop, _shown(settings.redis))
        except EnvironmentLacking as exc:
            sys.stderr.write(f"{exc.message}\n{exc.hint}\n")
            sys.exit(2)
        kept = keep(membership, stop)
        log.info("scheduler_started", name=scheduler.name, policy=scheduler.policy)
        scheduler.run(stop)
        kept.join(timeout=2.0)


def _shown(url: str) -> str:
    """Without a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


if __name__ == "__main__":
    main()
