"""Iterations, generations, triggers, side calls: written once, read back whole, resumable."""

from __future__ import annotations

import time

from specgen.store import SchedulerDecision, Store
from specgen.types import IterationReason, Origin, Phase, Prompt, Status, Trigger, TriggerClass, Usage
from tests.store.conftest import PROMPT, Running

USAGE = Usage(prompt_tokens=100, cached_tokens=40, reasoning_tokens=30, completion_tokens=50, reported=True)


def test_opening_again_returns_what_was_stored_first(job: Running) -> None:
    again = job.store.open_iteration(
        job.id, 1, step={"kind": "other"}, prompt=Prompt("", "another"), search_state={"at": 99}, token=job.token
    )
    assert again.step == {"kind": "seed"}
    assert again.prompt == PROMPT
    assert again.search_state == {"at": 1}
    assert not again.closed


def test_a_closed_iteration_carries_the_state_to_resume_from(job: Running) -> None:
    assert job.close(IterationReason.EARLY, "ab" * 32)
    (record,) = job.store.iterations(job.id)
    assert record.closed
    assert record.search_state == {"after": 1}
    assert (record.reason, record.chosen_candidate, record.threshold) == (IterationReason.EARLY, "ab" * 32, 0.5)
    reopened = job.store.open_iteration(job.id, 1, step={}, prompt=PROMPT, search_state=None, token=job.token)
    assert reopened == record


def test_the_first_boundary_stands(job: Running) -> None:
    assert job.close(IterationReason.EARLY, "ab" * 32)
    assert not job.close(IterationReason.MAIN, None)
    assert job.store.iterations(job.id)[0].reason is IterationReason.EARLY


def test_the_boundary_drops_queued_requests_and_abandons_open_generations_of_its_scope_only(job: Running) -> None:
    store = job.store
    answered = job.request(job.candidate("a = 1"), Phase.VALIDATE)
    store.record_result(job.result(answered, Status.WRONG_VALUE), job.id, token=job.token)
    queued = job.request(job.candidate("b = 1"), Phase.VALIDATE)
    store.start_generation(job.id, 1, kind=Origin.MAIN, seed=0, model="m", template_hash="h", token=job.token)
    job.open(2)
    other = job.request(job.candidate("c = 1"), Phase.VALIDATE)
    store.start_generation(job.id, 2, kind=Origin.MAIN, seed=0, model="m", template_hash="h", token=job.token)
    job.iteration = 1
    job.close()
    status = {request.request_id: request.status for request in store.requests(job.id)}
    assert status == {
        answered.request_id: "wrong_value",
        queued.request_id: "dropped",
        other.request_id: "queued",
    }
    assert [generation.finish_reason for generation in store.generations(job.id)] == ["abandoned", ""]
    assert [request.request_id for request in store.requests(job.id, 2)] == [other.request_id]


def test_a_generation_is_read_back_whole(job: Running) -> None:
    store = job.store
    trigger = Trigger(TriggerClass.DECISION, 1200, "use 128 x 64 tiles")
    trigger_id = store.add_trigger(job.id, 1, trigger, 2, token=job.token)
    generation = store.start_generation(
        job.id,
        1,
        kind=Origin.FORK,
        seed=2**40,
        model="glm",
        template_hash="h" * 64,
        prefix_chars=1200,
        trigger_id=trigger_id,
        token=job.token,
    )
    at = time.time()
    store.finish_generation(
        job.id,
        generation,
        usage=USAGE,
        finish_reason="cancelled",
        reasoning="Let me think. π",
        content="```python\n",
        first_token_at=at,
        token=job.token,
    )
    (row,) = store.generations(job.id, 1)
    assert (row.kind, row.trigger_id, row.seed, row.model, row.prefix_chars) == (
        Origin.FORK,
        trigger_id,
        2**40,
        "glm",
        1200,
    )
    assert (row.usage, row.finish_reason, row.reasoning, row.content) == (
        USAGE,
        "cancelled",
        "Let me think. π",
        "```python\n",
    )
    assert row.first_token_at is not None
    assert abs(row.first_token_at.timestamp() - at) < 1e-3
    (stored,) = store.triggers(job.id)
    assert (stored.kind, stored.position, stored.text, stored.launched) == (
        TriggerClass.DECISION,
        1200,
        "use 128 x 64 tiles",
        2,
    )


def test_only_the_first_end_of_a_generation_counts(job: Running) -> None:
    store = job.store
    generation = store.start_generation(
        job.id, 1, kind=Origin.MAIN, seed=0, model="m", template_hash="h", token=job.token
    )
    for reason in ("stop", "cancelled"):
        store.finish_generation(job.id, generation, usage=USAGE, finish_reason=reason, token=job.token)
    assert store.generations(job.id)[0].finish_reason == "stop"


def test_tokens_are_counted_by_what_spent_them(job: Running) -> None:
    store = job.store
    for kind, number in ((Origin.MAIN, 1), (Origin.FORK, 3)):
        for _ in range(number):
            generation = store.start_generation(
                job.id, 1, kind=kind, seed=0, model="m", template_hash="h", token=job.token
            )
            store.finish_generation(job.id, generation, usage=USAGE, finish_reason="stop", token=job.token)
    store.save_side_call(job.id, "judge/1", {"x": 1}, Usage(prompt_tokens=7, completion_tokens=2), token=job.token)
    tokens = store.tokens(job.id)
    assert tokens.main == USAGE
    assert tokens.forks == Usage(300, 120, 90, 150, reported=True)
    assert tokens.side == Usage(7, 0, 0, 2, reported=False)
    assert tokens.total == 150 + 450 + 9


def test_a_side_call_is_paid_once(job: Running) -> None:
    store = job.store
    assert store.side_call(job.id, "judge/1") is None
    first = store.save_side_call(job.id, "judge/1", {"advice": [1, None]}, USAGE, token=job.token)
    second = store.save_side_call(job.id, "judge/1", {"advice": "later"}, Usage(), token=job.token)
    assert first == second == store.side_call(job.id, "judge/1")
    assert first.reply == {"advice": [1, None]}


def test_a_side_call_without_an_answer_is_remembered_too(job: Running) -> None:
    job.store.save_side_call(job.id, "judge/1", None, USAGE, token=job.token)
    known = job.store.side_call(job.id, "judge/1")
    assert known is not None
    assert known.reply is None


def test_scheduler_decisions_are_read_back_in_order(store: Store) -> None:
    decisions = [
        SchedulerDecision(f"j/{n}", "paper", 10, 10 - n, n, max_validate=5, max_profile=n, moved=1, dropped=2)
        for n in (1, 2, 3)
    ]
    for decision in decisions:
        store.add_decision(decision)
    assert store.decisions() == tuple(decisions)
    assert store.decisions(limit=2) == tuple(decisions[1:])
