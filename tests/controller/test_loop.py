"""Algorithm 1, one promise a test. Names follow the lines of the paper's listing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specgen.controller.budgets import Spent
from specgen.controller.loop import Iteration, IterationOutcome
from specgen.controller.ports import Left, Unfinished
from specgen.errors import ModelAccessError, ModelUnavailable, ProblemError, StaleLease
from specgen.settings import ForkPolicy, Price
from specgen.types import (
    QUARANTINED,
    Delta,
    EvaluationRequest,
    EvaluationResult,
    EventKind,
    IterationReason,
    Origin,
    Phase,
    Status,
    TriggerClass,
    Usage,
    source_id,
)
from tests.controller.world import MemoryPool, MemoryRecorder, ScriptedModel, answer, iteration, kernel

FENCE = "Let me think.\n```cpp\nint tile = 64;\n```\nIt should work. "


def say(text: str) -> Delta:
    return Delta("reasoning", text)


def content(source: str) -> Delta:
    return Delta("content", answer(source))


def prefilled(source: str) -> list[Any]:
    """A fork's answer begins inside the opened block."""
    return [Delta("content", source + "```\n")]


def run(it: Iteration) -> IterationOutcome:
    return asyncio.run(asyncio.wait_for(it.run(), 20))


def test_a_fork_above_the_mean_ends_the_reasoning_and_is_k_star() -> None:
    never = asyncio.Event()
    model = ScriptedModel([say(FENCE), never], lambda _p, seed: prefilled(kernel(f"f{seed}", 3.0)))
    recorder, pool = MemoryRecorder(), MemoryPool()
    it = iteration(model, pool, recorder=recorder, history=(0.0, 2.0))
    done = run(it)
    assert done.reason is IterationReason.EARLY
    assert done.chosen is not None
    assert done.chosen.result.speedup == 3.0
    assert done.threshold == 1.0  # mean of H before the kernel entered it
    assert model.streams[0].closed
    assert model.streams[0].finish_reason == "cancelled"
    assert recorder.finished[1].reasoning == FENCE  # the prefix it stopped at is kept
    assert pool.closed == ["j/0"]


def test_a_fork_below_the_mean_does_not_end_it_and_the_main_kernel_is_the_fallback() -> None:
    model = ScriptedModel([say(FENCE), content(kernel("main", 5.0))], lambda *_: prefilled(kernel("fork", 1.0)))
    done = run(iteration(model, MemoryPool(), history=(0.0, 9.0)))
    assert done.reason is IterationReason.MAIN
    assert done.chosen is not None
    assert done.chosen.result.speedup == 5.0


def test_without_a_trigger_the_main_outcome_is_the_boundary() -> None:
    model = ScriptedModel([say("Hm."), content(kernel("main", 2.0))])
    done = run(iteration(model, MemoryPool()))
    assert done.reason is IterationReason.MAIN
    assert [o.origins for o in done.outcomes] == [(Origin.MAIN,)]


def test_k_star_is_the_best_of_the_iteration_where_nothing_terminated() -> None:
    model = ScriptedModel([say(FENCE), content(kernel("main", 2.0))], lambda *_: prefilled(kernel("fork", 4.0)))
    done = run(iteration(model, MemoryPool(), criterion="never"))
    assert done.chosen is not None
    assert done.chosen.result.speedup in (2.0, 4.0)
    speedups = [o.result.speedup for o in done.outcomes]
    assert done.chosen.result.speedup == max(s for s in speedups if s is not None)


def test_the_prefix_is_the_trace_so_far_and_seeds_differ() -> None:
    never = asyncio.Event()
    model = ScriptedModel([say(FENCE), never], lambda _p, seed: prefilled(kernel(f"f{seed}", 3.0)))
    run(iteration(model, MemoryPool(free=2)))
    assert model.prefixes == [FENCE, FENCE]
    assert len(set(model.seeds)) == 2


def test_history_grows_only_by_valid_profiled_kernels_in_order() -> None:
    fates = iter([0.5, "compile_error"])
    while_forks_run = [say("")] * 100
    model = ScriptedModel(
        [say(FENCE), *while_forks_run, content(kernel("main", 2.0))],
        lambda _p, s: prefilled(kernel(f"{s}", next(fates))),
    )
    it = iteration(model, MemoryPool(free=2), history=(0.0, 4.0))
    done = run(it)
    assert done.reason is IterationReason.MAIN
    assert it.history == [0.0, 4.0, 0.5, 2.0]


