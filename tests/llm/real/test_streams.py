"""Streams of real servers: reasoning and content, figures, and that closing one ends the generation."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from benchmarks.llm import servers
from benchmarks.llm.servers import Server
from specgen.errors import ModelUnavailable
from specgen.types import Usage
from tests.llm.real.asking import connected, fresh, receive, run, until_idle

ALL = [
    pytest.param("vllm_server", marks=pytest.mark.vllm),
    pytest.param("vllm_dropping", marks=pytest.mark.vllm),
    pytest.param("llamacpp_server", marks=pytest.mark.llamacpp),
    pytest.param("llamacpp_dropping", marks=pytest.mark.llamacpp),
]
pytestmark = pytest.mark.timeout(600)
ENDLESS = {"ignore_eos": True}
FREED_S = 15  # generous; the generations that are closed would go on for far longer
GRAMMAR = r'root ::= "The tile is " [a-z ]{30,60} "." "\n</think>\n\n```python\nx = " [0-9]{1,3} "\n```"'


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def endless(server: Server) -> int:
    """Tokens that keep it busy for a minute or more on two cores."""
    return 14_000 if server.kind == "vllm" else 3_500


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_reasoning_is_split_from_the_answer(server: Server) -> None:
    """vLLM's `reasoning`, llama.cpp's `reasoning_content`, and text with `</think>` of raw completions of both."""

    async def work() -> None:
        ends: dict[str, Any] = {"thinking_token_budget": 30} if server.kind == "vllm" else {"grammar": GRAMMAR}
        async with connected(server, extra_body=ends) as model:
            got = await receive(model.main(fresh(), seed=1, max_tokens=120))
        assert got.reasoning.strip()
        assert got.content.strip()
        assert "think>" not in got.reasoning + got.content
        assert got.usage.reported
        assert 0 < got.usage.reasoning_tokens < got.usage.completion_tokens
        if server.kind == "llamacpp":
            assert got.reasoning.startswith("The tile is ")
            assert got.content.startswith("```python\nx = ")
            assert got.finish_reason == "stop"
        else:
            assert abs(got.usage.reasoning_tokens - 30) <= 2
            assert got.finish_reason == "length"

    run(work())


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_the_figures_add_up_to_the_servers_own(server: Server) -> None:
    async def work() -> None:
        await until_idle(server)
        before = server.counted()
        async with connected(server) as model:
            prompt, total = fresh(), Usage(reported=True)
            for seed in (1, 2):
                main = await receive(model.main(prompt, seed=seed, max_tokens=30))
                forks = [model.fork(prompt, main.prefixes[-9], seed=seed * 10 + k, max_tokens=9) for k in (1, 2)]
                for fork in forks:
                    total += (await receive(fork)).usage
                total += main.usage
        after = server.counted()
        assert total.reported
        prompts, cached, generated = (now - then for now, then in zip(after, before, strict=True))
        assert (prompts, cached, generated) == (total.prompt_tokens, total.cached_tokens, total.completion_tokens)

    run(work())


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_a_closed_stream_has_the_servers_figures(server: Server) -> None:
    async def work() -> None:
        async with connected(server, extra_body=ENDLESS) as model:
            prompt = fresh()
            received = 0
            async with model.main(prompt, seed=1, max_tokens=endless(server)) as stream:
                async for _ in stream:
                    received += 1
                    if received == 20:
                        break
            usage = stream.usage
            assert stream.finish_reason == "cancelled"
            assert usage.reported
            assert usage.completion_tokens >= 20
            whole = await receive(model.main(prompt, seed=1, max_tokens=2))
            assert usage.prompt_tokens == whole.usage.prompt_tokens

    run(work())


class ConsumerFault(Exception):
    pass


async def consumer_raises(model: Any, tokens: int) -> None:
    async def generate() -> None:
        async with model.main(fresh(), seed=1, max_tokens=tokens) as stream:
            async for _ in stream:
                raise ConsumerFault

    with pytest.raises(ConsumerFault):
        await generate()


async def consumer_leaves(model: Any, tokens: int) -> None:
    async with model.main(fresh(), seed=1, max_tokens=tokens) as stream:
        async for _ in stream:
            break


async def task_cancelled(model: Any, tokens: int) -> None:
    begun = asyncio.Event()

    async def generate() -> None:
        async with model.main(fresh(), seed=1, max_tokens=tokens) as stream:
            async for _ in stream:
                begun.set()

    task = asyncio.create_task(generate())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancelled_before_the_first_token(model: Any, tokens: int) -> None:
    task = asyncio.create_task(receive(model.main(fresh(30), seed=1, max_tokens=tokens)))
    await asyncio.sleep(0.1)  # on its way, or being read by the server
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def one_of_k_forks_is_cancelled(model: Any, tokens: int) -> None:
    """And then the rest of them."""
    prompt = fresh()
    begun = [asyncio.Event() for _ in range(3)]

    async def fork(index: int) -> None:
        async with model.fork(prompt, " It is a tile", seed=5 + index, max_tokens=tokens) as stream:
            async for _ in stream:
                begun[index].set()

    tasks = [asyncio.create_task(fork(index)) for index in range(3)]
    await asyncio.gather(*(event.wait() for event in begun))
    tasks[0].cancel()
    begun[1].clear()
    await begun[1].wait()  # the others go on
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


WAYS = [consumer_raises, consumer_leaves, task_cancelled, cancelled_before_the_first_token, one_of_k_forks_is_cancelled]


@pytest.mark.parametrize("server", ALL, indirect=True)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_out_ends_the_generation(server: Server, way: Any) -> None:
    async def work() -> None:
        await until_idle(server)
        async with connected(server, extra_body=ENDLESS) as model:
            await way(model, endless(server))
            await asyncio.wait_for(until_idle(server), FREED_S)

    run(work())


@pytest.mark.parametrize("server", ALL, indirect=True)
@pytest.mark.parametrize("limit", ["first_token_timeout_s", "token_timeout_s"])
def test_a_timeout_ends_the_generation(server: Server, limit: str) -> None:
    async def work() -> None:
        await until_idle(server)
        async with connected(server, extra_body=ENDLESS, retries=0, **{limit: 1e-3}) as model:
            with pytest.raises(ModelUnavailable):
                await receive(model.main(fresh(), seed=1, max_tokens=endless(server)))
            await asyncio.wait_for(until_idle(server), FREED_S)

    run(work())


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(servers.vllm, marks=pytest.mark.vllm, id="vllm"),
        pytest.param(servers.llamacpp, marks=pytest.mark.llamacpp, id="llamacpp"),
    ],
)
def test_a_server_that_dies_gives_a_broken_stream_that_is_not_asked_for_again(start: Any) -> None:
    async def work(server: Server) -> None:
        async with connected(server, extra_body=ENDLESS, retries=3) as model:
            prompt, texts = fresh(), []
            async with model.main(prompt, seed=1, max_tokens=endless(server)) as stream:
                async for delta in stream:
                    texts.append(delta.text)
                    if len(texts) == 10:
                        server.kill()
                        asked = Listener(int(server.url.rsplit(":", 1)[1]))
            assert stream.finish_reason == "broken"
            assert len("".join(texts)) > 10
            assert stream.usage.completion_tokens >= 10
            await asyncio.sleep(1.5)  # a retry would come within half a second
            assert asked.close() == 0

    with start() as server:
        run(work(server))


class Listener:
    """Counts who connects to a port."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()
        self._socket.settimeout(0.1)
        self._count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                self._socket.accept()[0].close()
                self._count += 1
            except TimeoutError:
                continue

    def close(self) -> int:
        self._over.set()
        self._thread.join()
        self._socket.close()
        return self._count
