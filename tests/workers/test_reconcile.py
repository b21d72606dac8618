"""The database and the pool, put right in both directions; on a real Valkey and a real SQLite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from specgen.client import Client
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.pool import PoolState
from specgen.settings import Settings
from specgen.store import Store, migrate
from specgen.types import IterationReason, JobSpec, JobState, ProblemSpec, Prompt
from workers import reconcile as module
from workers.reconcile import close_ghosts, orphaned, send_lost

SPEC = JobSpec(problem=ProblemSpec(name="p", source="x"))


@pytest.fixture
def client(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    database = f"sqlite:///{tmp_path / 'specgen.db'}"
    migrate(database)
    monkeypatch.setattr(module, "AFTER", timedelta(seconds=-1))  # as if a minute had passed
    with contextlib.closing(Client(Settings(home=tmp_path, redis_url=redis_url, database_url=database))) as made:
        yield made


def look(client: Client, redis_client: redis.Redis) -> list[str]:
    """One look, which enqueues by the client's own way."""
    return send_lost(redis_client, client.settings, client.store, client._enqueue)


def test_only_jobs_that_nobody_has_and_no_message_moves_are_sent(client: Client, redis_client: redis.Redis) -> None:
    store = client.store
    lost, held, lapsed, done = (store.create_job(SPEC) for _ in range(4))
    queued = client.submit(SPEC)
    store.acquire_lease(held, "worker", 600.0)
    token = store.acquire_lease(lapsed, "worker", 0.0)
    store.set_state(lapsed, JobState.RUNNING, "", token)
    store.set_state(done, JobState.STOPPED, "by the user")
    assert redis_client.zcard("iterations") == 1
    assert set(look(client, redis_client)) == {lost, lapsed}
    assert redis_client.zcard("iterations") == 3
    assert look(client, redis_client) == []  # now they wait
    assert queued not in {lost, lapsed}


def test_a_task_that_a_worker_holds_is_not_sent_again(client: Client, redis_client: redis.Redis) -> None:
    """Given a job between two iterations, whose lease is free while its task is not acknowledged yet, I expect nothing;
    if Redis is wiped, I expect the task once."""
    job = client.submit(SPEC)
    keys, index = Keys("specgen"), "unacked_index"
    taken = redis_client.eval(script("grab"), 0, *keys.args(index, "", "-", "1", "iterations"))
    assert taken
    assert redis_client.zcard("iterations") == 0
    assert look(client, redis_client) == []
    redis_client.flushall()
    assert look(client, redis_client) == [job]
    assert redis_client.zcard("iterations") == 1


def test_a_job_is_given_a_minute(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    job = client.store.job(client.store.create_job(SPEC))
    assert not orphaned(job, datetime.now(UTC))
    assert orphaned(job, datetime.now(UTC) + timedelta(seconds=61))


def begin(store: Store, redis_client: redis.Redis, iteration: int = 0) -> tuple[str, int]:
    """A job whose iteration is open in the database and in the pool, with a claim on a device."""
    job = store.create_job(SPEC)
    token = store.acquire_lease(job, "worker", 600.0)
    assert token is not None
    store.open_iteration(job, iteration, step={}, prompt=Prompt("", ""), search_state=None, token=token)
    keys = Keys("specgen")
    redis_client.eval(script("open"), 0, *keys.args(f"{job}/{iteration}", "cpu"))
    assert redis_client.eval(script("claim"), 0, *keys.args(f"{job}/{iteration}", 1, 1, 1800, "cpu")) == 1
    return job, token


def test_scopes_that_nobody_will_close_are_closed(client: Client, redis_client: redis.Redis) -> None:
    store = client.store
    live, _ = begin(store, redis_client)
    ended, token = begin(store, redis_client)
    store.settle(ended, JobState.FAILED, "why", token)
    done, token = begin(store, redis_client)
    store.close_iteration(
        done, 0, reason=IterationReason.MAIN, chosen_candidate=None, threshold=None, search_state=None, token=token
    )
    redis_client.eval(script("open"), 0, *Keys("specgen").args("deleted/3", "cpu"))
    with PoolState(client.settings.redis) as pool:
        assert pool.view().claims == 3
        assert set(close_ghosts(pool, store)) == {f"{ended}/0", f"{done}/0", "deleted/3"}
        assert pool.open_scopes() == [f"{live}/0"]
        assert pool.view().claims == 1
        assert redis_client.llen("specgen:boundaries") == 0  # no reallocation: nothing ended just now
        assert close_ghosts(pool, store) == []
