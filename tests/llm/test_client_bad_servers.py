"""Servers that break the protocol or lie: what was received is kept, nothing crashes, no figure is believed blindly."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from specgen.controller.answers import extract
from specgen.llm import Capabilities, OpenAICompatible
from specgen.types import IterationReason, Status, Usage
from tests.controller.world import MemoryPool, MemoryRecorder, iteration, kernel
from tests.llm.scripted_server import DONE, Pause, Raw, ScriptedServer, Step, chunk, last
from tests.llm.scripted_server import Status as Refusal
from tests.llm.test_client import ANSWER, PROMPT, _server, generate, profile, run
from tests.llm.test_client import server as server

__all__ = ["_server", "server"]  # fixtures

MODEL = "class ModelNew:\n    pass\n"
COUNTED = -(-len(PROMPT.system + PROMPT.user) // 4)


# ------------------------------------------------------------------------------------------------ what it says


def test_reasoning_in_the_content_without_any_mark_is_content_and_its_last_kernel_counts(
    server: ScriptedServer,
) -> None:
    draft = f"First a draft.\n```python\n{MODEL}    draft = 1\n```\nNo, better:\n```python\n{MODEL}```\n"
    got = run(server, [chunk(content=draft[:40]), chunk(content=draft[40:], finish="stop"), DONE])
    assert {delta.kind for delta in got.deltas} == {"content"}
    assert extract(got.text("content")).source == MODEL


def test_reasoning_that_only_ends_with_a_tag_hides_no_kernel(server: ScriptedServer) -> None:
    got = run(server, [chunk(content=f"Hm.\n</think>\n\n```python\n{MODEL}```\n", finish="stop"), DONE])
    assert extract(got.text("content")).source == MODEL


@pytest.mark.parametrize("said", ["", " ", "\n\n  \n"])
def test_an_empty_answer_is_an_answer_without_code_and_is_not_paid_again(server: ScriptedServer, said: str) -> None:
    steps: list[Step] = [chunk(role="assistant"), *([chunk(content=said)] if said else []), chunk(finish="stop"), DONE]
    got = run(server, steps)
    assert (got.finish_reason, got.text("reasoning"), len(server.bodies)) == ("stop", "", 1)
    assert extract(got.text("content")).status is Status.NO_CODE


def test_all_at_once_at_the_end(server: ScriptedServer) -> None:
    """A proxy in between that buffers: it took longer than a gap between tokens may."""
    events = [chunk(reasoning="Let me think."), chunk(content="x = 1\n", finish="stop")]
    whole = Raw("".join(f"data: {json.dumps(event)}\n\n" for event in events) + DONE)
    got = run(server, [Pause(0.5), whole], token_timeout_s=0.3)
    assert (got.text("reasoning"), got.text("content"), got.finish_reason) == ("Let me think.", "x = 1\n", "stop")


LOOP = "It could be tile 12. Wait, let me reconsider the whole thing from the beginning. "


def test_a_server_that_repeats_itself_is_left_and_asked_for_the_kernel(server: ScriptedServer) -> None:
    circles: list[Step] = [step for _ in range(2000) for step in (chunk(reasoning=LOOP), Pause(0.002))]
    cut: list[Step] = [chunk(content=kernel("cut", 3.0)), chunk(content="```", finish="stop"), DONE]
    server.scripts = [[chunk(reasoning="The plan is a plain loop. "), *circles], cut]
    recorder = MemoryRecorder()

    async def body() -> tuple[IterationReason, bool]:
        model = OpenAICompatible(profile(server), Capabilities("vllm", "m"))
        it = iteration(model, MemoryPool(), recorder=recorder, speculation=False, loop_chars=2000)  # type: ignore[arg-type]
        done = await it.run()
        await model.aclose()
        return done.reason, await asyncio.to_thread(server.left.wait, 5)

    reason, left = asyncio.run(asyncio.wait_for(body(), 30))
    assert (reason, left) == (IterationReason.MAIN, True)
    assert sorted(record.finish_reason for record in recorder.finished.values()) == ["repetition", "stop"]
    assert server.bodies[1]["messages"][-1]["reasoning_content"].startswith("The plan is a plain loop. ")


# ------------------------------------------------------------------------------------------------ what it sends


@pytest.mark.parametrize(
    "event",
    [
        "data: 5", "data: []", 'data: "x"', "data: {not json", 'data: {"choices": "x"}', 'data: {"choices": [5]}',
        'data: {"choices": [{"index": 0, "delta": "text"}]}',
        'data: {"choices": [{"index": 0, "delta": {"content": 5}}]}',
        'data: {"choices": [], "usage": "none"}', 'data: {"choices": [], "usage": [1]}', "data: null",
    ],
)  # fmt: skip
def test_an_event_that_cannot_be_read_breaks_the_stream_off(server: ScriptedServer, event: str) -> None:
    got = run(server, [chunk(reasoning="Half a th"), Raw(f"{event}\n\n"), chunk(reasoning="ought"), DONE])
    assert (got.text("reasoning"), got.finish_reason) == ("Half a th", "broken")
    server.bodies.clear()
    assert run(server, [Raw(f"{event}\n\n")], ANSWER).text("content") == "x = 1\n"  # before the first token: again
    assert len(server.bodies) == 2


def test_bytes_that_are_no_text_break_the_stream_off(server: ScriptedServer) -> None:
    bad = b'data: {"choices": [{"index": 0, "delta": {"content": "\xff\xfe"}}]}\n\n'
    got = run(server, [chunk(reasoning="Half a th"), bad, chunk(reasoning="ought"), DONE])
    assert (got.text("reasoning"), got.finish_reason) == ("Half a th", "broken")


def test_half_a_character_is_replaced_and_can_be_sent_on(server: ScriptedServer) -> None:
    half = Raw('data: {"choices": [{"index": 0, "delta": {"reasoning": "a\\ud83dz"}}]}\n\n')
    got = run(server, [half, chunk(finish="stop"), DONE])
    assert got.text("reasoning") == "a\ufffdz"
    run(server, ANSWER, fork=got.text("reasoning"))
    assert server.bodies[-1]["messages"][-1]["reasoning_content"] == "a\ufffdz"


# ------------------------------------------------------------------------------------------------ what it counts


def with_usage(server: ScriptedServer, **usage: Any) -> Usage:
    text = chunk(reasoning="t" * 400), chunk(content="c" * 400, finish="stop")
    return run(server, [*text, last(**usage), DONE]).usage


@pytest.mark.parametrize("made", [0, -5, None, "many", 10**12, float("inf"), float("nan"), 3])
def test_generated_tokens_that_cannot_be_true_are_counted(server: ScriptedServer, made: object) -> None:
    assert with_usage(server, prompt_tokens=9, completion_tokens=made) == Usage(9, 0, 100, 200, reported=False)


@pytest.mark.parametrize("read", [0, -5, 10**12, "many"])
def test_a_prompt_that_cannot_be_true_is_counted(server: ScriptedServer, read: object) -> None:
    assert with_usage(server, prompt_tokens=read, completion_tokens=180) == Usage(COUNTED, 0, 90, 180, reported=False)


def test_more_cached_than_read_and_more_thought_than_made(server: ScriptedServer) -> None:
    cached = {"prompt_tokens_details": {"cached_tokens": 12}}
    assert with_usage(server, prompt_tokens=9, completion_tokens=180, **cached) == Usage(9, 0, 90, 180, reported=False)
    thought = {"completion_tokens_details": {"reasoning_tokens": 999}}
    assert with_usage(server, prompt_tokens=9, completion_tokens=180, **thought) == Usage(9, 0, 90, 180, reported=False)


def test_reasoning_that_is_kept_back_is_believed_up_to_the_limit(server: ScriptedServer) -> None:
    def hidden(made: int) -> Usage:
        usage = last(prompt_tokens=9, completion_tokens=made, completion_tokens_details={"reasoning_tokens": made - 2})
        return run(server, [chunk(content="x = 1", finish="stop"), usage, DONE]).usage

    assert hidden(99) == Usage(9, 0, 97, 99, reported=True)  # asked for at most 99
    assert hidden(5000) == Usage(9, 0, 0, 2, reported=False)


# ------------------------------------------------------------------------------------------------ when it refuses


def test_retry_after_as_a_date(server: ScriptedServer) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=2.5), usegmt=True)  # whole seconds
    before = time.monotonic()
    run(server, Refusal(503, headers={"retry-after": date}), ANSWER)
    assert time.monotonic() - before >= 1.0


@pytest.mark.parametrize("asked", ["soon", "-5", "", "nan", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_retry_after_that_is_none_does_not_hold_it_up(server: ScriptedServer, asked: str) -> None:
    assert run(server, Refusal(429, headers={"retry-after": asked}), ANSWER).text("content") == "x = 1\n"


def test_a_wait_for_a_busy_server_ends_with_the_iteration(server: ScriptedServer) -> None:
    """A budget that is spent cancels the generation, also while it waits to ask again."""
    server.scripts = [Refusal(429, headers={"retry-after": "25"})]

    async def body() -> float:
        task = asyncio.create_task(generate(server))
        while not server.bodies:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        left = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - left

    assert asyncio.run(asyncio.wait_for(body(), 30)) < 5
    assert len(server.bodies) == 1
