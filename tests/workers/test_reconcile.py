"""Jobs that nobody works on are enqueued again, others are left alone; on a real Valkey and a real SQLite."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from specgen.settings import Settings
from specgen.store import Store, migrate
from specgen.types import JobSpec, JobState, ProblemSpec
from workers import reconcile as module
from workers.reconcile import orphaned, reconcile


@pytest.fixture
def store(tmp_path: Path) -> Store:
    url = f"sqlite:///{tmp_path / 'specgen.db'}"
    migrate(url)
    return Store.open(url)


def test_only_jobs_without_a_living_lease_are_sent_and_only_once(
    store: Store, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AFTER", timedelta(seconds=-1))  # as if a minute had passed
    spec = JobSpec(problem=ProblemSpec(name="p", source="x"))
    waiting, held, lapsed, done = (store.create_job(spec) for _ in range(4))
    store.acquire_lease(held, "worker", 600.0)
    token = store.acquire_lease(lapsed, "worker", 0.0)
    store.set_state(lapsed, JobState.RUNNING, "", token)
    store.set_state(done, JobState.STOPPED, "by the user")
    sent: list[str] = []
    assert set(reconcile(redis_client, Settings(), store, sent.append)) == {waiting, lapsed}
    assert set(sent) == {waiting, lapsed}
    assert reconcile(redis_client, Settings(), store, sent.append) == []
    store.close()


def test_a_job_is_given_a_minute(store: Store) -> None:
    job = store.job(store.create_job(JobSpec(problem=ProblemSpec(name="p", source="x"))))
    assert not orphaned(job, datetime.now(UTC))
    assert orphaned(job, datetime.now(UTC) + timedelta(seconds=61))
    store.close()
