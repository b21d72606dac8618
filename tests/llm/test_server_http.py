"""The model server over real HTTP, through the official client, as SpecGen uses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from specgen.llm.hosting import running
from specgen.llm.server import ServerConfig, create_app
from specgen.llm.server_types import Chat, Piece, count_tokens
from specgen.llm.synthetic import MODEL_ID, Rates, SyntheticSource
from tests.llm.material import fork_messages, messages

FAST = ServerConfig(speed=2000.0, chunk_ms=2)
SLOW = ServerConfig(speed=1.0, chunk_ms=5)
SHORT = Rates(trace_tokens_mean=600)


@dataclass
class Bench:
    """A running server and a client of it."""

    client: openai.AsyncOpenAI
    raw: httpx2.AsyncClient

    async def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.raw.get("/stats")).json()
        return answer

    async def until(self, **expected: int) -> dict[str, Any]:
        """Wait until the counters have these values; the test's time limit bounds it."""
        while True:
            stats = await self.stats()
            if all(stats[name] == value for name, value in expected.items()):
                return stats
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def bench(config: ServerConfig = FAST, source: Any = None, key: str = "none") -> AsyncIterator[Bench]:
    app = create_app(source or SyntheticSource(seed=1, rates=SHORT), config)
    async with running(app) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            async with httpx2.AsyncClient(base_url=url.removesuffix("/v1"), timeout=30) as raw:
                yield Bench(client, raw)


