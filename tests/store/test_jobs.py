"""Jobs: ids, states, leases with fencing tokens."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import UTC, datetime

import pytest

from specgen.errors import StaleLease, UserError
from specgen.store import Store
from specgen.store.jobs import NEXT, short_id
from specgen.types import IterationReason, JobState, Origin, Phase, Prompt, Status, Trigger, TriggerClass, Usage, Wish
from tests.store.conftest import PROMPT, SPEC, Running


def test_a_created_job_is_read_back_whole(store: Store) -> None:
    job = store.job(store.create_job(SPEC))
    assert job.spec == SPEC
    assert (job.state, job.fencing_token, job.wish, job.priority) == (JobState.QUEUED, 0, "", 0)
    assert abs((datetime.now(UTC) - job.created_at).total_seconds()) < 60


def test_ids_are_short_readable_and_sorted_by_creation(store: Store) -> None:
    ids = [store.create_job(SPEC) for _ in range(20)]
    assert len(set(ids)) == 20
    assert ids[0].startswith(f"t4-diagonal-{datetime.now(UTC):%Y%m%d}-")
    assert ids == sorted(ids) or ids[0].endswith("f")  # the last second of a day wraps
    assert [job.id for job in store.jobs()] == ids


def test_id_follows_the_time_of_day() -> None:
    at = [datetime(2026, 11, 30, hour, tzinfo=UTC) for hour in (0, 12, 23)]
    assert [short_id("T4", when) for when in at] == ["t4-20261130-0000", "t4-20261130-8000", "t4-20261130-f555"]
    assert short_id("Ünï/код", at[0]) == "n-20261130-0000"
    assert short_id("//", at[0], 0x10001) == "job-20261130-0001"


def test_an_unknown_job_is_the_users_error(store: Store) -> None:
    for use in (store.job, store.summary, store.control, store.resume, lambda job: store.ask(job, Wish.STOP)):
        with pytest.raises(UserError, match="no-such"):
            use("no-such")
    with pytest.raises(UserError):
        store.acquire_lease("no-such", "a", 1)


def test_threads_that_create_jobs_at_once_get_different_ids(store: Store) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(store.create_job(SPEC))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 12


# ------------------------------------------------------------------------------------------------ leases


def test_a_held_lease_is_refused_to_others_until_it_is_released(store: Store) -> None:
    job_id = store.create_job(SPEC)
    first = store.acquire_lease(job_id, "a", 60)
    assert first == 1
    assert store.acquire_lease(job_id, "b", 60) is None
    store.release_lease(job_id, first)
    assert store.acquire_lease(job_id, "b", 60) == 2


def test_an_expired_lease_is_taken_over_and_outdates_the_old_token(store: Store) -> None:
    job_id = store.create_job(SPEC)
    old = store.acquire_lease(job_id, "a", 0.05)
    assert old is not None
    time.sleep(0.1)
    new = store.acquire_lease(job_id, "b", 60)
    assert new == old + 1
    with pytest.raises(StaleLease):
        store.renew_lease(job_id, old, 60)
    with pytest.raises(StaleLease):
        store.release_lease(job_id, old)
    store.renew_lease(job_id, new, 60)


def test_renewing_keeps_others_out(store: Store) -> None:
    job_id = store.create_job(SPEC)
    token = store.acquire_lease(job_id, "a", 0.2)
    assert token is not None
    store.renew_lease(job_id, token, 60)
    time.sleep(0.3)
    assert store.acquire_lease(job_id, "b", 60) is None


def test_the_same_owner_gets_a_new_token(store: Store) -> None:
    """A redelivered task of the same worker must fence off its own earlier self."""
    job_id = store.create_job(SPEC)
    assert [store.acquire_lease(job_id, "a", 60), store.acquire_lease(job_id, "a", 60)] == [1, 2]


def test_one_of_many_threads_gets_the_lease(store: Store) -> None:
    job_id = store.create_job(SPEC)
    tokens: list[int | None] = []
    start = threading.Barrier(8)

    def take(owner: str) -> None:
        start.wait()
        tokens.append(store.acquire_lease(job_id, owner, 60))

    threads = [threading.Thread(target=take, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tokens, key=str) == [1] + [None] * 7


def test_every_write_of_a_stale_worker_is_refused_and_leaves_nothing(job: Running) -> None:
    """Given a worker that slept past its lease while another took over, I expect none of its writes to be stored."""
    store, stale = job.store, job.token
    candidate = job.candidate("x = 1")
    request = job.request(candidate, Phase.VALIDATE)
    generation = store.start_generation(
        job.id, 1, kind=Origin.MAIN, seed=0, model="m", template_hash="h", token=job.token
    )
    store.release_lease(job.id, stale)
    assert store.acquire_lease(job.id, "worker-b", 60) == stale + 1
    before = _everything(store, job.id)

    writes = [
        lambda: store.open_iteration(job.id, 2, step={}, prompt=PROMPT, search_state=None, token=stale),
        lambda: store.close_iteration(
            job.id,
            1,
            reason=IterationReason.MAIN,
            chosen_candidate=None,
            threshold=None,
            search_state={},
            token=stale,
        ),
        lambda: store.add_trigger(job.id, 1, Trigger(TriggerClass.FENCE, 5), 1, token=stale),
        lambda: store.start_generation(job.id, 1, kind=Origin.FORK, seed=0, model="", template_hash="", token=stale),
        lambda: store.finish_generation(job.id, generation, usage=Usage(), finish_reason="stop", token=stale),
        lambda: store.add_candidate(job.id, 1, "y = 2", origin=Origin.FORK, token=stale),
        lambda: store.add_request(request.model_copy(update={"request_id": "other"}), token=stale),
        lambda: store.record_result(job.result(request, Status.HANG), job.id, token=stale),
        lambda: store.save_side_call(job.id, "judge/1", {"a": 1}, Usage(), token=stale),
        lambda: store.set_state(job.id, JobState.DONE, "", stale),
        lambda: store.renew_lease(job.id, stale, 60),
        lambda: store.release_lease(job.id, stale),
    ]
    for write in writes:
        with pytest.raises(StaleLease):
            write()
    assert _everything(store, job.id) == before


def _everything(store: Store, job_id: str) -> tuple[object, ...]:
    return (
        store.job(job_id),
        store.iterations(job_id),
        store.triggers(job_id),
        store.generations(job_id),
        store.evaluated(job_id),
        store.requests(job_id),
        store.side_call(job_id, "judge/1"),
        store.summary(job_id).candidates,
    )


# ------------------------------------------------------------------------------------------------ states


WAY = {
    JobState.QUEUED: [],
    JobState.RUNNING: [JobState.RUNNING],
    JobState.STOPPED: [JobState.STOPPED],
    JobState.FAILED: [JobState.FAILED],
    JobState.PAUSED: [JobState.PAUSED],
    JobState.CANCELLED: [JobState.CANCELLED],
    JobState.DONE: [JobState.RUNNING, JobState.DONE],
}


def test_states_move_along_the_graph_only(store: Store) -> None:
    for old, new in itertools.product(JobState, JobState):
        job_id = store.create_job(SPEC)
        for state in WAY[old]:
            store.set_state(job_id, state)
        if new is old or new in NEXT[old]:
            store.set_state(job_id, new, "because")
            assert (store.job(job_id).state, store.job(job_id).reason) == (new, "because")
        else:
            with pytest.raises(UserError, match=f"{old}"):
                store.set_state(job_id, new)
            assert store.job(job_id).state is old


def test_without_a_token_a_running_jobs_state_is_its_workers(job: Running) -> None:
    with pytest.raises(StaleLease):
        job.store.set_state(job.id, JobState.STOPPED)
    job.store.set_state(job.id, JobState.DONE, "all iterations", job.token)
    job.store.release_lease(job.id, job.token)
    record = job.store.job(job.id)
    assert record.finished_at is not None
    assert record.started_at is not None
    assert record.started_at <= record.finished_at


def test_jobs_by_state(store: Store) -> None:
    first, second = store.create_job(SPEC), store.create_job(SPEC)
    store.set_state(second, JobState.RUNNING)
    assert [job.id for job in store.jobs(JobState.QUEUED)] == [first]
    assert [job.id for job in store.jobs(JobState.RUNNING)] == [second]


def test_a_prompt_with_any_text_is_kept(job: Running) -> None:
    prompt = Prompt("s", "π ⊕ ü 'quotes' \"double\" %s {x} \n\ttabs", "0" * 64)
    stored = job.store.open_iteration(job.id, 2, step={}, prompt=prompt, search_state=[1], token=job.token)
    assert stored.prompt == prompt


def test_what_a_database_cannot_hold_does_not_stop_a_job(job: Running) -> None:
    """Given NUL bytes and lone surrogates of an LLM, and NaN of a counter, I expect them replaced, not an error."""
    prompt = Prompt("", "a\0b\ud800c", "h")
    stored = job.store.open_iteration(
        job.id,
        2,
        step={"a\0": ["\0", float("nan"), float("inf"), 1.5]},
        prompt=prompt,
        search_state=None,
        token=job.token,
    )
    assert stored.prompt.user == "a\ufffdb?c"
    assert stored.step == {"a\ufffd": ["\ufffd", None, None, 1.5]}