def test_a_duplicate_costs_no_device_and_never_terminates() -> None:
    recorder = MemoryRecorder()
    source = kernel("same", 5.0)
    first = ScriptedModel([say("x"), content(source)])
    run(iteration(first, MemoryPool(), recorder=recorder))
    pool = MemoryPool()
    again = ScriptedModel([say(FENCE), content(kernel("main", 1.0))], lambda *_: prefilled(source))
    it = iteration(again, pool, recorder=recorder)
    done = run(it)
    assert done.reason is IterationReason.MAIN
    assert {r.source for r in pool.submitted} == {kernel("main", 1.0)}
    assert 5.0 not in it.history


def test_main_that_repeats_a_fork_still_running_shares_its_outcome() -> None:
    source = kernel("same", 5.0)
    pool = MemoryPool(free=1)
    hold = pool.hold = asyncio.Event()
    model = ScriptedModel([say(FENCE), content(source)], lambda *_: prefilled(source))
    it = iteration(model, pool, criterion="never")

    async def scene() -> IterationOutcome:
        task = asyncio.create_task(it.run())
        while not it.main_ended or len(pool.submitted) < 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        hold.set()
        pool.hold = None
        for _ in range(2):  # missing twice: lost
            it.evaluations.asked_at -= 60
            for pending in it.evaluations.pending.values():
                pending.sent_at -= 60
            await it.evaluations.resend()
        return await task

    done = asyncio.run(asyncio.wait_for(scene(), 20))
    assert done.reason is IterationReason.MAIN
    assert set(done.outcomes[0].origins) == {Origin.MAIN, Origin.FORK}
    assert len({r.candidate_id for r in pool.submitted}) == 1


def test_what_is_our_own_fault_is_tried_again_and_not_blamed() -> None:
    model = ScriptedModel([say("x"), content(kernel("main", 2.0))])
    pool = MemoryPool(infra_errors=2)
    done = run(iteration(model, pool))
    assert done.chosen is not None
    assert done.chosen.result.speedup == 2.0
    assert len({r.request_id for r in pool.submitted}) == len(pool.submitted) == 4  # 2 failed, 1 validation, 1 profile


def test_a_model_without_code_ends_with_that_reason() -> None:
    done = run(iteration(ScriptedModel([say("x"), Delta("content", "I cannot.")]), MemoryPool()))
    assert done.reason is IterationReason.NO_CODE
    assert done.chosen is None
    assert "no_code" in done.main_failure


def test_an_invalid_main_tells_its_failure() -> None:
    done = run(iteration(ScriptedModel([say("x"), content(kernel("m", "wrong_value"))]), MemoryPool()))
    assert done.reason is IterationReason.MAIN
    assert done.chosen is None
    assert done.main_failure.startswith("wrong_value")


def test_a_broken_stream_lets_its_forks_stand() -> None:
    gate = asyncio.Event()
    model = ScriptedModel([say(FENCE), ModelUnavailable("reset")], lambda *_: [gate, *prefilled(kernel("f", 2.0))])
    it = iteration(model, MemoryPool(free=1), history=(0.0, 9.0))

    async def scene() -> IterationOutcome:
        task = asyncio.create_task(it.run())
        while not it.main_ended:
            await asyncio.sleep(0.01)
        gate.set()
        return await task

    done = asyncio.run(asyncio.wait_for(scene(), 20))
    assert done.reason is IterationReason.MODEL_FAILED
    assert done.chosen is not None
    assert done.chosen.result.speedup == 2.0


def test_a_model_that_never_opens_ends_the_iteration() -> None:
    done = run(iteration(ScriptedModel([ModelUnavailable("503")]), MemoryPool()))
    assert done.reason is IterationReason.MODEL_FAILED
    assert done.main_failure == "503"


def test_a_wrong_key_and_a_broken_reference_end_the_job() -> None:
    class Locked(ScriptedModel):
        def main(self, prompt: Any, *, seed: int, max_tokens: int) -> Any:
            raise ModelAccessError("401")

    pool = MemoryPool()
    with pytest.raises(ModelAccessError):
        run(iteration(Locked([]), pool))
    assert pool.closed == ["j/0"]
    with pytest.raises(ProblemError):
        run(iteration(ScriptedModel([say("x"), content(kernel("m", "reference_error"))]), MemoryPool()))


def test_a_worker_that_lost_the_job_leaves_the_scope_to_its_successor() -> None:
    recorder, pool = MemoryRecorder(), MemoryPool()
    recorder.lost = True
    with pytest.raises(StaleLease):
        run(iteration(ScriptedModel([say("x"), content(kernel("m", 1.0))]), pool, recorder=recorder))
    assert not pool.closed


