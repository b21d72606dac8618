"""Exactly one final outcome per candidate, whatever is evaluated twice, late, or at once."""

from __future__ import annotations

import itertools
import threading

import pytest

from specgen.store.outcomes import is_final
from specgen.types import IterationReason, Origin, Phase, Status
from tests.store.conftest import Running


def test_the_same_source_is_one_candidate(job: Running) -> None:
    store = job.store
    first = store.add_candidate(job.id, 1, "a = 1\n", origin=Origin.FORK, token=job.token)
    same = store.add_candidate(job.id, 1, "a = 1  \r\n\r\n", origin=Origin.MAIN, token=job.token)
    other = store.add_candidate(job.id, 1, "a = 2", origin=Origin.MAIN, token=job.token)
    assert (first.is_new, same.is_new, other.is_new) == (True, False, True)
    assert same.candidate_id == first.candidate_id
    assert same.origin is Origin.FORK  # who wrote it first
    assert same.source == "a = 1\n"


def test_two_jobs_may_have_the_same_candidate(job: Running) -> None:
    from tests.store.conftest import running

    other = running(job.store)
    assert job.candidate("a = 1") == other.candidate("a = 1")


def test_a_request_is_stored_once(job: Running) -> None:
    request = job.request(job.candidate("a = 1"), Phase.VALIDATE)
    assert not job.store.add_request(request, token=job.token)
    assert [r.status for r in job.store.requests(job.id)] == ["queued"]


def test_every_failed_validation_is_final_and_not_in_h(job: Running) -> None:
    failures = [s for s in Status if s.kind in ("candidate", "problem") and s is not Status.VALID]
    for number, status in enumerate(failures):
        assert job.evaluate(f"a = {number}", status)
    assert job.store.history(job.id) == (0.0,)
    assert [e.result.status for e in job.store.evaluated(job.id)] == failures


def test_a_valid_validation_waits_for_its_profile(job: Running) -> None:
    store = job.store
    candidate = job.candidate("a = 1")
    validated = job.result(job.request(candidate, Phase.VALIDATE), Status.VALID, 1.5)
    assert not store.record_result(validated, job.id, token=job.token)
    assert store.outcome_of(job.id, candidate) is None
    assert store.validation_of(job.id, candidate) == validated
    assert store.history(job.id) == (0.0,)

    profiled = job.result(job.request(candidate, Phase.PROFILE), Status.VALID, 1.75)
    assert store.record_result(profiled, job.id, token=job.token)
    assert store.outcome_of(job.id, candidate) == profiled
    assert store.history(job.id) == (0.0, 1.75)


def test_our_own_faults_leave_the_candidate_open(job: Running) -> None:
    candidate = job.candidate("a = 1")
    for status, phase in itertools.product((Status.ABORTED, Status.INFRA_ERROR), Phase):
        request = job.request(candidate, phase)
        assert not job.store.record_result(job.result(request, status), job.id, token=job.token)
        assert job.store.requests(job.id)[-1].status == status.value
        assert job.store.outcome_of(job.id, candidate) is None
    again = job.request(candidate, Phase.PROFILE)
    assert job.store.record_result(job.result(again, Status.VALID, 2.0), job.id, token=job.token)


def test_a_profile_without_counters_counts(job: Running) -> None:
    assert job.evaluate("a = 1", Status.PROFILER_UNAVAILABLE, 1.25, Phase.PROFILE)
    assert job.store.history(job.id) == (0.0, 1.25)


def test_a_kernel_that_fails_while_profiled_is_final(job: Running) -> None:
    assert not job.evaluate("a = 1", Status.VALID, 1.5)
    assert job.evaluate("a = 1", Status.HANG, None, Phase.PROFILE)
    assert job.store.history(job.id) == (0.0,)


def test_what_is_final() -> None:
    open_in_validation = {Status.VALID, Status.PROFILER_UNAVAILABLE, Status.ABORTED, Status.INFRA_ERROR}
    assert {s for s in Status if not is_final(Phase.VALIDATE, s)} == open_in_validation
    assert {s for s in Status if not is_final(Phase.PROFILE, s)} == {Status.ABORTED, Status.INFRA_ERROR}


def test_evaluated_twice_is_one_outcome_and_the_first_stands(job: Running) -> None:
    candidate = job.candidate("a = 1")
    first, second = (job.request(candidate, Phase.PROFILE) for _ in range(2))
    store = job.store
    assert store.record_result(job.result(first, Status.VALID, 2.0), job.id, token=job.token)
    assert not store.record_result(job.result(first, Status.VALID, 2.5), job.id, token=job.token)
    assert not store.record_result(job.result(second, Status.HANG), job.id, token=job.token)
    assert store.history(job.id) == (0.0, 2.0)
    assert [r.status for r in store.requests(job.id)] == ["valid", "hang"]  # both requests are on record


