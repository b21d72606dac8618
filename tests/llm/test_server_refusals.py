"""What the model server refuses, how it says so, and that nothing a client sends ends it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from specgen.errors import EnvironmentLacking
from specgen.llm.hosting import running, serve_until_signal
from specgen.llm.server import ServerConfig, create_app
from specgen.llm.synthetic import MODEL_ID, Rates, SyntheticSource
from tests.llm.material import messages

SOURCE = SyntheticSource(rates=Rates(trace_tokens_mean=100))
CONFIG = ServerConfig(speed=1e6, chunk_ms=0)
FINE = {"model": MODEL_ID, "messages": [{"role": "user", "content": "hello"}]}


def post(*bodies: bytes | dict[str, Any]) -> list[httpx2.Response]:
    async def talk() -> list[httpx2.Response]:
        async with running(create_app(SOURCE, CONFIG)) as url:
            async with httpx2.AsyncClient(base_url=url.removesuffix("/v1"), timeout=30) as client:
                answers = []
                for body in bodies:
                    data = body if isinstance(body, bytes) else json.dumps(body).encode()
                    answers.append(await client.post("/v1/chat/completions", content=data))
                return answers

    return asyncio.run(talk())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": ' + b"9" * 10_000 + b"}",
        b"[]",
        b"null",
        {},
        FINE | {"messages": []},
        FINE | {"messages": "hello"},
        FINE | {"messages": [{"role": "wizard", "content": "x"}]},
        FINE | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        FINE | {"messages": [{"role": "assistant", "content": "x"}]},
        FINE | {"messages": [*messages("T4"), {"role": "assistant", "reasoning_content": "so far", "content": ""}]},
        FINE | {"n": 0},
        FINE | {"n": 10**6},
        FINE | {"max_tokens": -1},
        FINE | {"seed": "x"},
        FINE | {"temperature": 7},
        FINE | {"stop": [""]},
        FINE | {"stream_options": 3},
        FINE | {"model": 3},
    ],
)
def test_a_bad_body_is_a_400_in_openai_format(body: bytes | dict[str, Any]) -> None:
    refused, after = post(body, FINE)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert after.status_code == 200


def test_odd_but_legal_bodies_are_answered() -> None:
    surrogate = json.dumps(FINE | {"messages": [{"role": "user", "content": "\ud800 x"}]}).encode()
    parts = FINE | {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    unknown = FINE | {"frequency_penalty": 1, "made_up": {"x": 1}, "seed": -(10**30)}
    assert [answer.status_code for answer in post(surrogate, parts, unknown)] == [200, 200, 200]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ("model", "messages", "n", "seed", "max_tokens", "stop", "thinking", "response_format", "stream_options")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_no_body_makes_the_server_fail(fields: dict[str, Any]) -> None:
    with TestClient(create_app(SOURCE, CONFIG)) as client:
        answer = client.post("/v1/chat/completions", content=json.dumps(FINE | fields))
        assert answer.status_code in (200, 400, 404)
        assert client.get("/stats").json()["failed"] == 0


def test_an_unknown_model_and_an_unknown_path_are_404() -> None:
    (answer,) = post(FINE | {"model": "gpt-none"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    with TestClient(create_app(SOURCE, CONFIG)) as client:
        assert client.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
        assert client.get("/v1/chat/completions").status_code == 405


def test_a_key_is_demanded_where_one_is_set() -> None:
    async def talk(key: str) -> list[str]:
        config = ServerConfig(speed=1e6, chunk_ms=0, api_key="s3cret")
        async with running(create_app(SOURCE, config)) as url:
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
                return [model.id async for model in client.models.list()]

    assert asyncio.run(talk("s3cret")) == [MODEL_ID]
    with pytest.raises(openai.AuthenticationError):
        asyncio.run(talk("wrong"))


@pytest.mark.parametrize("wrong", [{"speed": 0.0}, {"tokens_per_s": -1.0}, {"chunk_ms": -1.0}])
def test_rates_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        ServerConfig(**wrong)  # type: ignore[arg-type]


def test_a_taken_port_is_one_line_for_the_user() -> None:
    async def talk() -> None:
        async with running(create_app(SOURCE, CONFIG)) as url:
            port = int(url.removesuffix("/v1").rsplit(":", 1)[1])
            with pytest.raises(EnvironmentLacking, match=str(port)):
                serve_until_signal(create_app(SOURCE, CONFIG), "127.0.0.1", port)

    asyncio.run(talk())


def test_the_command_writes_its_address_and_ends_on_a_signal(tmp_path: Path) -> None:
    port_file = tmp_path / "address"
    command = [sys.executable, "-m", "specgen.llm.server", "--port-file", str(port_file), "--speed", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while not port_file.exists():
            assert process.poll() is None
            time.sleep(0.02)
        base_url = port_file.read_text().strip()
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL_ID, messages=messages("T1"), max_tokens=5)
            assert answer.choices[0].finish_reason == "length"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert b"Traceback" not in output
