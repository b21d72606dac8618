"""Chat templates are asked what they keep; forks by token ids are exact where a template drops reasoning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specgen.llm import Capabilities, OpenAICompatible, connect, detect
from specgen.llm.dialects import PREFILL
from specgen.settings import ModelProfile
from specgen.types import Prompt
from tests.llm.scripted_server import DONE, Pause, ScriptedServer, Status, Step, chunk, piece
from tests.llm.test_client import _server
from tests.llm.test_client import server as fresh_server

__all__ = ["_server"]  # a fixture

PROMPT = Prompt("", "Go.")
CLOSE = "\n</think>\n\n" + PREFILL
HEAD = (
    "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}{% if MARK %}/nothink{% endif %}</u>"
    "{% else %}<a>{% if KEEP %}<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ m.content }}</a>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<a>OPEN{% endif %}"
)


def template(*, keep: str = "true", mark: str = "false", opened: str = "<think>\n") -> str:
    return HEAD.replace("KEEP", keep).replace("MARK", mark).replace("OPEN", opened)


@pytest.fixture
def server(_server: ScriptedServer) -> ScriptedServer:
    state: ScriptedServer = fresh_server.__wrapped__(_server)  # type: ignore[attr-defined]
    state.template, state.slots = "", []
    return state


def owned(server: ScriptedServer, owner: str) -> None:
    server.models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}


def seen(server: ScriptedServer, text: str, owner: str = "vllm", **changes: Any) -> Capabilities:
    owned(server, owner)
    server.template = text
    return asyncio.run(detect(ModelProfile(base_url=server.url, **changes)))


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_a_template_that_keeps_reasoning(server: ScriptedServer, owner: str) -> None:
    found = seen(server, template(), owner)
    assert (found.dialect, found.can_fork, found.thinking_off, found.opened) == (owner, True, False, True)


def test_a_template_that_leaves_the_opening_to_the_model(server: ScriptedServer) -> None:
    found = seen(server, template(opened=""))
    assert (found.dialect, found.thinking_off, found.opened) == ("vllm", False, False)


def test_a_template_that_keeps_it_only_with_thinking_off(server: ScriptedServer) -> None:
    found = seen(server, template(keep="enable_thinking is defined and not enable_thinking"))
    assert (found.dialect, found.thinking_off) == ("vllm", True)


@pytest.mark.parametrize("text", [template(keep="false"), template(keep="true", mark="not add_generation_prompt")])
@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_a_template_that_loses_the_prefix_is_gone_around(server: ScriptedServer, text: str, owner: str) -> None:
    found = seen(server, text, owner)
    assert (found.dialect, found.can_fork) == ("completions", True)
    told = seen(server, text, owner, dialect=owner)
    assert not told.can_fork
    assert "completions" in told.why_not


def test_a_server_that_does_not_render_is_believed(server: ScriptedServer) -> None:
    owned(server, "vllm")
    found = asyncio.run(detect(ModelProfile(base_url=server.url)))
    assert (found.dialect, found.can_fork) == ("vllm", True)
    told = asyncio.run(detect(ModelProfile(base_url=server.url, dialect="completions")))
    assert not told.can_fork


def test_completions_need_a_server_that_tells_ids(server: ScriptedServer) -> None:
    found = seen(server, template(), owner="acme", dialect="completions")
    assert "acme" in found.why_not


# ----------------------------------------------------------------------------------------------------- by ids


def text_of(body: dict[str, Any]) -> str:
    return "".join(map(chr, body["prompt"]))


async def by_ids(server: ScriptedServer, owner: str, main: list[Step], cut: int, **changes: Any) -> str:
    """The prompt of a fork at ``cut`` characters of the reasoning, after a main generation."""
    owned(server, owner)
    server.template = server.template or template(keep="false")
    server.scripts = [main, [piece("x = 1\n", [1], finish="stop"), DONE]]
    model = await connect(ModelProfile(base_url=server.url, **changes))
    async with model.main(PROMPT, seed=1, max_tokens=9) as stream:
        got = [delta async for delta in stream]
    reasoning = "".join(delta.text for delta in got if delta.kind == "reasoning")
    async with model.fork(PROMPT, reasoning[:cut], seed=2, max_tokens=9) as fork:
        assert [delta.text async for delta in fork] == ["x = 1\n"]
    await model.aclose()
    return text_of(server.bodies[-1])


P = "<u>Go.</u><a><think>\n"


def test_a_fork_is_the_ids_that_were_given(server: ScriptedServer) -> None:
    """The server's ids are other ones (capitals) than its tokenizer would give for the same text."""
    main: list[Step] = [
        piece("tile ", [ord("T")]),
        piece("of ", [ord("O")]),
        piece("64", [ord("N")]),
        piece("</think>"),
    ]
    got = asyncio.run(by_ids(server, "vllm", [*main, piece("k", [7], finish="stop"), DONE], 8))
    assert got == P + "TO" + CLOSE
    assert server.bodies[0]["return_token_ids"] is True
    assert text_of(server.bodies[0]) == P


