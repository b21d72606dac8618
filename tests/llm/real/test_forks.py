"""Forks on real servers: P ⊕ π is what the server has cached, token for token, and is what the fork continues."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.llm.servers import BLOCK, Server
from specgen.llm.dialects import PREFILL, STOP
from tests.llm.real.asking import Got, connected, fresh, post, receive, run

CHAT = [
    pytest.param("vllm_server", marks=pytest.mark.vllm),
    pytest.param("llamacpp_server", marks=pytest.mark.llamacpp),
]
RAW = [
    pytest.param("vllm_dropping", marks=pytest.mark.vllm),
    pytest.param("llamacpp_dropping", marks=pytest.mark.llamacpp),
]
pytestmark = pytest.mark.timeout(600)
CLOSE = "\n</think>\n\n" + PREFILL
TOKENS = 64


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


async def closing_tokens(server: Server) -> int:
    """Tokens between π and the fork's own text."""
    field = {"content": CLOSE, "parse_special": True} if server.kind == "llamacpp" else {"prompt": CLOSE}
    return len((await post(server, "/tokenize", **field))["tokens"])


async def assert_cached(server: Server, main: Got, prefix: str, fork: Got) -> None:
    """All of P ⊕ π but the part of the last block, and the token that the closing marker may join."""
    assert fork.usage.reported
    whole = fork.usage.prompt_tokens - await closing_tokens(server)
    deltas = main.prefixes.index(prefix) + 1  # each at least one token
    assert whole >= main.usage.prompt_tokens + deltas - 2
    missed = whole - fork.usage.cached_tokens
    assert missed <= (BLOCK if server.kind == "vllm" else 3)


@pytest.mark.parametrize("server", CHAT + RAW, indirect=True)
def test_the_prefix_is_served_from_the_cache(server: Server) -> None:
    async def work() -> None:
        async with connected(server, extra_body={"ignore_eos": True}) as model:
            assert model.can_fork
            prompt = fresh()
            main = await receive(model.main(prompt, seed=1, max_tokens=TOKENS))
            assert (main.content, main.finish_reason) == ("", "length")
            for share in (0.9, 0.4):
                prefix = main.prefixes[int(len(main.prefixes) * share)]
                fork = await receive(model.fork(prompt, prefix, seed=2, max_tokens=8))
                assert fork.content
                assert fork.reasoning == ""
                assert fork.usage.reasoning_tokens == 0
                await assert_cached(server, main, prefix, fork)

    run(work())


