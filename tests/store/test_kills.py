"""A worker killed at any statement of a write leaves all of it or none; a forked child has connections of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from specgen.store import Store
from specgen.types import IterationReason, Phase, Status
from tests.store.conftest import Running

MOST_STATEMENTS = 8  # a write has fewer

CHILD = textwrap.dedent("""
    import os, signal, sys
    from sqlalchemy import event
    from specgen.store import Store
    from specgen.types import EvaluationResult, IterationReason

    url, what, die_at, job_id, token, payload = sys.argv[1:]
    store = Store.open(url)
    seen = 0

    @event.listens_for(store.engine, "after_cursor_execute")
    def count(*_):
        global seen
        seen += 1
        if seen == int(die_at):
            os.kill(os.getpid(), signal.SIGKILL)

    if what == "close":
        store.close_iteration(job_id, 1, reason=IterationReason.MAIN, chosen_candidate=None, threshold=None,
                              search_state={"after": 1}, token=int(token))
    else:
        store.record_result(EvaluationResult.model_validate_json(payload), job_id, token=int(token))
""")


def kill_at(url: str, what: str, statement: int, job: Running, payload: str = "") -> bool:
    """Run the write in a process that kills itself after that many statements; False if it got to its end."""
    arguments = [url, what, str(statement), job.id, str(job.token), payload]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_a_boundary_is_committed_whole_or_not_at_all(url: str, job: Running) -> None:
    job.request(job.candidate("a = 1"), Phase.VALIDATE)
    kills = 0
    for statement in range(1, MOST_STATEMENTS):
        if not kill_at(url, "close", statement, job):
            break
        kills += 1
        assert not job.store.iterations(job.id)[0].closed
        assert [request.status for request in job.store.requests(job.id)] == ["queued"]
    assert kills >= 3
    assert job.store.iterations(job.id)[0].closed
    assert [request.status for request in job.store.requests(job.id)] == ["dropped"]
    assert not job.close(IterationReason.EARLY)


def test_an_outcome_is_committed_with_its_request_or_not_at_all(url: str, job: Running) -> None:
    request = job.request(job.candidate("a = 1"), Phase.PROFILE)
    result = job.result(request, Status.VALID, 2.0)
    kills = 0
    for statement in range(1, MOST_STATEMENTS):
        if not kill_at(url, "record", statement, job, result.model_dump_json()):
            break
        kills += 1
        assert job.store.requests(job.id)[0].status == "queued"
        assert job.store.history(job.id) == (0.0,)
    assert kills >= 3
    assert job.store.requests(job.id)[0].status == "valid"
    assert job.store.history(job.id) == (0.0, 2.0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_opens_connections_of_its_own(store: Store, job: Running) -> None:
    """Given a pool with open connections, if the process forks (as Celery does), I expect both to go on undisturbed."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert store.job(job.id).id == job.id
            os.write(write_end, store.create_job(store.job(job.id).spec).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made = os.read(read_end, 100).decode()
    os.close(read_end)
    assert {record.id for record in store.jobs()} == {job.id, made}
    assert job.profile("a = 1", 2.0)
