"""Flower over this system's broker: ``python -m workers.dashboard``, or ``specgen dashboard``.

Flower knows its brokers by the URL's scheme and asks every queue for its LLEN. Ours has a scheme of its own, and the
validation queue is a sorted set: `SpecGenBroker` asks for what is there, whatever its type. Read-only unless
``FLOWER_READ_ONLY=false``: Flower's "terminate" kills a worker's pool process and leaves the evaluation on its device,
and roles are the scheduler's to change. Bound to loopback; basic auth by ``FLOWER_BASIC_AUTH=name:password``. Not
persistent: Flower's state file corrupts, and history is in SQL. Every other ``FLOWER_…`` variable holds.
"""

# mypy: allow-untyped-calls, disable-error-code="misc"

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import redis.asyncio
from celery import Celery
from flower.inspector import Inspector
from flower.views import BaseHandler
from flower.views.workers import WorkerView

from specgen.errors import EnvironmentLacking, SettingsError
from specgen.scheduler.keys import ITERATIONS, TICKET_QUEUES, UNACKED_INDEX, Keys, script
from specgen.settings import get_settings

ITERATION_WORKERS = "iterations@"  # their node names begin so
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULTS = {
    "FLOWER_ADDRESS": "127.0.0.1",
    "FLOWER_MAX_TASKS": "5000",  # Flower keeps every task in memory
    "FLOWER_PURGE_OFFLINE_WORKERS": "86400",  # and every worker that ever was, unless told otherwise
    "FLOWER_READ_ONLY": "true",
    "FLOWER_TASKS_COLUMNS": "name,uuid,state,kwargs,received,runtime,worker",
}
# neither `scheduled` nor `reserved`: those two would bring whole requests, sources included, and are always empty here
INSPECTED = ("stats", "active_queues", "registered", "active", "revoked", "conf")


class SpecGenBroker:
    """What Flower's broker page asks."""

    def __init__(self, redis_url: str, keys: Keys, iteration_workers: int) -> None:
        self._url, self._keys, self._iteration_workers = redis_url, keys, iteration_workers

    async def queues(self, names: Iterable[str]) -> list[dict[str, str | int]]:
        """Of each queue: how many messages wait, how many are delivered and not acknowledged, how many workers
        consume it (for a queue that is none of ours, only those waiting)."""
        async with redis.asyncio.Redis.from_url(self._url, decode_responses=True) as client:
            answer: Any = await client.eval(script("queues"), 0, *self._keys.args(UNACKED_INDEX, *sorted(names)))
        return [self._row(*row) for row in answer]

    def _row(self, name: str, ready: int, unacknowledged: int, consumers: int) -> dict[str, str | int]:
        row: dict[str, str | int] = {"name": name, "messages": ready + unacknowledged, "messages_ready": ready}
        if name in TICKET_QUEUES:
            row["messages_unacknowledged"] = unacknowledged
            row["consumers"] = self._iteration_workers if name == ITERATIONS else consumers
        return row


def _broker(self: Any) -> SpecGenBroker:
    settings = get_settings()
    workers = self.application.events.state.alive_workers()
    alive = sum(worker.hostname.startswith(ITERATION_WORKERS) for worker in workers)
    return SpecGenBroker(settings.redis, Keys(settings.prefix, settings.pool.order), alive)


def _queue_names(self: Any) -> list[str]:
    """All of ours, consumed by someone just now or not."""
    return sorted({*TICKET_QUEUES, *_flowers_queue_names(self)})


async def _worker_page(self: Any, name: str) -> None:
    """A worker's page: Flower shows what it knew when it last asked; subscriptions and tasks change by the second."""
    for method in ("active_queues", "active"):
        self.application.workers.get(name, {}).pop(method, None)
    await _flowers_worker_page(self, name)


_flowers_queue_names = BaseHandler.get_active_queue_names
_flowers_worker_page = WorkerView.get


def install() -> None:
    """Put these parts into Flower, which has no hooks for them."""
    BaseHandler.get_broker = _broker  # type: ignore[method-assign]
    BaseHandler.get_active_queue_names = _queue_names  # type: ignore[method-assign]
    WorkerView.get = _worker_page  # type: ignore[method-assign]
    Inspector.inspect_methods = INSPECTED  # type: ignore[assignment]
    Inspector.task_inspect_methods = ("active", "revoked")  # type: ignore[assignment]


def main() -> None:
    """Run until a signal."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    address = os.environ["FLOWER_ADDRESS"]
    if address not in LOOPBACK and not os.environ.get("FLOWER_BASIC_AUTH"):
        raise SettingsError(
            f"the dashboard would be open to everyone who reaches {address}", "set FLOWER_BASIC_AUTH=name:password"
        )
    install()
    app = Celery("specgen")  # no task modules: the dashboard needs neither LLM keys nor the database
    app.config_from_object("celeryconfig")
    app.conf.broker_pool_limit = 0  # a fresh connection each time: a restart of Redis leaves no stale ones behind
    try:
        app.start(["flower"])
    except OSError as exc:
        where = f"{address}:{os.environ.get('FLOWER_PORT', '5555')}"
        raise EnvironmentLacking(
            f"the dashboard cannot serve at {where}: {exc.strerror or exc}", "choose another --port"
        ) from exc


if __name__ == "__main__":
    from specgen.cli.main import report
    from specgen.errors import SpecGenError

    try:
        main()
    except SpecGenError as error:
        sys.exit(report(error))