def test_a_fork_that_the_server_refuses_ends_speculation_and_not_the_job() -> None:
    class Full(ScriptedModel):
        def fork(self, prompt: Any, prefix: str, *, seed: int, max_tokens: int) -> Any:
            self.prefixes.append(prefix)
            raise ModelAccessError("400: the context is too long")

    later = FENCE.replace("64", "32")
    model = Full([say(FENCE), *([say("")] * 20), say(later), content(kernel("main", 2.0))])
    it = iteration(model, MemoryPool(free=1), policy=ForkPolicy(spacing_chars=0, idle_after_s=1e9))
    done = run(it)
    assert done.reason is IterationReason.MAIN
    assert len(model.prefixes) == 1
    assert it.gate.outstanding == 0


def test_what_a_dead_attempt_had_asked_for_is_kept_when_it_returns() -> None:
    pool = MemoryPool()
    orphan = EvaluationResult(
        request_id="of-the-dead", candidate_id="c" * 64, phase=Phase.PROFILE, status=Status.VALID, speedup=7.0
    )
    pool.queue.put_nowait(orphan)
    model = ScriptedModel([say("x"), *([say("")] * 20), content(kernel("main", 2.0))])
    recorder = MemoryRecorder()
    it = iteration(model, pool, recorder=recorder)
    done = run(it)
    assert done.reason is IterationReason.MAIN  # nothing of this attempt's forks: it does not terminate
    assert recorder.sources["c" * 64] == orphan
    assert it.history == [0.0, 7.0, 2.0]


def test_what_a_dead_attempt_left_is_gone_on_with() -> None:
    """A kernel that it had found valid is profiled; a request of it keeps its id: the pool does not double it."""
    sources = [kernel("valid", 5.0), kernel("queued", 6.0), kernel("unasked", 7.0)]
    names = [source_id(source) for source in sources]
    left = (
        Unfinished(names[0], sources[0], Origin.FORK, validated=True),
        Unfinished(names[1], sources[1], Origin.FORK, validated=False, request_id="of-the-dead"),
        Unfinished(names[2], sources[2], Origin.FORK, validated=False),
    )
    pool, recorder = MemoryPool(), MemoryRecorder(behind=Left(unfinished=left))
    model = ScriptedModel([say("x"), *([say("")] * 40), content(kernel("main", 2.0))])
    done = run(iteration(model, pool, recorder=recorder))
    assert done.reason is IterationReason.MAIN
    phases = {name: [r.phase for r in pool.submitted if r.candidate_id == name] for name in names}
    assert phases == {
        names[0]: [Phase.PROFILE],
        names[1]: [Phase.VALIDATE, Phase.PROFILE],
        names[2]: [Phase.VALIDATE, Phase.PROFILE],
    }
    assert next(r.request_id for r in pool.submitted if r.candidate_id == names[1]) == "of-the-dead"
    assert [recorder.sources[name].speedup for name in names] == [5.0, 6.0, 7.0]


def test_a_request_that_kills_its_workers_is_not_asked_for_again() -> None:
    class Deadly(MemoryPool):
        def judge(self, request: EvaluationRequest) -> EvaluationResult:
            return EvaluationResult(
                request_id=request.request_id, candidate_id=request.candidate_id, phase=request.phase,
                status=Status.INFRA_ERROR, error="quarantined", labels=(QUARANTINED,),
            )  # fmt: skip

    pool = Deadly()
    done = run(iteration(ScriptedModel([say("x"), content(kernel("main", 2.0))]), pool))
    assert done.chosen is None
    assert len(pool.submitted) == 1


def test_the_brake_counts_forks_until_they_are_answered() -> None:
    """Claims and outstanding forks come back: forks that give no kernel must not strangle later triggers."""
    reasoning: list[Any] = []
    for i in range(4):
        reasoning += [say(f"part {i}\n```cpp\nint a{i};\n```\n" + "x" * 50), *([say("")] * 60)]
    model = ScriptedModel([*reasoning, content(kernel("main", 1.0))], lambda *_: [Delta("content", "no idea")])
    recorder = MemoryRecorder()
    policy = ForkPolicy(spacing_chars=10, outstanding=1, max_k=1, idle_after_s=1e9)
    it = iteration(model, MemoryPool(), recorder=recorder, policy=policy)
    run(it)
    assert [k for _, k in recorder.triggers] == [1, 1, 1, 1]
    assert it.gate.outstanding == 0


