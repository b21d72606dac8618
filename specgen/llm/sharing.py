"""K forks of one prefix as one request with `n: K`, for llama.cpp.

There a prefix lives in the slot that computed it: K requests at once would compute it K times, one with `n: K` does it
once and copies it. The K calls of a trigger come from K tasks, so the first waits a moment for the others. Each caller
gets a stream of its own; the request is closed when the last of them has closed. Not here: other servers, which share
prefixes by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Protocol

WINDOW_S: Final = 0.02
"""How long the first of K forks waits for the others."""


class Chunks(Protocol):
    """An SDK stream, or a share of one."""

    async def __anext__(self) -> Any: ...

    async def close(self) -> None:
        """Close it at the server."""


Send = Callable[[int, int], Awaitable[Chunks]]  # (seed, n) -> the stream


class Share:
    """One fork's part of a shared stream."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        self.group: Group | None = None
        self._chunks: asyncio.Queue[Any] = asyncio.Queue()

    def give(self, chunk: Any) -> None:
        """A chunk, or the exception that ended the stream."""
        self._chunks.put_nowait(chunk)

    async def __anext__(self) -> Any:
        chunk = await self._chunks.get()
        if isinstance(chunk, BaseException):
            self._chunks.put_nowait(chunk)  # it ends every later wait too
            raise chunk
        return chunk

    async def close(self) -> None:
        """Leave the request; the last one closes it."""
        self.closed = True
        if self.group is not None:
            await self.group.left()


class Group:
    """The shares of one request, and the task that sends it and deals its chunks out."""

    def __init__(self, shares: list[Share], send: Send) -> None:
        self._shares = shares
        for share in shares:
            share.group = self
        self.task = asyncio.create_task(self._run(send))

    async def left(self) -> None:
        """A share closed. After the last one the request is closed too when this returns."""
        if all(share.closed for share in self._shares):
            self.task.cancel()
            await asyncio.wait({self.task})

    async def _run(self, send: Send) -> None:
        try:
            chunks = await send(self._shares[0].seed, len(self._shares))
        except Exception as exc:
            for share in self._shares:
                if not share.opened.done() and not share.closed:
                    share.opened.set_exception(exc)
            return
        try:
            for share in self._shares:
                if not share.opened.done():
                    share.opened.set_result(None)
            await self._deal(chunks)
        finally:
            await chunks.close()

    async def _deal(self, chunks: Chunks) -> None:
        """Each chunk to the share of its choice; one without a choice (the usage) to the share that ended last."""
        last = 0
        try:
            while True:
                chunk = await chunks.__anext__()
                for choice in chunk.choices or ():
                    last = min(choice.index, len(self._shares) - 1)
                self._shares[last].give(chunk)
        except Exception as exc:  # the end too: StopAsyncIteration
            for share in self._shares:
                share.give(exc)


class Sharing:
    """Requests that wait for company. ``free`` tells how many slots the server has free now."""

    def __init__(self, free: Callable[[], Awaitable[int]]) -> None:
        self._free = free
        self._waiting: dict[Hashable, list[Share]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def open(self, key: Hashable, seed: int, send: Send) -> Chunks:
        """The stream of one fork. ``key``: what must be equal to share. Raises what ``send`` raises."""
        share = Share(seed)
        company = self._waiting.setdefault(key, [])
        company.append(share)
        if len(company) == 1:
            self._keep(asyncio.create_task(self._depart(key, send)))
        try:
            await share.opened
        except BaseException:
            await share.close()
            raise
        return share

    async def _depart(self, key: Hashable, send: Send) -> None:
        await asyncio.sleep(WINDOW_S)
        company = self._waiting.pop(key)
        present = sum(not share.closed for share in company)
        most = await self._free() if present > 1 else 1
        for group in grouped([share for share in company if not share.closed], max(1, most)):
            self._keep(Group(group, send).task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def grouped(company: list[Share], most: int) -> list[list[Share]]:
    """Those that may share: at most ``most``, with consecutive seeds (the server gives the j-th of n: K seed + j)."""
    groups: list[list[Share]] = []
    for share in sorted(company, key=lambda share: share.seed):
        if groups and len(groups[-1]) < most and groups[-1][-1].seed + 1 == share.seed:
            groups[-1].append(share)
        else:
            groups.append([share])
    return groups