def test_a_prefix_between_two_chunks_is_tokenised_from_the_last_sure_place(server: ScriptedServer) -> None:
    main: list[Step] = [piece("tile ", [84]), piece("of six", [79, 80]), piece("ty", [81])]
    main += [piece("", finish="stop"), DONE]
    assert asyncio.run(by_ids(server, "vllm", main, 6)) == P + "T" + "o" + CLOSE  # in the middle of a chunk
    server.bodies.clear()
    assert asyncio.run(by_ids(server, "vllm", main, 11)) == P + "T" + "of six" + CLOSE  # "OP" is not that text
    server.bodies.clear()
    assert asyncio.run(by_ids(server, "vllm", main, 13)) == P + "TOPQ" + CLOSE


def test_a_chunk_of_several_ids_is_checked(server: ScriptedServer) -> None:
    main: list[Step] = [piece("tile ", [84]), piece("of", [111, 102]), piece("ab", [97, 98])]
    main += [piece("", finish="stop"), DONE]
    assert asyncio.run(by_ids(server, "vllm", main, 9)) == P + "Tofab" + CLOSE


def test_a_prefix_that_goes_on_otherwise_shares_what_it_can(server: ScriptedServer) -> None:
    async def ask() -> str:
        server.template = template(keep="false")
        owned(server, "vllm")
        server.scripts = [[piece("tile ", [84]), piece("of", [85], finish="stop"), DONE], [piece("x", [1]), DONE]]
        model = await connect(ModelProfile(base_url=server.url))
        async with model.main(PROMPT, seed=1, max_tokens=9) as stream:
            assert len([delta async for delta in stream]) == 2
        async with model.fork(PROMPT, "tile or", seed=1, max_tokens=9):
            pass
        await model.aclose()
        return text_of(server.bodies[-1])

    assert asyncio.run(ask()) == P + "Tor" + CLOSE


def test_ids_whose_text_comes_later(server: ScriptedServer) -> None:
    """vLLM holds back a character until its last token."""
    main: list[Step] = [piece("a", [65]), piece("", [66]), piece("→", [67]), piece("", finish="stop"), DONE]
    assert asyncio.run(by_ids(server, "vllm", main, 1)) == P + "A" + CLOSE
    server.bodies.clear()
    assert asyncio.run(by_ids(server, "vllm", main, 2)) == P + "ABC" + CLOSE


def test_ids_that_llamacpp_keeps_to_itself(server: ScriptedServer) -> None:
    def told(text: str, ids: list[int], made: int) -> Step:
        return piece(text, __verbose={"tokens": ids, "tokens_predicted": made})

    main = [told("a", [65], 1), told("→", [67], 3), told("b", [66], 4), piece("", finish="stop"), DONE]
    assert asyncio.run(by_ids(server, "llamacpp", main, 3)) == P + "A→B" + CLOSE
    assert server.bodies[0]["verbose"] is True


