"""Several iterations of one job side by side, under one lease: none lost, none doubled, barriers kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from specgen.client import problem
from specgen.errors import SettingsError
from specgen.search import check_lanes
from specgen.store import IterationRecord
from specgen.types import IterationReason, JobState
from tests.workers.jobs import LONG, SHORT, World, start_model, start_world  # noqa: F401 (fixtures)
from workers.iteration import Runner

MAINS = "SELECT COUNT(*) FROM generations WHERE kind = 'main'"


def most_open(records: Sequence[IterationRecord]) -> int:
    """How many were open at the same time."""
    events = [(record.opened_at, 1) for record in records]
    events += [(record.closed_at, -1) for record in records if record.closed_at is not None]
    open_now = most = 0
    for _, change in sorted(events):
        open_now += change
        most = max(most, open_now)
    return most


def test_every_iteration_runs_once_and_as_many_at_a_time_as_there_are_lanes(world: World) -> None:
    job = world.submit(SHORT, search="best_of_n", lanes=3, iterations=7)
    assert world.run(job).startswith("done: iteration budget reached: ")
    records = world.store.iterations(job)
    assert [record.iteration for record in records] == list(range(7))
    assert all(record.closed for record in records)
    assert most_open(records) == 3
    assert len([row for row in world.store.generations(job) if row.kind == "main"]) == 7
    assert len({row.seed for row in world.store.generations(job)}) == 7
    assert not world.sent  # one task for all of them


def test_what_a_dead_worker_left_open_is_taken_up_and_nothing_is_opened_twice(world: World) -> None:
    job = world.submit(LONG, search="best_of_n", lanes=3, iterations=9)

    async def killed() -> None:
        runner = Runner(world.settings, world.store, job, "worker/dead")
        task = asyncio.create_task(runner.run())
        while len([row for row in world.store.generations(job) if row.ended_at is None]) < 3:
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(killed(), 60))
    before = world.store.iterations(job)
    assert [record.closed for record in before] == [False] * 3
    world.store.release_lease(job, world.store.job(job).fencing_token)
    world.run(job, lambda: world.client.stop(job))
    after = world.store.iterations(job)
    assert [record.iteration for record in after] == [0, 1, 2]
    assert [record.prompt for record in after] == [record.prompt for record in before]
    assert world.state(job) is JobState.STOPPED


def test_a_pause_lets_the_lanes_close_and_opens_none(world: World) -> None:
    job = world.submit(600, search="best_of_n", lanes=2, iterations=9)
    world.run(job, lambda: world.client.pause(job))
    assert world.state(job) is JobState.PAUSED
    records = world.store.iterations(job)
    assert len(records) == 2
    assert all(record.closed for record in records)


def test_a_budget_ends_all_lanes(world: World) -> None:
    job = world.submit(LONG, search="best_of_n", lanes=2, iterations=9, token_budget=3000)
    assert world.run(job).startswith("done: token budget reached (")
    assert {record.reason for record in world.store.iterations(job)} == {IterationReason.BUDGET}
    assert len(world.store.iterations(job)) == 2


def test_a_round_is_waited_for(world: World) -> None:
    job = world.submit(SHORT, search="kernelagent", lanes=4, iterations=6)
    world.run(job)
    records = world.store.iterations(job)
    assert len(records) == 6
    barrier = max(record.closed_at for record in records[:4] if record.closed_at is not None)
    assert all(record.opened_at >= barrier for record in records[4:])
    assert most_open(records[:4]) == 4


def test_a_search_that_goes_step_by_step_has_one_lane(world: World) -> None:
    with pytest.raises(SettingsError, match="'refine' runs at most 1 iterations at a time, not 2"):
        world.submit(SHORT, lanes=2)
    check_lanes("alphaevolve", 20)
    assert problem("T4").name == "T4"
