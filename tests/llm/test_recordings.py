"""Streams recorded through the proxy from a real server, replayed by the project's own: same words, same timing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from specgen.llm import recorder
from specgen.llm import server as server_module
from specgen.llm.hosting import running
from specgen.llm.recordings import Recording, RecordingError, check, find, read
from specgen.llm.replay import RecordedSource
from specgen.llm.server import ServerConfig, create_app
from specgen.llm.synthetic import MODEL_ID, Rates, SyntheticSource
from tests.llm.material import fork_messages, messages

CONFIG = ServerConfig(speed=20.0, chunk_ms=10)
KEY = "sk-canary-1234"


def source() -> SyntheticSource:
    return SyntheticSource(seed=1, rates=Rates(trace_tokens_mean=400))


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@contextlib.asynccontextmanager
async def recording(directory: Path, config: ServerConfig = CONFIG) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of the recorder, which stands before the synthetic model server."""
    async with running(create_app(source(), config)) as upstream:
        async with running(recorder.create_app(upstream, directory)) as url, client_of(url) as client:
            yield client


async def stream(client: openai.AsyncOpenAI, asked: Any, model: str = MODEL_ID, **more: Any) -> dict[str, Any]:
    """The stream's texts by kind, when its first and last text came, and how it ended."""
    said: dict[str, Any] = {"reasoning_content": "", "content": "", "finish": "", "chunks": 0}
    start = time.monotonic()
    chunks = await client.chat.completions.create(
        model=model, messages=asked, stream=True, stream_options={"include_usage": True}, **more
    )
    async for chunk in chunks:
        for choice in chunk.choices:
            for name in ("reasoning_content", "content"):
                text = getattr(choice.delta, name, None) or ""
                said[name] += text
                said["chunks"] += bool(text)
            said["finish"] = choice.finish_reason or said["finish"]
    return said | {"seconds": time.monotonic() - start}


def test_a_replay_says_the_same_in_the_same_time(tmp_path: Path) -> None:
    async def talk() -> None:
        async with recording(tmp_path) as client:
            main = await stream(client, messages("T4"), seed=5)
            prefix = main["reasoning_content"][:700]
            fork = await stream(client, fork_messages("T4", prefix), seed=6)
        recorded = [read(path) for path in find(tmp_path)]
        assert sorted(item.header.fork for item in recorded) == [False, True]
        assert all(item.whole and item.ending.usage for item in recorded)
        async with running(create_app(RecordedSource(recorded), CONFIG)) as url, client_of(url) as client:
            listed = [model.id async for model in client.models.list()]
            assert listed == [f"{MODEL_ID}-replay"]
            again = await stream(client, messages("T4"), listed[0], seed=5)
            forked = await stream(client, fork_messages("T4", prefix), listed[0], seed=6)
        for name in ("reasoning_content", "content", "finish"):
            assert (again[name], forked[name]) == (main[name], fork[name])
        took = next(item.ending.t for item in recorded if not item.header.fork)
        assert again["seconds"] * CONFIG.speed >= 0.95 * took

    asyncio.run(asyncio.wait_for(talk(), 60))


def test_all_choices_and_whole_answers_are_recorded_and_no_key(tmp_path: Path) -> None:
    async def talk() -> None:
        async with recording(tmp_path) as client:
            await client.chat.completions.create(model=MODEL_ID, messages=messages("T4"), n=3, seed=1)
            assert [model.id async for model in client.models.list()] == [MODEL_ID]
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="other", messages=messages("T4"))

    asyncio.run(asyncio.wait_for(talk(), 60))
    found = find(tmp_path)
    assert len(found) == 3
    assert {read(path).header.streamed for path in found} == {False}
    assert not any(KEY in path.read_text() for path in found)


def test_a_client_that_leaves_stops_the_provider_and_leaves_a_cut_recording(tmp_path: Path) -> None:
    def recorded() -> list[Path]:
        return list(tmp_path.glob("*.jsonl"))

    async def talk() -> None:
        app = create_app(source(), ServerConfig(speed=0.5, chunk_ms=10))
        async with running(app) as upstream, running(recorder.create_app(upstream, tmp_path)) as url:
            async with client_of(url) as client:
                chunks = await client.chat.completions.create(model=MODEL_ID, messages=messages("T4"), stream=True)
                async with chunks:
                    async for chunk in chunks:
                        if chunk.choices and getattr(chunk.choices[0].delta, "reasoning_content", None):
                            break
            while app.state.api.ledger.running or not recorded():
                await asyncio.sleep(0.01)
        assert app.state.api.ledger.cancelled == 1

    asyncio.run(asyncio.wait_for(talk(), 60))
    (path,) = find(tmp_path)
    cut = read(path)
    assert cut.ending.finish == "cancelled"
    assert RecordedSource([cut]).answer(cut.header.chat())[-1].cut


