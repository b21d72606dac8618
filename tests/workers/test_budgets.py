"""Budgets stop a job cleanly: in the middle of an iteration, with everything kept, and with a reason that names it."""

from __future__ import annotations

import pytest

from specgen.client import problem
from specgen.controller.budgets import Budget, Spent
from specgen.settings import Price
from specgen.types import IterationReason, JobSpec, JobState
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


def test_a_cost_budget_counts_by_the_profile_s_price(world: World) -> None:
    job = world.submit(LONG, cost_budget=0.03)
    with pytest.MonkeyPatch.context() as patch:
        profile = world.settings.llm["default"]
        patch.setitem(world.settings.llm, "default", profile.model_copy(update={"price": Price(input=1, output=50)}))
        told = world.run(job)
    assert told.startswith("done: cost budget reached (")
    assert told.endswith(" of 0.03): no valid kernel")
    totals = world.store.tokens(job)
    tokens = totals.main + totals.forks
    paid = world.store.cost(job)
    assert paid is not None
    assert paid == pytest.approx((tokens.prompt_tokens + 50 * tokens.completion_tokens) / 1e6)


def test_a_cost_budget_without_a_price_is_refused(world: World) -> None:
    job = world.submit(SHORT, cost_budget=1.0)
    assert world.run(job).startswith("failed: a cost budget needs a price, and LLM profile 'default' has none")


def test_a_plateau_ends_the_job(world: World) -> None:
    job = world.submit(SHORT, iterations=9, plateau=2)
    told = [world.run(job) for _ in range(3)]
    assert told[-1] == "done: plateau reached (2 iterations without a faster kernel): no valid kernel"


def test_the_target_is_looked_at_in_an_iteration_and_before_one() -> None:
    budget = Budget.of(JobSpec(problem=problem("T4"), target_speedup=5.0))
    assert budget.reached(Spent(best=4.9)) == ""
    assert budget.reached(Spent(best=5.25)) == "target speedup reached (5.250x of 5x)"


def test_the_budget_of_iterations_names_itself(world: World) -> None:
    job = world.submit(SHORT, iterations=1)
    world.run(job)
    assert world.run(job) == "done: iteration budget reached: the model never produced code"
