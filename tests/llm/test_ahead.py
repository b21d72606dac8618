"""The first of K forks goes ahead where a provider caches a prefix only once it has been read."""

from __future__ import annotations

import asyncio
import time

import pytest

from specgen.errors import ModelAccessError
from specgen.llm import Capabilities, OpenAICompatible
from specgen.llm.ahead import Ahead
from specgen.llm.base import Dialect
from tests.llm.scripted_server import DONE, Pause, Script, ScriptedServer, Status, chunk
from tests.llm.test_client import PROMPT, _server, profile, server

__all__ = ["_server", "server"]  # fixtures

ANSWER: list[Script] = [[chunk(content="import torch\n", finish="stop"), DONE]]
SLOW: Script = [Pause(0.3), chunk(content="import torch\n", finish="stop"), DONE]


async def forks(server: ScriptedServer, dialect: Dialect, **changes: object) -> list[int]:
    """Three forks of one trigger and one of another: the seeds of those that were sent at once."""
    model = OpenAICompatible(profile(server, **changes), Capabilities(dialect, "m"))

    async def one(seed: int, prefix: str) -> int:
        async with model.fork(PROMPT, prefix, seed=seed, max_tokens=9) as stream:
            assert [delta.text async for delta in stream] == ["import torch\n"]
            return seed

    first = [asyncio.create_task(one(seed, "tiles of 64")) for seed in (1, 2, 3)]
    first.append(asyncio.create_task(one(4, "tiles of 128")))
    await asyncio.sleep(0.15)
    asked = sorted(body["seed"] for body in server.bodies)
    assert sorted(await asyncio.gather(*first)) == [1, 2, 3, 4]
    await model.aclose()
    return asked


@pytest.mark.parametrize(
    ("dialect", "changes", "at_once"),
    [
        ("deepseek", {}, [1, 4]),
        ("openrouter", {}, [1, 4]),
        ("vllm", {}, [1, 2, 3, 4]),
        ("vllm", {"first_fork_ahead": True}, [1, 4]),
        ("deepseek", {"first_fork_ahead": False}, [1, 2, 3, 4]),
    ],
)
def test_the_others_wait_for_its_first_token(
    server: ScriptedServer, dialect: Dialect, changes: dict[str, object], at_once: list[int]
) -> None:
    server.scripts = [SLOW] * 4
    asked = asyncio.run(forks(server, dialect, **changes))
    assert asked == at_once
    assert sorted(body["seed"] for body in server.bodies) == [1, 2, 3, 4]


def test_one_that_is_refused_lets_the_others_go(server: ScriptedServer) -> None:
    server.scripts = [Status(400), *ANSWER, *ANSWER]

    async def play() -> list[object]:
        model = OpenAICompatible(profile(server), Capabilities("deepseek", "m"))

        async def one(seed: int) -> str:
            async with model.fork(PROMPT, "tiles", seed=seed, max_tokens=9) as stream:
                return "".join([delta.text async for delta in stream])

        told = await asyncio.gather(*(one(seed) for seed in (1, 2, 3)), return_exceptions=True)
        await model.aclose()
        return list(told)

    first, *others = asyncio.run(play())
    assert isinstance(first, ModelAccessError)
    assert others == ["import torch\n"] * 2


def test_one_that_is_cancelled_lets_the_others_go() -> None:
    async def play() -> float:
        ahead = Ahead()
        inside, done = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with ahead.turn("key"):
                inside.set()
                await asyncio.sleep(60)

        async def second() -> None:
            async with ahead.turn("key"):
                done.set()

        one = asyncio.create_task(first())
        await inside.wait()
        two = asyncio.create_task(second())
        await asyncio.sleep(0.01)
        assert not done.is_set()
        started = time.monotonic()
        one.cancel()
        await asyncio.wait_for(two, 5)
        return time.monotonic() - started

    assert asyncio.run(play()) < 5