def test_the_closest_recording_answers_and_exact_wants_the_very_same(tmp_path: Path) -> None:
    async def talk() -> None:
        async with recording(tmp_path, ServerConfig(speed=1e5, chunk_ms=0)) as client:
            for task in ("T4", "T1"):
                await stream(client, messages(task), seed=1)

    asyncio.run(asyncio.wait_for(talk(), 60))
    recorded = [read(path) for path in find(tmp_path)]
    asked = recorded[0].header.model_copy(update={"seed": 9}).chat()
    for exact in (False, True):
        answer = RecordedSource(recorded, exact=exact).answer(asked)
        assert "".join(piece.text for piece in answer) == "".join(chunk.text for chunk in recorded[0].chunks)
    changed = recorded[0].header.model_copy(
        update={"conversation": (*recorded[0].header.conversation[:-1], ("user", "something else"))}
    )
    RecordedSource(recorded).answer(changed.chat())
    with pytest.raises(LookupError, match="no recording of such a main generation"):
        RecordedSource(recorded, exact=True).answer(changed.chat())


HEADER = {
    "format": "specgen-recording", "version": 1, "recorded_at": "2026-01-01T00:00:00Z", "server": "host",
    "model": "m", "conversation": [["user", "hello"]],
}  # fmt: skip
CHUNK = {"t": 1.0, "kind": "content", "text": "x"}
END = {"t": 2.0, "finish": "stop"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "not a recording"),
        (["{}"], "not a recording"),
        ([HEADER | {"version": 2}, END], "version 2, this SpecGen reads version 1"),
        ([HEADER], "no ending"),
        ([HEADER, CHUNK, '{"t": 1.5, "kind": "cont'], ":3: no ending: it was cut off in this line"),
        ([HEADER, CHUNK], ":2: finish"),
        ([HEADER, CHUNK | {"t": -1}, END], ":2: t"),
        ([HEADER, CHUNK | {"t": 3.0}, END], "line 3: t = 2.0 comes after t = 3.0"),
        ([HEADER, CHUNK | {"more": 1}, END], ":2: more"),
    ],
)
def test_what_is_no_recording_is_named_with_its_line(tmp_path: Path, lines: list[Any], words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    with pytest.raises(RecordingError) as caught:
        read(path)
    assert words in caught.value.message
    assert [bool(finding.error) for finding in check(tmp_path)] == [True]


def test_recordings_of_two_models_are_not_mixed() -> None:
    data = {"chunks": (), "ending": END}
    two = [Recording.model_validate({"header": HEADER | {"model": name}, **data}) for name in "ab"]
    with pytest.raises(RecordingError, match="one model are needed, found: a, b"):
        RecordedSource(two)


def test_the_commands_refuse_bad_input_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    out = ["--out", str(tmp_path)]
    for main, arguments, words in (
        (server_module.main, ["--recordings", str(empty)], "no recordings"),
        (server_module.main, ["--recordings", str(tmp_path / "none")], "not there"),
        (server_module.main, ["--recordings", str(empty), "--success", "2"], "--success is of the synthetic model"),
        (server_module.main, ["--exact"], "--exact goes with --recordings"),
        (server_module.main, ["--like", "nobody"], "glm-5.1"),
        (recorder.main, ["--upstream", "host", *out], "not a URL"),
        (recorder.main, ["--upstream", "http://host/v1", "--out", "/dev/null/x"], "--out"),
        (recorder.main, ["--upstream", "http://127.0.0.1:9/v1", *out], "cannot be reached"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert words in said
        assert len(said.splitlines()) == 1
    command = [sys.executable, "-m", "specgen", "model", "validate", str(empty)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "no recordings" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_commands_end_by_a_signal_with_their_last_word(tmp_path: Path) -> None:
    """Given a server and a recorder as a user starts them, I expect Ctrl-C to end both without a traceback, and the
    recorder to tell what it recorded."""

    def started(*command: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("listening on "):
            assert line, process.communicate()[1]
        return process, line.removeprefix("listening on ").strip()

    def ended(process: subprocess.Popen[str], number: signal.Signals) -> str:
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        return out

    async def talk(url: str) -> None:
        async with client_of(url) as client:
            await stream(client, messages("T4"), seed=1)

    server, upstream = started("specgen.llm.server", "--speed", "100", "--trace-tokens", "300")
    proxy, url = started("specgen.llm.recorder", "--upstream", upstream, "--out", str(tmp_path))
    try:
        asyncio.run(asyncio.wait_for(talk(url), 60))
        assert ended(proxy, signal.SIGINT) == f"1 recorded in {tmp_path}\n"
        assert ended(server, signal.SIGTERM) == ""
    finally:
        proxy.kill()
        server.kill()
    assert read(find(tmp_path)[0]).whole
