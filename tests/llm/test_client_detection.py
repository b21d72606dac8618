"""Is the LLM usable as configured? One line and a hint where it is not, and never the key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from specgen.errors import ModelAccessError, SpecGenError
from specgen.llm import Capabilities, OpenAICompatible, connect, detect
from specgen.llm.hosting import running
from specgen.llm.server import ServerConfig, create_app
from specgen.llm.synthetic import Rates, SyntheticSource
from specgen.settings import ModelProfile
from specgen.types import Prompt
from tests.llm.material import messages
from tests.llm.scripted_server import ScriptedServer, Status, scripted_server

KEY = "sk-very-secret-0123456789"


def models(*names: str, owner: str = "vllm") -> dict[str, object]:
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner} for name in names]}


@pytest.fixture(scope="module")
def _server() -> Iterator[ScriptedServer]:
    with scripted_server() as state:
        yield state


@pytest.fixture
def server(_server: ScriptedServer) -> ScriptedServer:
    _server.scripts, _server.bodies, _server.key = [], [], ""
    _server.models, _server.models_status = models("m"), 200
    return _server


def ask(server: ScriptedServer, **changes: object) -> Capabilities:
    given = {"base_url": server.url, "model": "m", "api_key": SecretStr(KEY), **changes}
    return asyncio.run(detect(ModelProfile.model_validate(given)))


def refused(server: ScriptedServer, **changes: object) -> ModelAccessError:
    with pytest.raises(ModelAccessError) as caught:
        ask(server, **changes)
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("owner", "dialect"),
    [
        ("vllm", "vllm"),
        ("llamacpp", "llamacpp"),
        ("specgen", "specgen"),
        ("deepseek", "deepseek"),
        ("sglang", "sglang"),
        ("acme", "generic"),
    ],
)
def test_the_dialect_by_who_owns_the_models(server: ScriptedServer, owner: str, dialect: str) -> None:
    server.models = models("m", owner=owner)
    found = ask(server)
    assert found.dialect == dialect
    assert found.can_fork == (dialect != "generic")
    assert bool(found.why_not) == (dialect == "generic")


def test_a_configured_dialect_wins(server: ScriptedServer) -> None:
    server.models = models("m", owner="acme")
    assert ask(server, dialect="deepseek").can_fork


def test_the_only_model_is_taken(server: ScriptedServer) -> None:
    assert ask(server, model="").model == "m"
    server.models = models("a", "b")
    error = refused(server, model="")
    assert "a, b" in error.hint


def test_an_unknown_model_is_told_with_the_list(server: ScriptedServer) -> None:
    server.models = models("qwen", "glm")
    error = refused(server)
    assert "'m'" in error.message
    assert "qwen, glm" in error.hint


def test_a_server_without_a_list_is_believed(server: ScriptedServer) -> None:
    server.models_status = 404
    assert ask(server).models == ()


def test_nobody_listens(server: ScriptedServer) -> None:
    error = refused(server, base_url="http://user:password@127.0.0.1:9/v1")
    assert "cannot reach the LLM at http://127.0.0.1:9/v1" in error.message
    assert "password" not in error.message + error.hint


@pytest.mark.parametrize("url", ["", "localhost:8000/v1", "ftp://x/v1"])
def test_an_address_that_is_none(server: ScriptedServer, url: str) -> None:
    assert "base_url" in refused(server, base_url=url).message


def test_a_page_that_is_no_api(server: ScriptedServer) -> None:
    server.models = "<html>Welcome</html>"
    assert "no OpenAI-compatible API" in refused(server).message


def test_a_server_in_trouble(server: ScriptedServer) -> None:
    server.models_status = 503
    assert "503" in refused(server).message


def test_the_key_is_in_no_message_and_in_no_log(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.key = "sk-another-one"  # the server repeats the wrong key in its error
    errors: list[SpecGenError] = [refused(server)]
    assert "refuses the API key" in errors[0].message

    profile = ModelProfile(base_url=server.url, model="m", api_key=SecretStr(KEY), retries=0)
    model = OpenAICompatible(profile, Capabilities("vllm", "m"))

    async def enter() -> None:
        async with model.main(Prompt("", "x"), seed=1, max_tokens=9):
            raise AssertionError("entered")

    async def all_of_it() -> None:
        server.scripts = [
            Status(400, {"error": {"message": f"bad key {KEY}"}}),
            Status(500, {"error": {"message": KEY}}),
        ]
        for wanted in ("sk-another-one", "", ""):
            server.key = wanted
            with pytest.raises(SpecGenError) as caught:
                await enter()
            errors.append(caught.value)
        await model.aclose()

    asyncio.run(all_of_it())
    for error in errors:
        assert error.__cause__ is None
        assert error.__suppress_context__
        assert KEY not in f"{error} {error.message} {error.hint} {error!r}"
    assert "bad key ***" in errors[2].message
    assert KEY not in caplog.text
    assert KEY not in repr(model) + repr(profile) + repr(vars(profile))


def test_the_projects_own_server() -> None:
    source = SyntheticSource(seed=1, rates=Rates(trace_tokens_mean=600))
    system, user = (str(message["content"]) for message in messages("T4"))
    prompt = Prompt(system, user)

    async def session() -> None:
        async with running(create_app(source, ServerConfig(speed=2000.0, chunk_ms=2))) as url:
            model = await connect(ModelProfile(base_url=url))
            assert model.can_fork
            assert model.capabilities.dialect == "specgen"
            async with model.main(prompt, seed=3, max_tokens=20_000) as main:
                got = [delta async for delta in main]
            assert main.finish_reason == "stop"
            reasoning = "".join(delta.text for delta in got if delta.kind == "reasoning")
            assert len(reasoning) > 200
            assert "ModelNew" in "".join(delta.text for delta in got if delta.kind == "content")
            prefix = reasoning[: len(reasoning) // 2]
            async with model.fork(prompt, prefix, seed=4, max_tokens=20_000) as fork:
                forked = [delta async for delta in fork]
            assert {delta.kind for delta in forked} == {"content"}
            assert not "".join(delta.text for delta in forked).startswith("```")
            assert main.usage.reported
            assert fork.usage.reported
            assert fork.usage.reasoning_tokens == 0
            assert 0 < fork.usage.cached_tokens <= fork.usage.prompt_tokens
            async with model.main(prompt, seed=5, max_tokens=20_000) as left:
                async for _ in left:
                    break
            assert left.finish_reason == "cancelled"
            await model.aclose()

    asyncio.run(asyncio.wait_for(session(), 60))