def test_the_opening_that_the_model_wrote_is_part_of_the_prefix(server: ScriptedServer) -> None:
    server.template = template(keep="false", opened="")
    main: list[Step] = [piece("<think>", [88]), piece("a", [65]), piece("b", [66]), piece("", finish="stop"), DONE]
    assert asyncio.run(by_ids(server, "vllm", main, 1)) == "<u>Go.</u><a>" + "XA" + CLOSE


def test_a_prefix_that_this_client_has_not_seen_is_tokenised(server: ScriptedServer) -> None:
    """As after a worker's restart."""

    async def fork(opened: str) -> str:
        owned(server, "vllm")
        server.template = template(keep="false", opened=opened)
        server.scripts = [[piece("x", [1], finish="stop"), DONE]]
        model = await connect(ModelProfile(base_url=server.url))
        async with model.fork(PROMPT, "six\n", seed=2, max_tokens=9) as stream:
            assert [delta.kind async for delta in stream] == ["content"]
        await model.aclose()
        return text_of(server.bodies[-1])

    assert asyncio.run(fork("<think>\n")) == P + "six" + CLOSE
    assert asyncio.run(fork("")) == "<u>Go.</u><a><think>six" + CLOSE


# ----------------------------------------------------------------------------------------------------- streams


def test_llamacpp_repeats_the_reasoning_of_a_fork(server: ScriptedServer) -> None:
    answer: list[Step] = [
        chunk(reasoning_content="six\n"),
        chunk(content=PREFILL + "x = 1"),
        chunk(finish="stop"),
        DONE,
    ]

    async def fork() -> list[tuple[str, str]]:
        server.scripts = [answer]
        model = OpenAICompatible(ModelProfile(base_url=server.url), Capabilities("llamacpp", "m", server="llamacpp"))
        async with model.fork(PROMPT, "six\n", seed=2, max_tokens=9) as stream:
            got = [(delta.kind, delta.text) async for delta in stream]
        await model.aclose()
        return got

    assert asyncio.run(fork()) == [("content", "x = 1")]


def test_content_begins_inside_an_opened_block(server: ScriptedServer) -> None:
    """A server whose template opens <think>, started without a reasoning parser."""

    async def main(first: Step) -> list[tuple[str, str]]:
        server.scripts = [[first, chunk(content="</think>\n\nk"), chunk(finish="stop"), DONE]]
        model = OpenAICompatible(ModelProfile(base_url=server.url), Capabilities("vllm", "m", opened=True))
        async with model.main(PROMPT, seed=2, max_tokens=9) as stream:
            got = [(delta.kind, delta.text) async for delta in stream]
        await model.aclose()
        return got

    assert asyncio.run(main(chunk(content="six"))) == [("reasoning", "six"), ("content", "k")]


def test_a_closed_stream_keeps_the_figures_that_came_with_its_chunks(server: ScriptedServer) -> None:
    def told(text: str, made: int) -> Step:
        return {**chunk(content=text), "usage": {"prompt_tokens": 40, "completion_tokens": made}}

    timed = {**chunk(content="c"), "timings": {"cache_n": 30, "prompt_n": 10, "predicted_n": 5}}

    async def leave(steps: list[Step], owner: str) -> tuple[int, int, int, bool]:
        server.scripts = [[*steps, Pause(5)]]
        model = OpenAICompatible(ModelProfile(base_url=server.url), Capabilities("vllm", "m", server=owner))
        async with model.main(PROMPT, seed=2, max_tokens=9) as stream:
            async for delta in stream:
                if delta.text.endswith("c"):
                    break
        usage = stream.usage
        await model.aclose()
        return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reported

    assert asyncio.run(leave([told("a", 1), told("c", 3)], "vllm")) == (40, 0, 3, True)
    assert server.bodies[0]["stream_options"]["continuous_usage_stats"] is True
    assert asyncio.run(leave([timed], "llamacpp")) == (40, 30, 5, True)
    assert server.bodies[1]["timings_per_token"] is True


