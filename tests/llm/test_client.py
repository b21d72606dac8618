"""The client against a real HTTP server that behaves as LLM servers do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from specgen.errors import ModelAccessError, ModelUnavailable
from specgen.llm import Capabilities, OpenAICompatible
from specgen.llm.base import Dialect
from specgen.llm.generation import Generation
from specgen.settings import ModelProfile
from specgen.types import Delta, Prompt, Usage
from tests.llm.scripted_server import (
    DONE,
    Break,
    Pause,
    Raw,
    Script,
    ScriptedServer,
    Status,
    Step,
    chunk,
    last,
    scripted_server,
)

PROMPT = Prompt("You write kernels.", "Make it fast.")
KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="module")
def _server() -> Iterator[ScriptedServer]:
    with scripted_server() as state:
        yield state


@pytest.fixture
def server(_server: ScriptedServer) -> ScriptedServer:
    _server.scripts, _server.bodies, _server.key, _server.left_at = [], [], "", 0.0
    _server.started.clear()
    _server.left.clear()
    return _server


def profile(server: ScriptedServer, **changes: object) -> ModelProfile:
    given = {"base_url": server.url, "model": "m", "api_key": SecretStr(KEY), "retries": 2, **changes}
    return ModelProfile.model_validate(given)


class Received:
    """What one generation gave."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.finish_reason = ""
        self.usage = Usage()

    def text(self, kind: str) -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)


async def generate(server: ScriptedServer, *, fork: str | None = None, dialect: Dialect = "vllm", **changes: object):
    model = OpenAICompatible(profile(server, **changes), Capabilities(dialect, "m"))
    got = Received()
    try:
        context = (
            model.main(PROMPT, seed=7, max_tokens=99)
            if fork is None
            else model.fork(PROMPT, fork, seed=7, max_tokens=99)
        )
        async with context as stream:
            try:
                async for delta in stream:
                    got.deltas.append(delta)
            finally:
                got.finish_reason, got.usage = stream.finish_reason, stream.usage
    finally:
        await model.aclose()
    return got


def run(server: ScriptedServer, *scripts: Script, **options: object) -> Received:
    server.scripts = list(scripts)
    return asyncio.run(generate(server, **options))  # type: ignore[arg-type]


ANSWER: list[Step] = [chunk(content="x = "), chunk(content="1\n", finish="stop"), DONE]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_by_either_name(server: ScriptedServer, field: str) -> None:
    got = run(server, [chunk(role="assistant"), chunk(**{field: "Let me "}), chunk(**{field: "think."}), *ANSWER])
    assert (got.text("reasoning"), got.text("content"), got.finish_reason) == ("Let me think.", "x = 1\n", "stop")
    assert [delta.kind for delta in got.deltas] == ["reasoning", "reasoning", "content", "content"]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_reasoning_inside_think_tags(server: ScriptedServer, size: int) -> None:
    text = "\n<think>\nA </thin> and <b>.\n</think>\n\nThe <think> answer."
    pieces = [chunk(content=text[at : at + size]) for at in range(0, len(text), size)]
    got = run(server, [*pieces, chunk(finish="stop"), DONE])
    assert got.text("reasoning") == "\nA </thin> and <b>.\n"
    assert got.text("content") == "The <think> answer."


def test_a_server_that_separates_reasoning_may_mention_the_tag(server: ScriptedServer) -> None:
    got = run(server, [chunk(reasoning="Hm."), chunk(content="<think> is a tag"), chunk(finish="stop"), DONE])
    assert got.text("content") == "<think> is a tag"


def test_what_is_asked_for(server: ScriptedServer) -> None:
    run(server, ANSWER)
    (body,) = server.bodies
    assert body["messages"] == [
        {"role": "system", "content": "You write kernels."},
        {"role": "user", "content": "Make it fast."},
    ]
    assert (body["seed"], body["max_tokens"], body["temperature"], body["stream"]) == (7, 99, 0.1, True)
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {"prompt_tokens_details": {"cached_tokens": 30}, "completion_tokens_details": {"reasoning_tokens": 4}},
            (30, 4),
        ),
        ({"prompt_cache_hit_tokens": 31, "prompt_cache_miss_tokens": 9}, (31, 5)),
        ({"cached_tokens": 32, "reasoning_tokens": 6}, (32, 6)),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, (0, 5)),
    ],
)
def test_usage_in_its_spellings(server: ScriptedServer, told: dict[str, object], expected: tuple[int, int]) -> None:
    usage = last(prompt_tokens=40, completion_tokens=10, total_tokens=50, **told)
    got = run(server, [chunk(reasoning="123456"), chunk(content="123456", finish="stop"), usage, DONE])
    assert got.usage == Usage(40, expected[0], expected[1], 10, reported=True)


def test_usage_of_llamacpp_and_moonshot(server: ScriptedServer) -> None:
    usage = {**last(prompt_tokens=40, completion_tokens=10), "timings": {"cache_n": 25, "prompt_n": 15}}
    assert run(server, [chunk(content="x", finish="stop"), usage, DONE]).usage.cached_tokens == 25
    inner = chunk(content="x", finish="stop")
    inner["choices"][0]["usage"] = {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2}
    assert run(server, [inner, DONE]).usage == Usage(5, 2, 0, 3, reported=True)