def test_spacing_holds_triggers_back_and_records_them() -> None:
    model = ScriptedModel([say(FENCE), say(FENCE.replace("64", "32")), content(kernel("main", 1.0))],
                          lambda *_: [asyncio.Event()])  # fmt: skip
    recorder = MemoryRecorder()
    it = iteration(model, MemoryPool(), recorder=recorder, policy=ForkPolicy(spacing_chars=10_000, idle_after_s=1e9))
    run(it)
    fences = [k for t, k in recorder.triggers if t.kind is TriggerClass.FENCE]
    assert fences == [2, 0]


def test_an_idle_device_forks_without_a_trigger() -> None:
    never = asyncio.Event()
    model = ScriptedModel([say("I wonder what to do here"), never], lambda *_: prefilled(kernel("f", 2.0)))
    recorder = MemoryRecorder()
    done = run(iteration(model, MemoryPool(), recorder=recorder, policy=ForkPolicy(idle_after_s=0.1)))
    assert done.reason is IterationReason.EARLY
    assert recorder.triggers[0][0].kind is TriggerClass.IDLE


def test_without_speculation_nothing_is_forked() -> None:
    model = ScriptedModel([say(FENCE), content(kernel("main", 1.0))], lambda *_: prefilled(kernel("f", 9.0)))
    policy = ForkPolicy(idle_after_s=0.0)
    done = run(iteration(model, MemoryPool(), policy=policy, speculation=False))
    assert not model.prefixes
    assert done.reason is IterationReason.MAIN


def test_a_model_that_cannot_be_forked_runs_without_speculation() -> None:
    model = ScriptedModel([say(FENCE), content(kernel("main", 1.0))], can_fork=False)
    assert run(iteration(model, MemoryPool())).reason is IterationReason.MAIN
    assert not model.prefixes


def test_outcome_statuses_reach_the_search() -> None:
    model = ScriptedModel([say(FENCE), content(kernel("main", 1.0))], lambda *_: prefilled(kernel("f", "hang")))
    done = run(iteration(model, MemoryPool(free=1), history=(0.0, 2.0)))
    assert {o.result.status for o in done.outcomes} <= {Status.HANG, Status.VALID}


def test_a_spent_budget_is_a_boundary_with_the_best_that_was_measured() -> None:
    never = asyncio.Event()
    model = ScriptedModel([say(FENCE), never], lambda *_: [*prefilled(kernel("f", 2.0))])
    recorder, pool = MemoryRecorder(), MemoryPool(free=1)
    it = iteration(model, pool, recorder=recorder, criterion="never")

    async def scene() -> IterationOutcome:
        task = asyncio.create_task(it.run())
        while not it.outcomes:
            await asyncio.sleep(0.01)
        it.end_for_budget()
        return await task

    done = asyncio.run(asyncio.wait_for(scene(), 20))
    assert done.reason is IterationReason.BUDGET
    assert done.chosen is not None
    assert done.chosen.result.speedup == 2.0
    assert all(stream.closed for stream in model.streams)
    assert recorder.finished[1].reasoning == FENCE
    assert pool.closed == ["j/0"]


def test_tokens_of_unfinished_generations_count() -> None:
    never = asyncio.Event()
    model = ScriptedModel([say(FENCE), never], lambda *_: [never])
    it = iteration(model, MemoryPool(free=1))

    def used() -> int:
        return Spent().and_of(it.usages, 0.0, None).tokens

    async def scene() -> tuple[int, int]:
        task = asyncio.create_task(it.run())
        before = used()
        while len(model.streams) < 2:
            await asyncio.sleep(0.01)
        for stream in model.streams:
            stream.usage = Usage(prompt_tokens=100, completion_tokens=11)
        live = used()
        assert Spent(cost=1.0).and_of(it.usages, 0.0, Price(input=1e4, output=1e5)).cost == pytest.approx(1 + 2 + 2.2)
        it.end_for_budget()
        await task
        assert used() == live  # a generation that ended is not forgotten
        return before, live

    assert asyncio.run(asyncio.wait_for(scene(), 20)) == (0, 222)


LOOPING = "It could be tile 12. Wait, let me reconsider the whole thing from the beginning. "


