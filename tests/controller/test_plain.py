"""Where a server cannot fork: K whole generations beside the main one, if the settings ask for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from specgen.controller.ports import Answered, Left, prefix_key
from specgen.settings import ForkPolicy
from specgen.types import Delta, IterationReason, Origin, Prompt, TriggerClass
from tests.controller.test_loop import content, run, say
from tests.controller.world import MemoryPool, MemoryRecorder, ScriptedModel, answer, iteration, kernel

SEED = 7  # of the main generation
FIRST = 7 * 1009 + 1
POLICY = ForkPolicy(plain=2, idle_after_s=1e9)


@dataclass
class Unforkable(ScriptedModel):
    """Every generation reasons; the main one waits, the others answer with what ``plain`` says for their seed."""

    plain: dict[int, list[Any]] | None = None
    can_fork: bool = False

    def main(self, prompt: Prompt, *, seed: int, max_tokens: int) -> Any:
        self.seeds.append(seed)
        return self._open(self.reasoning if seed == SEED else (self.plain or {})[seed])


def test_the_first_plain_generation_that_meets_the_criterion_ends_the_iteration() -> None:
    quick = [say("other thoughts"), content(kernel("quick", 4.0))]
    model = Unforkable([say("thinking"), asyncio.Event()], plain={FIRST: quick, FIRST + 1: [asyncio.Event()]})
    recorder, pool = MemoryRecorder(), MemoryPool()
    done = run(iteration(model, pool, recorder=recorder, policy=POLICY))
    assert done.reason is IterationReason.EARLY
    assert done.chosen is not None
    assert done.chosen.result.speedup == 4.0
    assert sorted(model.seeds) == [SEED, FIRST, FIRST + 1]
    assert [(trigger.kind, launched) for trigger, launched in recorder.triggers] == [(TriggerClass.PLAIN, 2)]
    assert sorted(recorder.started) == [(Origin.FORK, 0), (Origin.FORK, 0), (Origin.MAIN, 0)]
    assert "other thoughts" in {record.reasoning for record in recorder.finished.values()}
    assert all(stream.closed for stream in model.streams)
    assert pool.claims == 0  # none was ever made, and none given back


def test_where_the_main_stream_breaks_they_decide() -> None:
    slow = [*([say("")] * 30), content(kernel("slow", 0.5))]
    broken = [say("think"), OSError("gone")]
    model = Unforkable(broken, plain={FIRST: slow, FIRST + 1: [say("x"), content("no code at all")]})
    done = run(iteration(model, MemoryPool(), policy=POLICY, history=(0.0, 9.0)))
    assert done.reason is IterationReason.MODEL_FAILED
    assert done.chosen is not None
    assert done.chosen.result.speedup == 0.5


def test_a_main_generation_without_code_waits_for_them() -> None:
    slow = [*([say("")] * 30), content(kernel("slow", 0.5))]
    model = Unforkable([say("x"), Delta("content", "I cannot.")], plain={FIRST: slow, FIRST + 1: [say("x")]})
    done = run(iteration(model, MemoryPool(), policy=POLICY, history=(0.0, 9.0)))
    assert done.reason is IterationReason.NO_CODE
    assert done.chosen is not None
    assert done.chosen.result.speedup == 0.5


@pytest.mark.parametrize(
    ("policy", "can_fork", "speculation"),
    [(POLICY, True, True), (POLICY, False, False), (ForkPolicy(idle_after_s=1e9), False, True)],
)
def test_they_are_for_servers_that_cannot_fork_and_on_request(
    policy: ForkPolicy, can_fork: bool, speculation: bool
) -> None:
    model = Unforkable([say("think"), content(kernel("main", 2.0))], can_fork=can_fork)
    done = run(iteration(model, MemoryPool(), policy=policy, speculation=speculation))
    assert done.reason is IterationReason.MAIN
    assert model.seeds == [SEED]


def test_one_that_an_attempt_which_died_had_received_is_not_paid_again() -> None:
    text = answer(kernel("earlier", 3.0))
    left = Left(answered=(Answered(2, Origin.FORK, 1, FIRST, 0, prefix_key(""), "stop", "thoughts", text),))
    model = Unforkable([say("thinking"), asyncio.Event()], plain={FIRST + 1: [asyncio.Event()]})
    done = run(iteration(model, MemoryPool(), recorder=MemoryRecorder(behind=left), policy=POLICY))
    assert done.reason is IterationReason.EARLY
    assert done.chosen is not None
    assert done.chosen.result.speedup == 3.0
    assert FIRST not in model.seeds


def test_one_that_repeats_itself_is_cut() -> None:
    circles = [say("Wait, let me check the tile size again. ") for _ in range(200)]
    model = Unforkable(
        [say("think"), *([say("")] * 400), content(kernel("main", 2.0))],
        plain={FIRST: circles, FIRST + 1: [say("x"), content("none")]},
    )
    recorder = MemoryRecorder()
    done = run(iteration(model, MemoryPool(), recorder=recorder, policy=POLICY, loop_chars=2000))
    assert done.reason is IterationReason.MAIN
    assert "repetition" in {record.finish_reason for record in recorder.finished.values()}