def test_usage_is_counted_where_the_server_tells_none(server: ScriptedServer) -> None:
    got = run(server, [chunk(reasoning="12345"), chunk(content="123", finish="stop"), DONE])
    prompt = -(-len(PROMPT.system + PROMPT.user) // 4)
    assert got.usage == Usage(prompt, 0, 2, 3, reported=False)


def test_the_token_limit(server: ScriptedServer) -> None:
    assert run(server, [chunk(content="x", finish="length"), DONE]).finish_reason == "length"
    assert run(server, [chunk(content="x", finish="content_filter"), DONE]).finish_reason == "broken"


@pytest.mark.parametrize(
    "end", [[Break()], [], [Raw("data: {not json\n\n")], [Raw('data: {"error": {"message": "oom"}}\n\n')]]
)
def test_a_stream_that_breaks_keeps_what_was_received(server: ScriptedServer, end: list[Step]) -> None:
    got = run(server, [chunk(reasoning="Half a th"), chunk(content="x"), *end])
    assert (got.text("reasoning"), got.text("content"), got.finish_reason) == ("Half a th", "x", "broken")
    assert got.usage.completion_tokens == 4
    assert not got.usage.reported
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "first", [Status(429), Status(500), Status(503), [Break()], [chunk(role="assistant"), Break()], []]
)
def test_what_fails_before_the_first_token_is_retried(server: ScriptedServer, first: Script) -> None:
    got = run(server, first, ANSWER)
    assert got.text("content") == "x = 1\n"
    assert len(server.bodies) == 2


def test_retry_after_is_heeded(server: ScriptedServer) -> None:
    before = time.monotonic()
    run(server, Status(429, headers={"retry-after": "0.7"}), ANSWER)
    assert time.monotonic() - before >= 0.7


def test_retries_end(server: ScriptedServer) -> None:
    with pytest.raises(ModelUnavailable, match="slow down"):
        run(server, *[Status(429, {"error": {"message": "slow down"}})] * 2, retries=1)
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "api_key"), (403, "api_key"), (402, "balance"), (404, "model"), (400, "dialect")]
)
def test_the_configurations_fault_is_not_retried(server: ScriptedServer, status: int, hint: str) -> None:
    with pytest.raises(ModelAccessError) as caught:
        run(server, Status(status))
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert len(server.bodies) == 1


def test_no_first_token_in_time(server: ScriptedServer) -> None:
    with pytest.raises(ModelUnavailable, match="no first token within"):
        run(server, [chunk(role="assistant"), Pause(5)], first_token_timeout_s=0.2)


def test_a_stall_between_tokens(server: ScriptedServer) -> None:
    with pytest.raises(ModelUnavailable, match="sent nothing for"):
        run(server, [chunk(content="x"), Pause(5)], token_timeout_s=0.2)
    got = run(server, [chunk(content="x", finish="stop"), Pause(5)], token_timeout_s=0.2)
    assert got.finish_reason == "stop"  # it was complete, only the usage never came


def test_slow_but_steady_is_no_stall(server: ScriptedServer) -> None:
    steps: list[Step] = []
    for letter in "kernel":
        steps += [Pause(0.1), chunk(content=letter)]
    assert run(server, [*steps, chunk(finish="stop"), DONE], token_timeout_s=0.4).text("content") == "kernel"


def test_leaving_closes_the_stream_at_the_server(server: ScriptedServer) -> None:
    server.scripts = [
        [chunk(reasoning="a"), *[step for _ in range(200) for step in (Pause(0.02), chunk(reasoning="b"))]]
    ]

    async def leave() -> tuple[Generation, float]:
        model = OpenAICompatible(profile(server), Capabilities("vllm", "m"))
        async with model.main(PROMPT, seed=1, max_tokens=9) as stream:
            async for _ in stream:
                break
        left = time.monotonic()
        await asyncio.to_thread(server.left.wait, 2)
        await model.aclose()
        return stream, server.left_at - left

    stream, seconds = asyncio.run(leave())
    assert stream.finish_reason == "cancelled"
    assert not stream.usage.reported
    assert stream.usage.reasoning_tokens == 1
    assert -0.1 < seconds < 0.1


@pytest.mark.parametrize("script", [[Pause(3)], [chunk(reasoning="a"), Pause(3)]])
def test_a_cancelled_task_closes_the_stream_too(server: ScriptedServer, script: list[Step]) -> None:
    server.scripts = [[Raw(": keep-alive\n\n"), *script]]

    async def cancel() -> float:
        task = asyncio.create_task(generate(server))
        await asyncio.to_thread(server.started.wait, 2)
        await asyncio.sleep(0.05)
        left = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.left.wait, 2)
        return server.left_at - left

    assert 0 <= asyncio.run(cancel()) < 0.1


def test_an_unreachable_server_is_unavailable() -> None:
    gone = ScriptedServer()
    gone.url = "http://127.0.0.1:9/v1"
    with pytest.raises(ModelUnavailable, match=r"127\.0\.0\.1:9"):
        asyncio.run(generate(gone, retries=0))


def test_side_questions(server: ScriptedServer) -> None:
    server.scripts = [[chunk(reasoning="Hm."), chunk(content='{"a": 1}', finish="stop"), DONE]]

    async def ask() -> str:
        model = OpenAICompatible(profile(server), Capabilities("vllm", "m"))
        got = await model.complete(PROMPT, seed=1, max_tokens=9, schema={"type": "object"})
        await model.aclose()
        return got.text

    assert asyncio.run(ask()) == '{"a": 1}'
    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
