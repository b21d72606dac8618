"""Forks: what each dialect sends, and what becomes of the answer."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.controller import answers
from specgen.errors import ModelAccessError
from specgen.llm import Capabilities, OpenAICompatible, connect
from specgen.llm.dialects import FORKS, PREFILL, why_not
from specgen.llm.openai_compatible import _fork_url
from specgen.llm.splitting import PrefillStripper, ThinkSplitter
from specgen.settings import ModelProfile
from specgen.types import Prompt
from tests.llm.scripted_server import DONE, ScriptedServer, chunk
from tests.llm.test_client import PROMPT, _server, run, server

__all__ = ["_server", "server"]  # fixtures

PREFIX = "I'll use 64x64 tiles.\n"


BESIDE = {"sglang", "openrouter"}  # whose prefix goes elsewhere


@pytest.mark.parametrize("dialect", sorted(FORKS.keys() - BESIDE))
def test_every_dialect_continues_from_the_prefix(server: ScriptedServer, dialect: str) -> None:
    got = run(server, [chunk(content="import torch\n", finish="stop"), DONE], fork=PREFIX, dialect=dialect)
    assert got.text("content") == "import torch\n"
    (body,) = server.bodies
    assistant = body["messages"][-1]
    assert body["messages"][:-1][-1] == {"role": "user", "content": PROMPT.user}
    assert assistant["role"] == "assistant"
    assert assistant["content"] == PREFILL
    assert assistant["reasoning_content"] == PREFIX
    assert body["stop"] == ["\n```"]


def test_the_marks_of_each_dialect() -> None:
    prompt = Prompt("", "u")
    assert FORKS["deepseek"](prompt, PREFIX, Capabilities("deepseek", "m")).messages[-1]["prefix"] is True
    assert FORKS["deepseek"](prompt, PREFIX, Capabilities("deepseek", "m")).extra == {"thinking": {"type": "enabled"}}
    vllm = FORKS["vllm"](prompt, PREFIX, Capabilities("vllm", "m"))
    assert vllm.messages[-1]["reasoning"] == PREFIX
    assert vllm.extra == {"add_generation_prompt": False, "continue_final_message": True}
    qwen = FORKS["vllm"](prompt, PREFIX, Capabilities("vllm", "m", thinking_off=True))
    assert qwen.extra["chat_template_kwargs"] == {"enable_thinking": False}
    llamacpp = FORKS["llamacpp"](prompt, PREFIX, Capabilities("llamacpp", "m"))
    assert llamacpp.messages[0] == {"role": "user", "content": "u"}


def test_sglang_takes_the_reasoning_in_the_content_alone(server: ScriptedServer) -> None:
    """As its documentation and source have it; not tried on a server."""
    got = run(server, [chunk(reasoning="import torch\n", finish="stop"), DONE], fork=PREFIX, dialect="sglang")
    (body,) = server.bodies
    thought = "I'll use 64x64 tiles.\n</think>\n\n```python\n"
    assert body["messages"][-1] == {"role": "assistant", "content": f"<think>\n{thought}"}
    assert (body["continue_final_message"], body["separate_reasoning"]) == (True, False)
    assert got.text("content") == "import torch\n"
    opening = Capabilities("sglang", "m", opened=True)  # its template has opened <think> in P
    assert FORKS["sglang"](PROMPT, PREFIX, opening).messages[-1]["content"] == thought


def test_openrouter_takes_a_trailing_message(server: ScriptedServer) -> None:
    """As its documentation has it; not tried on the service."""
    pinned = {"provider": {"order": ["one"], "allow_fallbacks": False}}
    run(server, [chunk(content="x", finish="stop"), DONE], fork=PREFIX, dialect="openrouter", extra_body=pinned)
    (body,) = server.bodies
    assert body["messages"][-1] == {"role": "assistant", "reasoning": PREFIX, "content": PREFILL}
    assert body["provider"] == pinned["provider"]


def test_what_is_opened_is_what_the_controller_expects_to_be_opened() -> None:
    assert PREFILL == answers.PREFILL


def test_deepseek_forks_under_beta_only() -> None:
    official = ModelProfile(base_url="https://api.deepseek.com")
    assert _fork_url(official, Capabilities("deepseek", "m")) == "https://api.deepseek.com/beta"
    other = ModelProfile(base_url="https://example.org/v1")
    assert _fork_url(other, Capabilities("deepseek", "m")) == "https://example.org/v1"


@pytest.mark.parametrize("repeated", ["```python\n", "```py\n", "\n```python \n", ""])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_repeated_prefill_is_dropped(server: ScriptedServer, repeated: str, size: int) -> None:
    text = repeated + "import torch\nx = '```'\n"
    pieces = [chunk(content=text[at : at + size]) for at in range(0, len(text), size)]
    got = run(server, [*pieces, chunk(finish="stop"), DONE], fork=PREFIX, dialect="llamacpp")
    assert got.text("content") == "import torch\nx = '```'\n"


def test_vllm_may_file_the_continuation_under_reasoning(server: ScriptedServer) -> None:
    got = run(server, [chunk(reasoning="import "), chunk(reasoning="torch", finish="stop"), DONE], fork=PREFIX)
    assert (got.text("content"), got.text("reasoning")) == ("import torch", "")


def test_a_server_that_cannot_be_forked_says_so(server: ScriptedServer) -> None:
    reason = why_not("generic", "someone")
    assert "someone" in reason

    async def fork() -> None:
        profile = ModelProfile(base_url=server.url, model="m")
        model = OpenAICompatible(profile, Capabilities("generic", "m", why_not=reason))
        assert not model.can_fork
        with pytest.raises(ModelAccessError, match="someone"):
            model.fork(PROMPT, PREFIX, seed=1, max_tokens=9)
        await model.aclose()

    asyncio.run(fork())
    assert server.bodies == []


@given(st.text(alphabet="`python \nx", max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_the_stripper_does_not_depend_on_the_chunking(text: str, cuts: list[int]) -> None:
    whole = PrefillStripper()
    expected = whole.feed(text) + whole.finish()
    pieces = PrefillStripper()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    got = "".join(pieces.feed(text[a:b]) for a, b in pairwise(places)) + pieces.finish()
    assert got == expected


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "\n", " a", "b"]), max_size=8).map("".join),
    st.lists(st.integers(0, 60), max_size=6),
    st.booleans(),
)
def test_the_think_splitter_does_not_depend_on_the_chunking(text: str, cuts: list[int], thinking: bool) -> None:
    def split(pieces: list[str]) -> tuple[str, str]:
        splitter = ThinkSplitter(thinking=thinking)
        deltas = [delta for piece in pieces for delta in splitter.feed(piece)] + splitter.finish()
        kinds = ("reasoning", "content")
        reasoning, content = ("".join(d.text for d in deltas if d.kind == kind) for kind in kinds)
        return reasoning, content

    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert split([text[a:b] for a, b in pairwise(places)]) == split([text])


def test_connect_to_a_scripted_vllm(server: ScriptedServer) -> None:
    async def go() -> tuple[str, bool]:
        model = await connect(ModelProfile(base_url=server.url))
        await model.aclose()
        return model.capabilities.model, model.can_fork

    assert asyncio.run(go()) == ("m", True)
