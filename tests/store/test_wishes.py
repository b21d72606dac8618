"""Pause, stop, cancel, resume, priority: fulfilled at once where nobody works on the job, else by its worker."""

from __future__ import annotations

import pytest

from specgen.errors import StaleLease, UserError
from specgen.store import Store
from specgen.types import JobState, Origin, Phase, Wish
from tests.store.conftest import SPEC, Running

TARGETS = [(Wish.PAUSE, JobState.PAUSED), (Wish.STOP, JobState.STOPPED), (Wish.CANCEL, JobState.CANCELLED)]


@pytest.mark.parametrize(("wish", "state"), TARGETS)
def test_a_job_that_nobody_holds_is_moved_at_once(store: Store, wish: Wish, state: JobState) -> None:
    job_id = store.create_job(SPEC)
    assert store.ask(job_id, wish) is state
    job = store.job(job_id)
    assert (job.state, job.reason, job.wish) == (state, f"{state} by the user", Wish.NONE)
    assert store.acquire_lease(job_id, "a", 60) is None  # a task that is still queued finds nothing to do


@pytest.mark.parametrize(("wish", "state"), TARGETS)
def test_a_worker_that_slept_past_its_lease_cannot_undo_it(store: Store, wish: Wish, state: JobState) -> None:
    job_id = store.create_job(SPEC)
    token = store.acquire_lease(job_id, "a", 0.0)
    assert token is not None
    assert store.ask(job_id, wish) is state
    with pytest.raises(StaleLease):
        store.renew_lease(job_id, token, 60)
    with pytest.raises(StaleLease):
        store.settle(job_id, JobState.RUNNING, "", token)
    assert store.job(job_id).state is state


@pytest.mark.parametrize(("wish", "state"), TARGETS)
def test_a_held_jobs_wish_is_fulfilled_as_its_worker_lets_go(job: Running, wish: Wish, state: JobState) -> None:
    assert job.store.ask(job.id, wish) is JobState.RUNNING
    assert job.store.control(job.id).wish is wish
    assert job.store.settle(job.id, JobState.RUNNING, "", job.token, 12.5) == (state, f"{state} by the user")
    record = job.store.job(job.id)
    assert (record.state, record.wish, record.lease_owner, record.active_s) == (state, Wish.NONE, None, 12.5)
    assert record.finished_at is not None


def test_letting_go_twice_is_letting_go_once(job: Running) -> None:
    """Given a commit whose acknowledgement was lost, if the job was resumed meanwhile, I expect that to stand."""
    job.store.ask(job.id, Wish.PAUSE)
    job.store.settle(job.id, JobState.RUNNING, "", job.token)
    assert job.store.settle(job.id, JobState.RUNNING, "", job.token)[0] is JobState.PAUSED
    assert job.store.resume(job.id) is JobState.QUEUED
    assert job.store.settle(job.id, JobState.RUNNING, "", job.token)[0] is JobState.QUEUED


def test_a_job_that_ends_by_itself_is_done_whatever_was_asked(job: Running) -> None:
    job.store.ask(job.id, Wish.CANCEL)
    assert job.store.settle(job.id, JobState.DONE, "all", job.token) == (JobState.DONE, "all")
    assert job.store.job(job.id).wish is Wish.NONE


def test_cancelling_gives_the_open_iteration_up(job: Running) -> None:
    queued = job.request(job.candidate("a = 1"), Phase.VALIDATE)
    job.store.start_generation(job.id, 1, kind=Origin.MAIN, seed=0, model="m", template_hash="h", token=job.token)
    job.store.ask(job.id, Wish.CANCEL)
    job.store.settle(job.id, JobState.STOPPED, "", job.token)
    assert [(r.request_id, r.status) for r in job.store.requests(job.id)] == [(queued.request_id, "dropped")]
    assert [g.finish_reason for g in job.store.generations(job.id)] == ["abandoned"]
    assert not job.store.iterations(job.id)[0].closed


def test_wishes_on_a_job_that_rests_are_refused_with_its_state(store: Store) -> None:
    job_id = store.create_job(SPEC)
    store.ask(job_id, Wish.PAUSE)
    for wish in (Wish.PAUSE, Wish.STOP):
        with pytest.raises(UserError, match="is paused already") as caught:
            store.ask(job_id, wish)
        assert "resume" in caught.value.hint
    assert store.ask(job_id, Wish.CANCEL) is JobState.CANCELLED  # what could be resumed can be given up
    for use in (lambda: store.ask(job_id, Wish.CANCEL), lambda: store.resume(job_id),
                lambda: store.set_priority(job_id, 3)):  # fmt: skip
        with pytest.raises(UserError, match="cancelled"):
            use()


@pytest.mark.parametrize("state", [JobState.PAUSED, JobState.STOPPED, JobState.FAILED])
def test_resuming_queues_what_rests(store: Store, state: JobState) -> None:
    job_id = store.create_job(SPEC)
    store.set_state(job_id, state)
    assert store.resume(job_id) is JobState.QUEUED
    assert store.job(job_id).finished_at is None
    assert store.acquire_lease(job_id, "a", 60) is not None


def test_resuming_takes_a_wish_back_but_not_a_cancellation(job: Running) -> None:
    job.store.ask(job.id, Wish.PAUSE)
    assert job.store.resume(job.id) is JobState.RUNNING
    assert job.store.control(job.id).wish is Wish.NONE
    job.store.ask(job.id, Wish.CANCEL)
    for use in (lambda: job.store.resume(job.id), lambda: job.store.ask(job.id, Wish.PAUSE)):
        with pytest.raises(UserError, match="being cancelled"):
            use()


def test_a_priority_is_the_specs_until_it_is_changed(store: Store) -> None:
    job_id = store.create_job(SPEC.model_copy(update={"priority": 4}))
    assert store.job(job_id).priority == store.control(job_id).priority == 4
    store.set_priority(job_id, -9)
    assert (store.job(job_id).priority, store.job(job_id).spec.priority) == (-9, 4)
    for wrong in (-10, 10):
        with pytest.raises(UserError, match="is not a priority"):
            store.set_priority(job_id, wrong)
    with pytest.raises(UserError, match="no-such"):
        store.set_priority("no-such", 1)


def test_scopes_of_ended_jobs_and_closed_iterations_are_over(job: Running) -> None:
    store = job.store
    job.close()
    job.open(2)
    ended = store.create_job(SPEC)
    store.ask(ended, Wish.STOP)
    scopes = [f"{job.id}/1", f"{job.id}/2", f"{job.id}/3", f"{ended}/0", "gone/0"]
    assert store.over(scopes) == {f"{job.id}/1", f"{ended}/0", "gone/0"}
    assert store.over([]) == set()
