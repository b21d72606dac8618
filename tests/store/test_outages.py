"""The database goes away and comes back: an error that can be retried, nothing half-written, no restart of ours."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from sqlalchemy import create_engine, event, text

from specgen.errors import StoreUnavailable
from specgen.store import Store, database, migrate
from specgen.store import tables as t
from specgen.types import Origin, Status
from tests.store.conftest import running

KILL = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def postgres_store(postgres_url: str):
    migrate(postgres_url)
    opened = Store.open(postgres_url)
    yield opened
    opened.close()


def cut(url: str) -> None:
    """End every other connection to the database, as a restart of the server does."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(KILL)
    engine.dispose()


def test_connections_that_a_restart_ended_are_replaced(postgres_store: Store, postgres_url: str) -> None:
    job = running(postgres_store)
    for number in range(3):
        cut(postgres_url)
        assert job.evaluate(f"a = {number}", Status.HANG)


def test_cut_in_a_transaction_is_store_unavailable_and_leaves_nothing(postgres_store: Store, postgres_url: str) -> None:
    job = running(postgres_store)
    before = job.store.summary(job.id).candidates

    def write() -> None:
        with job.store._fenced(job.id, job.token) as connection:
            row = {"job_id": job.id, "candidate_id": "c" * 64, "iteration": 1, "origin": "fork", "source": "x"}
            job.store._insert_new(connection, t.candidates, row | {"created_at": database.now()})
            cut(postgres_url)
            connection.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable):
        write()
    assert job.store.summary(job.id).candidates == before
    assert job.store.add_candidate(job.id, 1, "x = 1", origin=Origin.FORK, token=job.token).is_new


def test_a_lease_cannot_be_taken_in_the_middle_of_a_write(postgres_store: Store) -> None:
    """Given a write that has passed its fencing check, if another worker takes the expired lease at that moment, I
    expect it to wait until the write is committed, so that no stale write follows the new token."""
    job = running(postgres_store)
    with postgres_store.engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET lease_expires_at = now() - interval '1 minute'"))
    order: list[str] = []

    def take() -> None:
        assert postgres_store.acquire_lease(job.id, "worker-b", 60) == job.token + 1
        order.append("taken")

    thief = threading.Thread(target=take)
    with postgres_store._fenced(job.id, job.token) as connection:
        thief.start()
        thief.join(timeout=0.5)
        connection.execute(text("SELECT 1"))
        order.append("written")
    thief.join(timeout=10)
    assert order == ["written", "taken"]


def test_a_locked_sqlite_file_is_waited_for_then_store_unavailable(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, file = f"sqlite:///{tmp_path / 'specgen.db'}", tmp_path / "specgen.db"
    migrate(url)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 200)
    store = Store.open(url)
    job = running(store)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.job(job.id).id == job.id  # WAL: readers go on
    with pytest.raises(StoreUnavailable, match="locked"):
        job.candidate("a = 1")
    other.execute("COMMIT")
    other.close()
    assert job.candidate("a = 1")
    store.close()


def test_a_full_disk_is_waited_for_and_leaves_nothing_half_written(tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'specgen.db'}"
    migrate(url)
    store = Store.open(url)
    job = running(store)
    pages = {"limit": 1}

    @event.listens_for(store.engine, "begin")
    def small(connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages['limit']}")

    with pytest.raises(StoreUnavailable, match="full"):
        job.candidate("a = 1" + "x" * 100_000)
    assert store.summary(job.id).candidates == 0
    assert store.job(job.id).id == job.id  # reading goes on
    pages["limit"] = 1_000_000  # space again
    assert job.candidate("a = 1" + "x" * 100_000)
    store.close()


@pytest.mark.parametrize("code", ["53100", "53200", "25006"])  # disk full, out of memory, a standby
def test_a_postgres_that_cannot_write_is_waited_for(postgres_store: Store, code: str) -> None:
    with pytest.raises(StoreUnavailable), postgres_store._write() as connection:
        connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'cannot' USING ERRCODE = '{code}'; END $$"))
    assert postgres_store.jobs() == ()


def test_connections_of_a_process_are_bounded(postgres_store: Store, postgres_url: str) -> None:
    """Given more threads than connections, I expect the rest to wait their turn."""
    pool = postgres_store.engine.pool
    most = pool.size() + pool._max_overflow
    job = running(postgres_store)
    seen: list[int] = []
    errors: list[BaseException] = []

    def use() -> None:
        try:
            with postgres_store._read() as connection:
                counted = text("SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'specgen'"
                               " AND datname = current_database()")  # fmt: skip
                seen.append(connection.execute(counted).scalar_one())
                connection.execute(text("SELECT pg_sleep(0.2)"))
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=use) for _ in range(most + 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(seen) == most + 16
    assert max(seen) <= most
    assert postgres_store.job(job.id).id == job.id
