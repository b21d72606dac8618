"""Flower over this system's broker: ``python -m workers.dashboard``, or ``specgen dashboard``.

Flower knows its brokers by the URL's scheme and asks every queue for its LLEN. Ours has a scheme of its own, and the
validation queue is a sorted set: `queues` asks each key for its type first. Bound to loopback; basic auth by
``FLOWER_BASIC_AUTH=name:password``. Not persistent: Flower's state file corrupts, and history is in SQL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import flower.views
import redis.asyncio
from flower.utils.broker import Broker as FlowerBroker

from specgen.settings import get_settings
from workers.app import app

KEPT_TASKS = 5_000  # Flower keeps every task in memory


class SpecGenBroker:
    """What Flower's broker page asks: the lengths of the queues, sorted sets and lists alike."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url

    async def queues(self, names: Iterable[str]) -> list[dict[str, str | int]]:
        """Name and number of waiting messages of each queue."""
        found: list[dict[str, str | int]] = []
        async with redis.asyncio.Redis.from_url(self._url, decode_responses=True) as client:
            for name in sorted(names):
                sorted_set = await client.type(name) == "zset"
                waiting = await client.zcard(name) if sorted_set else await client.llen(name)
                found.append({"name": name, "messages": int(waiting)})
        return found


def broker(broker_url: str, *args: Any, **kwargs: Any) -> Any:
    """In place of Flower's factory: ours for our scheme, Flower's own for any other."""
    if broker_url.startswith("specgen"):
        return SpecGenBroker(get_settings().redis)
    return FlowerBroker(broker_url, *args, **kwargs)  # type: ignore[no-untyped-call]


def main() -> None:
    """Run until a signal. ``FLOWER_ADDRESS``, ``FLOWER_PORT`` and Flower's other variables hold."""
    flower.views.Broker = broker  # type: ignore[attr-defined, assignment]
    address = os.environ.get("FLOWER_ADDRESS", "127.0.0.1")
    if address not in ("127.0.0.1", "localhost", "::1") and not os.environ.get("FLOWER_BASIC_AUTH"):
        sys.exit("specgen: the dashboard beyond loopback needs FLOWER_BASIC_AUTH=name:password")
    app.start(["flower", f"--address={address}", f"--max_tasks={KEPT_TASKS}"])


if __name__ == "__main__":
    main()