@pytest.mark.parametrize("server", CHAT, indirect=True)
def test_what_a_fork_says_is_what_the_model_says_after_that_text(server: Server) -> None:
    """Against a raw completion of the text that a main generation and the markers make."""

    async def work() -> None:
        async with connected(server) as model:
            prompt = fresh()
            main = await receive(model.main(prompt, seed=1, max_tokens=TOKENS))
            said = set()
            for more in ("", "\nThe kernel is a function called zebra, and the first line is def zebra(stripes)."):
                prefix = main.prefixes[len(main.prefixes) // 2] + more
                fork = await receive(model.fork(prompt, prefix, seed=5, max_tokens=12))
                text = f"<|im_start|>system\n{prompt.system}<|im_end|>\n<|im_start|>user\n{prompt.user}<|im_end|>\n"
                text += "<|im_start|>assistant\n<think>\n" + prefix + CLOSE
                body = {"prompt": text, "seed": 5, "max_tokens": 12, "temperature": 0.1, "stop": [STOP]}
                raw = await post(server, "/v1/completions", model=model.capabilities.model, **body)
                assert fork.content == raw["choices"][0]["text"]
                said.add(fork.content)
            assert len(said) == 2, "it must depend on the prefix, or equality proves nothing"

    run(work())


@pytest.mark.parametrize("server", CHAT + RAW, indirect=True)
def test_forks_at_once_while_the_main_generation_goes_on(server: Server) -> None:
    async def work() -> None:
        async with connected(server, temperature=0.7, extra_body={"ignore_eos": True}) as model:
            prompt, prefixes = fresh(), []
            async with model.main(prompt, seed=1, max_tokens=2000) as stream:
                async for delta in stream:
                    prefixes.append((prefixes[-1] if prefixes else "") + delta.text)
                    if len(prefixes) == TOKENS:
                        break
                before = server.counted()
                forks = (model.fork(prompt, prefixes[-1], seed=seed, max_tokens=16) for seed in (7, 8, 9))
                got = await asyncio.gather(*(receive(fork) for fork in forks))
                assert server.busy(), "the main generation still goes on"
                after = server.counted()
                partial = Got(prefixes[-1], "", stream.usage, "", tuple(prefixes))
            assert len({fork.content for fork in got}) > 1, "seeds differ"
            for fork in got:
                if server.kind == "vllm":
                    await assert_cached(server, partial, prefixes[-1], fork)
            if server.kind == "llamacpp":  # the main's slot cannot be read, but the prefix is computed once for all
                computed = (after[0] - after[1]) - (before[0] - before[1])
                assert computed <= got[0].usage.prompt_tokens

    run(work())


@pytest.mark.parametrize("server", CHAT + RAW, indirect=True)
@pytest.mark.parametrize("ending", ["\n", "\n\n", " "])
def test_a_prefix_that_ends_in_blanks(server: Server, ending: str) -> None:
    """Templates strip line ends of a given reasoning; what is cached before them must still be hit."""

    async def work() -> None:
        async with connected(server) as model:
            prompt = fresh()
            main = await receive(model.main(prompt, seed=3, max_tokens=TOKENS))
            plain = main.prefixes[int(len(main.prefixes) * 0.8)]
            fork = await receive(model.fork(prompt, plain + ending, seed=2, max_tokens=8))
            assert fork.content
            await assert_cached(server, main, plain, fork)

    run(work())


@pytest.mark.parametrize("server", RAW, indirect=True)
def test_a_template_that_drops_reasoning_is_gone_around(server: Server) -> None:
    async def work() -> None:
        async with connected(server) as model:
            assert model.capabilities.dialect == "completions"
        chat = "vllm" if server.kind == "vllm" else "llamacpp"
        async with connected(server, dialect=chat) as model:
            assert not model.can_fork
            assert "drops" in model.capabilities.why_not

    run(work())


@pytest.mark.parametrize("server", CHAT, indirect=True)
def test_the_dialect_is_found(server: Server) -> None:
    async def work() -> None:
        async with connected(server) as model:
            assert model.capabilities.dialect == server.kind
            assert model.capabilities.opened

    run(work())


@pytest.mark.vllm
@pytest.mark.parametrize("server", ["vllm_dropping"], indirect=True)
def test_ids_that_the_text_does_not_give_back(server: Server) -> None:
    """The model emits parts of words: tokenised again, its text is other ids. By ids the prefix is cached anyway."""

    async def work() -> None:
        async with connected(server) as model:
            prompt = fresh()
            main = await receive(model.main(prompt, seed=1, max_tokens=200))
            prefix = main.prefixes[-20]
            fork = await receive(model.fork(prompt, prefix, seed=2, max_tokens=8))
            again = (await post(server, "/tokenize", prompt=prefix + CLOSE))["tokens"]
            assert len(again) != fork.usage.prompt_tokens - main.usage.prompt_tokens
            await assert_cached(server, main, prefix, fork)

    run(work())


@pytest.mark.llamacpp
@pytest.mark.parametrize("server", ["llamacpp_dropping"], indirect=True)
def test_characters_of_several_tokens(server: Server) -> None:
    """llama.cpp tells only the last id of such a character. These have one tokenisation: a token for each byte."""

    async def work() -> None:
        grammar = {"grammar": 'root ::= ("⊕" | " tile" | "☃"){80}'}
        prompt = fresh()
        async with connected(server, extra_body=grammar) as model:
            main = await receive(model.main(prompt, seed=1, max_tokens=60))
            assert not main.reasoning.isascii()
            prefix = main.prefixes[-4]
            fork = await receive(model.fork(prompt, prefix, seed=2, max_tokens=8))
            await assert_cached(server, main, prefix, fork)

    run(work())
