"""`specgen model check`: what it says of a server that does everything, of a buffering proxy, of one without forks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx2
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specgen.llm.checking import Report, check
from specgen.llm.hosting import running
from specgen.llm.server import ServerConfig, create_app
from specgen.llm.synthetic import MODEL_ID, Rates, SyntheticSource
from specgen.settings import ModelProfile

CONFIG = ServerConfig(speed=20.0, chunk_ms=20)


def source() -> SyntheticSource:
    return SyntheticSource(seed=1, rates=Rates(trace_tokens_mean=500))


def buffering(upstream: str) -> Starlette:
    """A proxy that waits for the whole answer, and passes it on then."""

    async def forward(request: Request) -> Response:
        async with httpx2.AsyncClient(timeout=60) as client:
            url = upstream + request.url.path.removeprefix("/v1")
            answer = await client.request(request.method, url, content=await request.body())
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

    return Starlette(routes=[Route("/v1/{path:path}", forward, methods=["GET", "POST"])])


def checked(*, through: bool = False, dialect: str = "auto") -> Report:
    async def talk() -> Report:
        async with running(create_app(source(), CONFIG)) as upstream:
            async with running(buffering(upstream)) as proxy:
                url = proxy if through else upstream
                fields = {"base_url": url, "model": MODEL_ID, "api_key": SecretStr("none"), "dialect": dialect}
                return await check(ModelProfile.model_validate(fields))

    return asyncio.run(asyncio.wait_for(talk(), 90))


def told(report: Report) -> dict[str, tuple[str, bool | None]]:
    return {line.what: (line.seen, line.holds) for line in report.lines}


def test_a_server_that_does_everything() -> None:
    report = checked()
    lines = told(report)
    assert report.speculates
    assert not [line for line in report.lines if line.holds is False]
    cached, prompt = (int(word) for word in lines["prefix cache"][0].split() if word.isdigit())
    assert 0 < prompt - cached < 64  # the rest of a block, and the fence
    assert lines["reasoning"][1]


def test_a_proxy_that_buffers_is_told() -> None:
    lines = told(checked(through=True))
    assert lines["streaming"][1] is False
    assert "buffers" in lines["streaming"][0]


def test_a_server_without_forks() -> None:
    report = checked(dialect="generic")
    assert not report.speculates
    assert told(report)["forks"][1] is False


@pytest.fixture
def url() -> Iterator[str]:
    """A server in a thread, for the command."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running(create_app(source(), CONFIG)) as address:
            found.append(address)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()


def test_the_command(url: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "specgen", "model", "check", *arguments]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SPECGEN_", "OPENAI_"))}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)

    good = run("--base-url", url, "--json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["speculates"] is True
    away = run("--base-url", "http://127.0.0.1:9/v1")
    assert (away.returncode, away.stderr.startswith("specgen: cannot reach the LLM at")) == (2, True)
