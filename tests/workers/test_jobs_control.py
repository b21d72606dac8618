"""Pause, stop, cancel, resume and priority of a job whose iteration runs; and of one that waits."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from specgen.client import iteration_key
from specgen.errors import UserError
from specgen.scheduler.pool import PoolState
from specgen.types import Event, IterationReason, JobState, Wish
from tests.workers.jobs import LONG, SHORT, World, start_model, start_world  # noqa: F401 (fixtures)


def open_scopes(world: World) -> list[str]:
    with PoolState(world.settings.redis) as pool:
        return pool.open_scopes()


def closed(world: World, scope: str) -> bool:
    return bool(world.redis.exists(f"specgen:closed:{scope}"))


def test_a_pause_lets_the_iteration_end_and_resuming_goes_on_with_the_next(world: World) -> None:
    job = world.submit(SHORT)
    assert world.run(job, lambda: world.store.ask(job, Wish.PAUSE)).startswith("paused")
    (record,) = world.store.iterations(job)
    assert record.reason is IterationReason.NO_CODE
    assert (world.state(job), world.client.job(job).reason) == (JobState.PAUSED, "paused by the user")
    assert not world.sent
    assert world.run(job) == "already paused"

    world.client.resume(job)
    assert world.state(job) is JobState.QUEUED
    assert world.run(job).startswith("running")
    assert [r.closed for r in world.store.iterations(job)] == [True, True]
    assert world.sent == [job]


def test_a_pause_at_a_boundary_starts_no_further_iteration(world: World) -> None:
    job = world.submit(SHORT)
    world.run(job)
    token = world.store.acquire_lease(job, "held", 0.5)  # a worker has it, but has not begun the iteration
    assert token is not None
    world.client.pause(job)
    assert world.run(job).startswith("paused")
    assert len(world.store.iterations(job)) == 1


def test_a_stop_gives_the_iteration_up_and_resuming_runs_it_again(world: World) -> None:
    job = world.submit(LONG)
    assert world.run(job, lambda: world.client.stop(job)).startswith("stopped")
    (record,) = world.store.iterations(job)
    assert not record.closed
    assert closed(world, f"{job}/0")
    (main,) = world.store.generations(job)
    assert main.finish_reason == "cancelled"
    assert main.reasoning  # what was paid for is kept
    world.client.resume(job)
    world.client.stop(job)
    assert world.state(job) is JobState.STOPPED


def test_a_cancellation_is_at_once_and_for_good(world: World) -> None:
    job = world.submit(LONG)
    assert world.run(job, lambda: world.client.cancel(job)) == "cancelled: cancelled by the user"
    assert closed(world, f"{job}/0")
    assert not open_scopes(world)
    assert all(row.ended_at for row in world.store.generations(job))
    for use in (world.client.resume, world.client.cancel, world.client.pause):
        with pytest.raises(UserError, match="cancelled"):
            use(job)
    last = world.redis.xrevrange(f"specgen:events:{job}", count=1)[0][1]["event"]
    assert Event.model_validate_json(last).data["state"] == "cancelled"


def test_what_a_dead_worker_left_in_the_pool_goes_with_the_job(world: World) -> None:
    """Given an iteration whose worker was killed, if its job is cancelled before another takes it up, I expect the
    scope to be closed by whoever fulfils the wish: the next worker, or the client where there is none."""
    for held_s in (0.0, 1.5):
        job = world.submit(LONG)
        token = world.store.acquire_lease(job, "dead", held_s)
        assert token is not None
        _open(world, job, token)
        state = world.client.cancel(job)
        if not state.terminal:
            assert world.run(job).startswith("cancelled")
        assert world.state(job) is JobState.CANCELLED
        assert closed(world, f"{job}/0")
        assert not open_scopes(world)


def test_a_job_that_fails_leaves_nothing_of_an_earlier_worker_in_the_pool(world: World) -> None:
    job = world.submit(LONG)
    token = world.store.acquire_lease(job, "dead", 0.0)
    assert token is not None
    _open(world, job, token)  # its step is none that the search knows
    assert world.run(job).startswith("failed: ValueError: not a step")
    assert closed(world, f"{job}/0")
    assert not open_scopes(world)


def _open(world: World, job: str, token: int) -> None:
    from specgen.scheduler.keys import Keys, script
    from specgen.types import Prompt

    world.store.open_iteration(job, 0, step={}, prompt=Prompt("", ""), search_state=None, token=token)
    world.redis.eval(script("open"), 0, *Keys("specgen").args(f"{job}/0", "cpu"))
    assert open_scopes(world) == [f"{job}/0"]


def test_a_job_that_waits_is_moved_at_once(world: World) -> None:
    job = world.submit(SHORT)
    assert world.client.pause(job) is JobState.PAUSED
    assert world.run(job) == "already paused"
    with pytest.raises(UserError, match="paused already"):
        world.client.stop(job)
    world.client.resume(job)
    assert world.client.cancel(job) is JobState.CANCELLED
    events = [event for event in world.client.events(job) if event is not None]  # ends: followers are told
    assert events[-1].data["state"] == "paused"


def test_a_priority_reaches_requests_and_tasks_from_then_on(world: World) -> None:
    job = world.submit(LONG, priority=2)

    def change() -> None:
        world.await_priority(2)
        world.client.set_priority(job, 7)
        world.await_priority(7)
        world.client.stop(job)

    assert world.run(job, change).startswith("stopped")
    world.redis.delete("iterations")
    world.client.resume(job)
    tag = world.redis.zrange("iterations", 0, 0)[0]
    assert world.redis.hget(f"specgen:message:{tag}", "priority") == "7"
    assert world.redis.exists(iteration_key("specgen", job))  # its task waits: reconciliation lets it be


def test_a_worker_whose_job_was_taken_over_writes_nothing_and_leaves_the_scope(world: World) -> None:
    job = world.submit(LONG)

    def take_over() -> None:
        with world.store.engine.begin() as connection:
            connection.execute(text("UPDATE jobs SET lease_expires_at = '2000-01-01 00:00:00'"))
        assert world.store.acquire_lease(job, "successor", 600.0)

    assert world.run(job, take_over) == "another worker took it over"
    assert world.redis.hget("specgen:counters", "fence_refused") == "1"
    assert not closed(world, f"{job}/0")
    assert [row.ended_at for row in world.store.generations(job) if row.kind == "main"] == [None]
    assert not world.sent
