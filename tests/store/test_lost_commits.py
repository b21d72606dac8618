"""A commit that was done but never acknowledged: the write is tried again, and stands once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from specgen.errors import StoreUnavailable
from specgen.store import SchedulerDecision, Store
from specgen.types import Origin, Phase, Status, Trigger, TriggerClass
from tests.store.conftest import Running
from workers.journal import Journal, stored


@contextmanager
def lost(store: Store) -> Iterator[list[str]]:
    """The next commit reaches the server; then the connection is gone, and the driver says so."""
    dialect, real = store.engine.dialect, store.engine.dialect.do_commit
    happened: list[str] = []

    def commit(connection: Any) -> None:
        real(connection)
        if not happened:
            happened.append("lost")
            connection.driver_connection.close()
            error = sqlite3.OperationalError if dialect.name == "sqlite" else psycopg.OperationalError
            raise error("server closed the connection unexpectedly")

    dialect.do_commit = commit  # type: ignore[method-assign]
    try:
        yield happened
    finally:
        dialect.do_commit = real  # type: ignore[method-assign]


def journal(job: Running) -> Journal:
    return Journal(job.store, job.id, 1, job.token, "m", "h")


def test_a_trigger_and_a_generation_are_stored_once(job: Running) -> None:
    recorder = journal(job)
    with lost(job.store) as happened:
        trigger = asyncio.run(recorder.trigger(Trigger(TriggerClass.FENCE, 10), 2))
    assert happened
    assert [row.id for row in job.store.triggers(job.id)] == [trigger]
    with lost(job.store) as happened:
        generation = asyncio.run(recorder.generation_started(Origin.FORK, seed=1, prefix="0123", trigger_id=trigger))
    assert happened
    assert [row.id for row in job.store.generations(job.id)] == [generation]


def test_a_decision_of_the_stream_is_stored_once(store: Store) -> None:
    decision = SchedulerDecision("j/1", "paper", 4, 3, 1, max_validate=2, max_profile=1)
    with lost(store), pytest.raises(StoreUnavailable):
        store.add_decision(decision, key="specgen:1-0")
    first = store.add_decision(decision, key="specgen:1-0")
    assert store.decisions() == (decision,)
    assert store.add_decision(decision, key="specgen:2-0") > first


def test_everything_else_may_be_repeated_too(job: Running) -> None:
    store, recorder = job.store, journal(job)
    with lost(store):
        note = asyncio.run(recorder.candidate("a = 1", Origin.FORK, 0 or None, None))  # type: ignore[arg-type]
    assert note.outcome is None
    candidate = job.candidate("b = 1")
    with lost(store):
        request = asyncio.run(stored(lambda: job.request(candidate, Phase.VALIDATE)))
    result = job.result(request, Status.HANG)
    with lost(store):
        asyncio.run(recorder.result(result))
    with lost(store):
        assert not asyncio.run(stored(job.close))  # the second finds it closed
    assert [record.result.status for record in store.evaluated(job.id)] == [Status.HANG]
    assert store.iterations(job.id)[0].closed