def test_more_fields_of_every_request(server: ScriptedServer) -> None:
    async def ask() -> None:
        server.scripts = [[chunk(content="x", finish="stop"), DONE]] * 2
        extra = {"chat_template_kwargs": {"a": 1}, "provider": {"order": ["x"]}}
        profile = ModelProfile(base_url=server.url, extra_body=extra)
        model = OpenAICompatible(profile, Capabilities("vllm", "m", thinking_off=True))
        async with model.main(PROMPT, seed=1, max_tokens=9):
            pass
        async with model.fork(PROMPT, "six", seed=1, max_tokens=9):
            pass
        await model.aclose()

    asyncio.run(ask())
    assert [body["provider"] for body in server.bodies] == [{"order": ["x"]}] * 2
    assert server.bodies[0]["chat_template_kwargs"] == {"a": 1}
    assert server.bodies[1]["chat_template_kwargs"] == {"a": 1, "enable_thinking": False}


# ----------------------------------------------------------------------------------------------------- n: K


def choice(index: int, text: str, finish: str | None = None) -> Step:
    made = chunk(content=text, finish=finish)
    made["choices"][0]["index"] = index
    return made


def usage(made: int) -> Step:
    return {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": made}}


async def together(server: ScriptedServer, scripts: list[Any], seeds: list[int], free: int) -> list[Any]:
    server.slots = [{"is_processing": False}] * free + [{"is_processing": True}]
    server.scripts = scripts
    profile = ModelProfile(base_url=server.url, retries=0)
    model = OpenAICompatible(profile, Capabilities("llamacpp", "m", server="llamacpp"))

    async def fork(seed: int) -> tuple[str, int]:
        async with model.fork(PROMPT, "six", seed=seed, max_tokens=9) as stream:
            text = "".join([delta.text async for delta in stream])
        return text, stream.usage.completion_tokens

    got = await asyncio.gather(*(fork(seed) for seed in seeds), return_exceptions=True)
    await model.aclose()
    return got


def test_k_forks_are_one_request(server: ScriptedServer) -> None:
    steps = [choice(1, "b"), choice(0, "a"), choice(1, "B", "stop"), usage(2), choice(0, "A", "stop"), usage(3), DONE]
    got = asyncio.run(together(server, [steps], [8, 7], free=3))
    assert got == [("bB", 2), ("aA", 3)]  # the j-th of n: K has seed + j
    (body,) = server.bodies
    assert (body["n"], body["seed"]) == (2, 7)


def test_forks_beyond_the_free_slots_go_alone(server: ScriptedServer) -> None:
    alone: list[Step] = [choice(0, "x", "stop"), DONE]
    got = asyncio.run(together(server, [alone] * 2, [7, 8], free=1))
    assert got == [("x", 1), ("x", 1)]
    assert sorted(body["seed"] for body in server.bodies) == [7, 8]


def test_a_refused_shared_request_fails_each_of_its_forks(server: ScriptedServer) -> None:
    got = asyncio.run(together(server, [Status(400)], [7, 8], free=3))
    assert [type(error).__name__ for error in got] == ["ModelAccessError"] * 2


def test_the_last_fork_to_leave_closes_the_shared_request(server: ScriptedServer) -> None:
    async def leave() -> None:
        server.slots = [{"is_processing": False}] * 3
        server.scripts = [[choice(0, "a"), choice(1, "b"), Pause(0.3), choice(1, "c"), Pause(30)]]
        model = OpenAICompatible(ModelProfile(base_url=server.url), Capabilities("llamacpp", "m", server="llamacpp"))

        async def first() -> None:
            async with model.fork(PROMPT, "six", seed=1, max_tokens=9):
                pass

        async def second() -> None:
            async with model.fork(PROMPT, "six", seed=2, max_tokens=9) as stream:
                async for delta in stream:
                    assert not server.left.is_set()
                    if delta.text == "c":
                        return

        await asyncio.gather(first(), second())
        assert await asyncio.to_thread(server.left.wait, 5)
        await model.aclose()

    asyncio.run(leave())
    assert len(server.bodies) == 1
