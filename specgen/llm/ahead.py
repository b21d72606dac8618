"""The first of K forks of a prefix goes ahead, for servers that cache a prefix only once a request has been read.

DeepSeek's service does (its documentation): K requests at once would each pay for the whole prefix. The first is sent
alone; the others follow when it has its first token, or has failed. llama.cpp has a way of its own (`sharing`); vLLM
and SGLang share what is being computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Ahead:
    """Requests that wait for the first of their kind to have begun."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, asyncio.Event] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Begin the request inside. ``key``: what must be equal for the prefix to be the same one."""
        first = self._begun.get(key)
        if first is not None:
            await first.wait()
            yield
            return
        begun = self._begun[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._begun[key]  # who comes now finds the prefix in the cache, or is the next to try
            begun.set()
