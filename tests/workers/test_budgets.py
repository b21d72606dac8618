"""Budgets stop a job cleanly: in the middle of an iteration, with everything kept, and with a reason that names it."""

from __future__ import annotations

import pytest

from specgen.types import IterationReason, JobState
from tests.workers.jobs import LONG, SHORT, World, start_model, start_world  # noqa: F401 (fixtures)


def test_a_token_budget_ends_the_iteration_at_a_boundary(world: World) -> None:
    job = world.submit(LONG, token_budget=1500)
    told = world.run(job)
    assert told.startswith("done: token budget reached (")
    assert told.endswith("of 1500 tokens): no valid kernel")
    (record,) = world.store.iterations(job)
    assert record.reason is IterationReason.BUDGET
    (main,) = [row for row in world.store.generations(job) if row.kind == "main"]
    assert (main.finish_reason, bool(main.reasoning)) == ("cancelled", True)
    assert all(row.ended_at for row in world.store.generations(job))
    assert 1500 <= world.store.tokens(job).total < 6000
    assert world.redis.exists(f"specgen:closed:{job}/0")
    assert world.client.job(job).state is JobState.DONE
    assert not world.sent


def test_a_time_budget_counts_work_over_resumes_and_no_pauses(world: World) -> None:
    job = world.submit(LONG, time_budget_s=2.0)
    world.run(job, lambda: world.client.stop(job))
    worked = world.client.job(job).active_s
    assert 0 < worked < 2.0
    world.client.resume(job)
    told = world.run(job)
    assert told.startswith("done: time budget reached (2 of 2 s)")
    assert world.client.job(job).active_s == pytest.approx(2.0, abs=1.0)
    (record,) = world.store.iterations(job)
    assert record.reason is IterationReason.BUDGET


def test_a_spent_budget_starts_no_further_iteration(world: World) -> None:
    job = world.submit(SHORT, token_budget=50)
    world.run(job)
    if world.state(job) is JobState.RUNNING:  # the iteration was shorter than the guard's look
        world.run(job)
    assert world.state(job) is JobState.DONE
    assert world.client.job(job).reason.startswith("token budget reached")
    assert len(world.store.iterations(job)) == 1


def test_the_budget_of_iterations_names_itself(world: World) -> None:
    job = world.submit(SHORT, iterations=1)
    world.run(job)
    assert world.run(job) == "done: iteration budget reached: the model never produced code"
