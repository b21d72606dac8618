"""What the tests of both servers share: generations through the client, and the server's own view of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from benchmarks.llm.servers import Server
from specgen.llm import OpenAICompatible, connect
from specgen.llm.generation import Generation
from specgen.settings import ModelProfile
from specgen.types import Prompt, Usage

LIMIT_S = 150
T = TypeVar("T")
_numbers = itertools.count()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, LIMIT_S))


def fresh(words: int = 12) -> Prompt:
    """A prompt that no server has cached."""
    number = next(_numbers)
    return Prompt(f"You write kernels, number {number}.", "Make the tiled matrix product of the device fast. " * words)


@dataclass(frozen=True)
class Got:
    """A generation that is over."""

    reasoning: str
    content: str
    usage: Usage
    finish_reason: str
    prefixes: tuple[str, ...]  # the reasoning after each delta


async def receive(context: AbstractAsyncContextManager[Generation]) -> Got:
    texts, prefixes = {"reasoning": "", "content": ""}, []
    async with context as stream:
        async for delta in stream:
            texts[delta.kind] += delta.text
            if delta.kind == "reasoning":
                prefixes.append(texts["reasoning"])
    return Got(texts["reasoning"], texts["content"], stream.usage, stream.finish_reason, tuple(prefixes))


@asynccontextmanager
async def connected(server: Server, **changes: Any) -> AsyncIterator[OpenAICompatible]:
    model = await connect(ModelProfile(base_url=server.base_url, **changes))
    try:
        yield model
    finally:
        await model.aclose()


async def until_idle(server: Server) -> None:
    """Waits until the server generates nothing; the caller limits the time.

    llama.cpp looks whether the client of a request without a first token is still there only after a second in which it
    answered nobody, so it must not be asked more often.
    """
    while await asyncio.to_thread(server.busy):
        await asyncio.sleep(1.5 if server.kind == "llamacpp" else 0.02)


async def post(server: Server, path: str, **body: Any) -> Any:
    """One request beside the client, for what the test compares with."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
        answer = await client.post(path, json=body)
        answer.raise_for_status()
        return answer.json()
