"""An iteration that goes on where an attempt at it died: what was answered and measured is not paid for again."""

from __future__ import annotations

import asyncio
from typing import Any

from specgen.controller.ports import Answered, Left, Measured, prefix_key
from specgen.settings import ForkPolicy
from specgen.types import EvaluationResult, IterationReason, Origin, Phase, Status, source_id
from tests.controller.test_loop import FENCE, content, prefilled, run, say
from tests.controller.world import MemoryPool, MemoryRecorder, ScriptedModel, answer, iteration, kernel

SEED = 7  # of the main generation
FORK_SEED = 7 * 1009 + 1  # of its first fork


def main(text: str, *, finish: str = "stop", reasoning: str = FENCE) -> Answered:
    return Answered(1, Origin.MAIN, None, SEED, 0, prefix_key(""), finish, reasoning, text)


def fork(source: str, *, prefix: str = FENCE, seed: int = FORK_SEED, trigger: int | None = 1) -> Answered:
    return Answered(2, Origin.FORK, trigger, seed, len(prefix), prefix_key(prefix), "stop", "", f"{source}```\n")


def measured(source: str, speedup: float | None, origin: Origin = Origin.FORK) -> Measured:
    status = Status.WRONG_VALUE if speedup is None else Status.VALID
    result = EvaluationResult(
        request_id="r", candidate_id=source_id(source), phase=Phase.PROFILE, status=status, speedup=speedup
    )
    return Measured(result.candidate_id, origin, result)


def recorder(left: Left) -> MemoryRecorder:
    made = MemoryRecorder(behind=left)
    made.sources = {it.candidate_id: it.result for it in left.measured}
    return made


ONCE = ForkPolicy(spacing_chars=10_000, max_k=1, idle_after_s=1e9)  # one trigger launches
NEVER: list[Any] = [AssertionError("the LLM was asked")]


def test_a_boundary_that_was_due_is_taken_without_a_word_to_the_llm() -> None:
    """Given a fork's outcome above τ, stored just before the worker died; a later one below it is none of it."""
    slow, fast, late = kernel("slow", 0.5), kernel("fast", 3.0), kernel("late", 9.0)
    left = Left((fork(slow), fork(fast), fork(late)), (measured(slow, 0.5), measured(fast, 3.0), measured(late, 9.0)))
    model, pool = ScriptedModel(NEVER), MemoryPool()
    done = run(iteration(model, pool, recorder=recorder(left), history=(0.0, 2.0)))
    assert (done.reason, done.threshold) == (IterationReason.EARLY, (0.0 + 2.0 + 0.5) / 3)
    assert done.chosen is not None
    assert done.chosen.result.speedup == 3.0
    assert (model.streams, pool.submitted) == ([], [])


def test_a_main_generation_that_had_ended_is_not_asked_again() -> None:
    source = kernel("main", 2.0)
    model, pool = ScriptedModel(NEVER), MemoryPool()
    done = run(iteration(model, pool, recorder=recorder(Left((main(answer(source)),)))))
    assert done.reason is IterationReason.MAIN
    assert done.chosen is not None
    assert done.chosen.result.speedup == 2.0
    assert model.streams == []


def test_one_that_had_ended_without_code_is_a_boundary_at_once() -> None:
    model, pool = ScriptedModel(NEVER), MemoryPool()
    left = Left((fork(kernel("fork", 5.0)), main("I cannot.")))
    done = run(iteration(model, pool, recorder=recorder(left)))
    assert (done.reason, done.main_failure) == (IterationReason.NO_CODE, "no_code")
    assert (model.streams, pool.submitted) == ([], [])


def test_a_forks_answer_is_offered_again_and_the_fork_is_not_asked_again() -> None:
    """Given a fork that was answered, its kernel not yet sent. I expect it to end the iteration as it would have."""
    source = kernel("fork", 3.0)
    model = ScriptedModel([say(FENCE), asyncio.Event()], lambda *_: NEVER)
    it = iteration(model, MemoryPool(), recorder=recorder(Left((fork(source),))), history=(0.0, 2.0), policy=ONCE)
    done = run(it)
    assert done.reason is IterationReason.EARLY
    assert it.gate.outstanding == 0
    assert model.prefixes == []


def test_a_fork_of_another_prefix_is_another_question() -> None:
    left = Left((fork(kernel("old", 0.5), prefix="Another thought."),), (measured(kernel("old", 0.5), 0.5),))
    model = ScriptedModel([say(FENCE), asyncio.Event()], lambda *_: prefilled(kernel("new", 3.0)))
    done = run(iteration(model, MemoryPool(), recorder=recorder(left), history=(0.0, 2.0), policy=ONCE))
    assert done.reason is IterationReason.EARLY
    assert model.prefixes == [FENCE]


def test_a_main_that_was_cut_short_goes_on_from_the_cut() -> None:
    source = kernel("cut", 2.0)
    cut = main("", finish="repetition", reasoning=FENCE + "again " * 400)
    asked = fork(source, seed=SEED, trigger=None)
    for left, streams in ((Left((cut, asked)), 0), (Left((cut,)), 1)):
        model = ScriptedModel(NEVER, lambda *_: prefilled(source))
        done = run(iteration(model, MemoryPool(), recorder=recorder(left), loop_chars=1000))
        assert done.reason is IterationReason.MAIN
        assert done.chosen is not None
        assert (done.chosen.origins, done.chosen.result.speedup) == ((Origin.MAIN,), 2.0)
        assert len(model.streams) == streams


def test_a_spent_budget_closes_what_is_open_with_what_it_measured() -> None:
    source = kernel("fork", 1.0)
    model = ScriptedModel([say("x"), content(kernel("main", 2.0))])
    it = iteration(
        model, MemoryPool(), recorder=recorder(Left((fork(source),), (measured(source, 1.0),))), history=(0.0, 9.0)
    )
    it.end_for_budget()
    done = run(it)
    assert done.reason is IterationReason.BUDGET
    assert [outcome.result.speedup for outcome in done.outcomes] == [1.0]
    assert model.streams == []


def test_a_known_kernel_that_a_fork_had_given_still_counts_where_the_boundary_is_due() -> None:
    known, fast = kernel("of an earlier iteration", 1.0), kernel("fast", 3.0)
    made = recorder(Left((fork(known), fork(fast)), (measured(fast, 3.0),)))
    made.sources[source_id(known)] = measured(known, 1.0).result
    done = run(iteration(ScriptedModel(NEVER), MemoryPool(), recorder=made))
    assert done.reason is IterationReason.EARLY
    assert [(o.result.speedup, o.fresh) for o in done.outcomes] == [(3.0, True), (1.0, False)]
    assert done.chosen is not None
    assert done.chosen.result.speedup == 3.0
