"""ElasticScheduler's process: ``python -m workers.scheduler``. A second one waits as a standby.

Joins `specgen.scheduler.elastic` to Celery's remote control. SIGTERM and SIGINT end it at once and give the lease up;
while none runs, roles stay as they are and work goes on.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import signal
import threading

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from specgen.scheduler.elastic import ElasticScheduler
from specgen.scheduler.keys import Keys
from specgen.settings import get_settings
from workers.app import app

INSPECT_TIMEOUT_S = 1.0

log = structlog.get_logger(__name__)


class CeleryControl:
    """`Control` by broadcasts to named workers. A connection that went stale is replaced, once."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery

    def apply_role(self, workers: list[str]) -> None:
        """Tell workers to read their role; one that misses it is found by the next comparison."""
        for attempt in (1, 2):
            try:
                self._celery.control.broadcast("apply_role", destination=workers)
                return
            except (OperationalError, redis.ConnectionError, OSError) as exc:
                log.warning("control_failed", attempt=attempt, error=str(exc))
                self._celery.pool.force_close_all()

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
        """Which queues each worker consumes; those that do not answer within a second are left out."""
        if not workers:
            return {}
        try:
            answers = self._celery.control.inspect(destination=workers, timeout=INSPECT_TIMEOUT_S, limit=len(workers))
            queues = answers.active_queues() or {}
        except (OperationalError, redis.ConnectionError, OSError) as exc:
            log.warning("inspect_failed", error=str(exc))
            self._celery.pool.force_close_all()
            return {}
        return {worker: frozenset(queue["name"] for queue in found) for worker, found in queues.items()}


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings, stop = get_settings(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    scheduler = ElasticScheduler(
        client=redis.Redis.from_url(settings.redis, decode_responses=True),
        keys=Keys(settings.prefix, settings.pool.order),
        control=CeleryControl(app),
        policy=settings.pool.split,
        interval_s=settings.pool.scheduler_interval_s,
    )
    log.info("scheduler_started", name=scheduler.name, policy=scheduler.policy)
    scheduler.run(stop)


if __name__ == "__main__":
    main()