def with_bench(test: Callable[[Bench], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with bench(**options) as it:
            await test(it)

    asyncio.run(asyncio.wait_for(body(), 60))


async def collect(stream: Any) -> tuple[str, str, list[str], Any, str | None]:
    """(reasoning, content, order of kinds, usage, finish reason)"""
    said = {"reasoning": "", "content": ""}
    order: list[str] = []
    usage, finish = None, None
    async with stream:
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                thought = (choice.delta.model_extra or {}).get("reasoning_content")
                for kind, text in (("reasoning", thought), ("content", choice.delta.content)):
                    if text:
                        said[kind] += text
                        order.append(kind)
    return said["reasoning"], said["content"], order, usage, finish


def ask(it: Bench, said: Any = None, **options: Any) -> Any:
    defaults: dict[str, Any] = {"model": MODEL_ID, "seed": 5, "stream": True, "stream_options": {"include_usage": True}}
    return it.client.chat.completions.create(messages=said or messages("T4"), **(defaults | options))


def test_reasoning_comes_before_content_and_usage_last() -> None:
    async def body(it: Bench) -> None:
        reasoning, content, order, usage, finish = await collect(await ask(it))
        assert order == sorted(order, reverse=True)
        assert "```python" in content
        assert finish == "stop"
        assert usage.completion_tokens_details.reasoning_tokens == count_tokens(reasoning)
        assert usage.completion_tokens == count_tokens(reasoning) + count_tokens(content)

    with_bench(body)


def test_streamed_and_whole_answers_are_the_same_text() -> None:
    async def body(it: Bench) -> None:
        reasoning, content, *_ = await collect(await ask(it))
        whole = await it.client.chat.completions.create(model=MODEL_ID, messages=messages("T4"), seed=5)
        message = whole.choices[0].message
        assert (message.model_extra or {})["reasoning_content"] == reasoning
        assert message.content == content

    with_bench(body)


def test_a_fork_answers_content_only_and_continues_the_opened_block() -> None:
    async def body(it: Bench) -> None:
        reasoning, *_ = await collect(await ask(it))
        prefix = reasoning[: int(len(reasoning) * 0.8)]
        forked, content, *_ = await collect(await ask(it, fork_messages("T4", prefix), stop=["```"]))
        assert forked == ""
        assert content.startswith("# design: task=T4 ")
        assert "```" not in content

    source = SyntheticSource(seed=1, rates=Rates(trace_tokens_mean=600, valid_easy=1.0))
    with_bench(body, source=source)


def test_a_fork_finds_prompt_and_prefix_in_the_cache_while_the_main_still_runs() -> None:
    async def body(it: Bench) -> None:
        prefix = ""
        async with await ask(it) as main:
            async for chunk in main:
                prefix += (chunk.choices[0].delta.model_extra or {}).get("reasoning_content") or ""
                if len(prefix) > 800:
                    break
            *_, usage, _ = await collect(await ask(it, fork_messages("T4", prefix), max_tokens=8))
        cached = usage.prompt_tokens_details.cached_tokens
        assert usage.prompt_tokens - 40 <= cached < usage.prompt_tokens

    with_bench(body, config=ServerConfig(speed=30, chunk_ms=2))


def test_an_unseen_prefix_is_read_anew() -> None:
    async def body(it: Bench) -> None:
        *_, first, _ = await collect(await ask(it, max_tokens=4))
        *_, fork, _ = await collect(await ask(it, fork_messages("T4", "Something else. " * 200), max_tokens=4))
        assert first.prompt_tokens_details.cached_tokens == 0
        assert 0 < fork.prompt_tokens_details.cached_tokens <= first.prompt_tokens

    with_bench(body)


def test_closing_a_stream_ends_its_generation() -> None:
    async def body(it: Bench) -> None:
        async with await ask(it) as stream:
            async for _ in stream:
                break
            assert (await it.stats())["running"] == 1
        stats = await it.until(running=0, cancelled=1)
        assert stats["finished"] == 0
        later = await it.stats()
        assert later["tokens"] == stats["tokens"]

    with_bench(body, config=SLOW)


def test_closing_a_connection_ends_a_generation_that_has_said_nothing_yet() -> None:
    """A slow prefill: nothing is being sent, so only watching the connection can tell."""

    async def body(it: Bench) -> None:
        async def never_answered() -> None:
            await ask(it, stream=False, stream_options=openai.omit)

        request = asyncio.create_task(never_answered())
        await it.until(running=1)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        await it.until(running=0, cancelled=1)

    with_bench(body, config=ServerConfig(prefill_tokens_per_s=0.1))


def test_n_gives_distinct_choices_that_share_the_prompt() -> None:
    async def body(it: Bench) -> None:
        answer = await it.client.chat.completions.create(model=MODEL_ID, messages=messages("T4"), seed=5, n=3)
        texts = [choice.message.content for choice in answer.choices]
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert len(set(texts)) == 3
        stats = await it.stats()
        assert answer.usage is not None
        assert stats["tokens"]["prompt"] == answer.usage.prompt_tokens
        assert stats["mains"] == 3

    with_bench(body)


def test_max_tokens_cuts_and_says_so() -> None:
    async def body(it: Bench) -> None:
        reasoning, content, _, usage, finish = await collect(await ask(it, max_tokens=50))
        assert finish == "length"
        assert usage.completion_tokens == count_tokens(reasoning) == 50
        assert content == ""

    with_bench(body)


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    async def body(it: Bench) -> None:
        first = await collect(await ask(it, seed=5))
        again = await collect(await ask(it, seed=5))
        other = await collect(await ask(it, seed=6))
        assert first[:2] == again[:2]
        assert first[0] != other[0]

    with_bench(body)


def test_the_books_agree_after_fifty_streams_together() -> None:
    async def body(it: Bench) -> None:
        answers = await asyncio.gather(*[collect(await ask(it, seed=seed)) for seed in range(50)])
        stats = await it.until(running=0, finished=50)
        usages = [answer[3] for answer in answers]
        assert 10 < stats["running_peak"] <= 50  # how many meet depends on how fast they start
        assert stats["tokens"] == {
            "prompt": sum(usage.prompt_tokens for usage in usages),
            "cached": sum(usage.prompt_tokens_details.cached_tokens for usage in usages),
            "reasoning": sum(usage.completion_tokens_details.reasoning_tokens for usage in usages),
            "completion": sum(usage.completion_tokens for usage in usages),
        }

    with_bench(body, config=ServerConfig(speed=6, chunk_ms=5))


def test_a_failing_source_is_a_500_and_the_server_goes_on() -> None:
    class Failing:
        model_id = MODEL_ID

        def answer(self, chat: Chat) -> list[Piece]:
            if chat.seed == 1:
                raise RuntimeError("no words today")
            return [Piece("content", "fine")]

    async def body(it: Bench) -> None:
        with contextlib.suppress(openai.InternalServerError):
            await ask(it, seed=1)
            raise AssertionError("the failure was hidden")
        assert (await collect(await ask(it, seed=2)))[1] == "fine"
        assert (await it.stats())["failed"] == 1

    with_bench(body, source=Failing())