def test_threads_that_record_the_same_candidate_make_one_outcome(job: Running) -> None:
    """Given the result of one candidate from several requests at once, I expect exactly one to become final."""
    candidate = job.candidate("a = 1")
    results = [job.result(job.request(candidate, Phase.PROFILE), Status.VALID, 1.0 + n) for n in range(8)]
    start, final, errors = threading.Barrier(len(results)), [], []

    def record(number: int) -> None:
        start.wait()
        try:
            final.append((job.store.record_result(results[number], job.id, token=job.token), number))
        except Exception as exc:  # shown below
            errors.append(exc)

    threads = [threading.Thread(target=record, args=(n,)) for n in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    (winner,) = [number for was_final, number in final if was_final]
    assert job.store.outcome_of(job.id, candidate) == results[winner]
    assert job.store.history(job.id) == (0.0, 1.0 + winner)


def test_a_result_after_the_boundary_overwrites_dropped(job: Running) -> None:
    request = job.request(job.candidate("a = 1"), Phase.VALIDATE)
    job.close(IterationReason.MAIN)
    assert not job.store.record_result(job.result(request, Status.ABORTED), job.id, token=job.token)
    assert job.store.requests(job.id)[0].status == "aborted"


def test_a_result_for_a_request_that_was_never_stored_is_refused(job: Running) -> None:
    request = job.request(job.candidate("a = 1"), Phase.VALIDATE)
    for change in ({"request_id": "other"}, {"phase": Phase.PROFILE}):
        stranger = job.result(request.model_copy(update=change), Status.HANG)
        with pytest.raises(ValueError, match="not the one"):
            job.store.record_result(stranger, job.id, token=job.token)
    assert job.store.evaluated(job.id) == ()


def test_history_and_evaluated_are_in_the_order_of_the_results(job: Running) -> None:
    sources = {"a = 1": 2.0, "b = 1": 3.0, "c = 1": 1.0}
    requests = {s: job.request(job.candidate(s), Phase.PROFILE) for s in sources}
    for source in ("c = 1", "a = 1", "b = 1"):
        job.store.record_result(job.result(requests[source], Status.VALID, sources[source]), job.id, token=job.token)
    assert job.store.history(job.id) == (0.0, 1.0, 2.0, 3.0)
    assert [e.candidate.source for e in job.store.evaluated(job.id)] == ["c = 1\n", "a = 1\n", "b = 1\n"]


def test_a_candidate_reopened_later_counts_for_the_iteration_that_measured_it(job: Running) -> None:
    candidate = job.candidate("a = 1")
    job.store.record_result(job.result(job.request(candidate, Phase.VALIDATE), Status.ABORTED), job.id, token=job.token)
    job.close()
    job.open(2)
    request = job.request(candidate, Phase.PROFILE, Origin.MAIN)
    job.store.record_result(job.result(request, Status.VALID, 2.0), job.id, token=job.token)
    (evaluated,) = job.store.evaluated(job.id)
    assert (evaluated.iteration, evaluated.origin, evaluated.candidate.iteration) == (2, Origin.MAIN, 1)
    assert job.store.evaluated(job.id, 1) == ()
    best = job.store.best(job.id)
    assert best is not None
    assert (best.speedup, best.iteration, best.origin, best.source) == (2.0, 2, Origin.MAIN, "a = 1\n")


def test_best_is_the_fastest_and_the_earliest_of_equals(job: Running) -> None:
    assert job.store.best(job.id) is None
    job.profile("a = 1", 2.0)
    job.profile("b = 1", 4.0)
    job.profile("c = 1", 4.0)
    best = job.store.best(job.id)
    assert best is not None
    assert best.source == "b = 1\n"


def test_summary_counts(job: Running) -> None:
    job.profile("a = 1", 2.0)
    job.evaluate("b = 1", Status.COMPILE_ERROR)
    job.candidate("c = 1")
    job.close(IterationReason.EARLY)
    job.open(2)
    summary = job.store.summary(job.id)
    assert (summary.iterations_closed, summary.early_terminations) == (1, 1)
    assert (summary.candidates, summary.profiled, summary.best_speedup) == (3, 1, 2.0)
    assert summary.statuses == {"compile_error": 1, "valid": 1}
    assert 0 <= summary.elapsed_s < 60


def test_what_an_attempt_that_died_left_unfinished(job: Running) -> None:
    valid, asked, bare = (job.candidate(f"a = {i}") for i in range(3))
    assert not job.evaluate("a = 0", Status.VALID, 2.0)
    waiting = job.request(asked, Phase.VALIDATE)
    assert job.evaluate("a = 3", Status.COMPILE_ERROR)
    left = {u.candidate.candidate_id: u for u in job.store.unfinished(job.id, 1)}
    assert set(left) == {valid, asked, bare}
    assert (left[valid].validated, left[valid].request) == (True, None)
    request = left[asked].request
    assert request is not None
    assert (request.request_id, left[asked].validated) == (waiting.request_id, False)
    assert (left[bare].validated, left[bare].request) == (False, None)
