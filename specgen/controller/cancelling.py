"""Ending asyncio tasks for certain, and finishing what must not be cut off by that.

One ``cancel()`` is a request, and libraries lose it: redis-py 8.1 swallowed 20 of 200 cancellations that arrived while
it was connecting. A task that goes on is asked again until it has ended (`stop`); cleaning up therefore runs where
repeated cancellations do not reach it (`finish`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from specgen.errors import PoolUnavailable, StoreUnavailable

AGAIN_S = 0.5
LONGEST_WAIT_S = 5.0
T = TypeVar("T")


async def stop(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel and wait until every task has ended; their results and errors are the caller's to look at, who need not:
    a task that ends with an error instead of its cancellation is not reported as forgotten."""
    everything = list(tasks)
    left = {task for task in everything if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    for task in everything:
        if not task.cancelled():
            task.exception()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end however often the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and task.exception() is None:
        raise asyncio.CancelledError
    return task.result()


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Await ``call()``, again for as long as Redis or the database is away: what is running goes on meanwhile."""
    wait_s = 0.2
    while True:
        try:
            return await call()
        except (PoolUnavailable, StoreUnavailable):
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