def test_a_reasoning_in_circles_is_cut_and_the_kernel_asked_for_from_what_came_before() -> None:
    model = ScriptedModel(
        [say("The plan is a plain loop. "), *[say(LOOPING) for _ in range(200)], asyncio.Event()],
        lambda *_: prefilled(kernel("cut", 3.0)),
    )
    recorder = MemoryRecorder()
    it = iteration(model, MemoryPool(), recorder=recorder, speculation=False, loop_chars=2000)
    done = run(it)
    assert (done.reason, done.chosen is not None) == (IterationReason.MAIN, True)
    assert recorder.finished[1].finish_reason == "repetition"
    assert len(recorder.finished[1].reasoning) < 4000
    assert recorder.started == [(Origin.MAIN, 0), (Origin.FORK, len(model.prefixes[0]))]
    assert model.prefixes[0].startswith("The plan is a plain loop. ")
    assert len(model.prefixes[0]) < 1000
    assert all(stream.closed for stream in model.streams)


def test_circles_of_a_model_that_cannot_be_forked_are_a_failed_generation() -> None:
    model = ScriptedModel([*[say(LOOPING) for _ in range(200)], asyncio.Event()], can_fork=False)
    done = run(iteration(model, MemoryPool(), loop_chars=2000))
    assert done.reason is IterationReason.MODEL_FAILED
    assert "repeated itself" in done.main_failure


def test_requests_carry_the_jobs_label_and_its_priority_of_the_moment() -> None:
    model = ScriptedModel([say("x"), content(kernel("main", 2.0))])
    pool = MemoryPool()
    it = iteration(model, pool)
    it.evaluations.label, it.evaluations.priority = "h200", 3
    judge = pool.judge

    def change(request: Any) -> EvaluationResult:
        it.evaluations.priority = 5  # of the user, while the validation runs
        return judge(request)

    pool.judge = change  # type: ignore[method-assign]
    run(it)
    assert [(r.label, r.priority) for r in pool.submitted] == [("h200", 3), ("h200", 5)]


def test_a_scope_that_a_zombie_closed_is_opened_again_by_the_job_that_holds_the_lease() -> None:
    pool = MemoryPool(closed=["j/0"])
    done = run(iteration(ScriptedModel([say("x"), content(kernel("main", 2.0))]), pool))
    assert done.chosen is not None
    assert len(pool.submitted) == 2
    recorder = MemoryRecorder()
    recorder.lost = True  # but not by one that has lost it
    pool = MemoryPool(closed=["j/0"])
    with pytest.raises(StaleLease):
        run(iteration(ScriptedModel([say("x"), content(kernel("main", 2.0))]), pool, recorder=recorder))
    assert not pool.submitted


def test_only_what_the_pool_misses_twice_is_sent_again() -> None:
    pool, recorder = MemoryPool(hold=asyncio.Event()), MemoryRecorder()
    it = iteration(ScriptedModel([]), pool, recorder=recorder)
    known: set[str] = set()

    async def missing(ids: list[str]) -> set[str]:
        return set(ids) - known

    pool.missing = missing  # type: ignore[method-assign]

    async def look() -> int:
        it.evaluations.asked_at -= 60
        for pending in it.evaluations.pending.values():
            pending.sent_at -= 60
        return await it.evaluations.resend()

    async def scene() -> None:
        await it.evaluations.offer(kernel("a", 1.0), Origin.FORK, 1, None)
        (first,) = pool.submitted
        known.add(first.request_id)
        assert [await look() for _ in range(3)] == [0, 0, 0]  # queued or running: as long as it takes
        known.clear()
        assert await look() == 0  # its result may be on its way
        known.add(first.request_id)
        assert await look() == 0
        known.clear()
        assert [await look(), await look(), await look()] == [0, 1, 0]
        assert [r.request_id for r in pool.submitted] == [first.request_id] * 2  # the same request, not another
        assert it.evaluations.resent == 1

    asyncio.run(scene())


def test_a_job_without_a_device_says_so_instead_of_waiting_in_silence() -> None:
    told: list[str] = []

    class Heard:
        async def publish(self, kind: EventKind, /, **data: Any) -> None:
            if kind is EventKind.WAITING:
                told.append(data["reason"])

    pool = MemoryPool(free=0)
    model = ScriptedModel([say("x"), asyncio.Event()])
    it = iteration(model, pool)
    it.events, it.evaluations.label = Heard(), "h200"

    async def scene() -> None:
        task = asyncio.create_task(it.run())
        while not told:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)
        assert told == ["no device labelled h200 is here"]  # once, not at every look
        it.end_for_budget()
        await task

    asyncio.run(asyncio.wait_for(scene(), 20))
