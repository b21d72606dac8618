"""The connection to the truth: SQLite (WAL) or Postgres (psycopg 3), opened, checked and guarded by fencing tokens.

Every write is one transaction. On SQLite a write begins IMMEDIATE, so that two writers queue up instead of one
failing half-way; on Postgres a write that concerns a job locks the job's row. Not here: what is written.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, make_url, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from specgen.errors import SettingsError, StaleLease, StoreUnavailable, UserError
from specgen.store import tables as t

BUSY_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_S = 5
IDLE_TIMEOUT_MS = 10_000  # between two statements of one transaction, which no writer of ours needs
READ_ONLY = "25006"  # what a Postgres that is only a standby answers to a write


def now() -> datetime:
    """The time, aware, UTC."""
    return datetime.now(UTC)


def from_unix(seconds: float) -> datetime:
    """Unix seconds as an aware UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


def parse_url(url: str) -> URL:
    """``postgres://`` and ``postgresql://`` mean psycopg 3. Raises SettingsError for anything but the two databases."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as exc:
        raise SettingsError("the database URL cannot be read", "such as sqlite:///specgen.db") from exc
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise SettingsError(f"database {parsed.drivername!r} is not supported", "sqlite:///… or postgresql://…")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SettingsError("an in-memory database cannot be shared between processes", "sqlite:///specgen.db")
    return parsed


def connect(url: str) -> Engine:
    """An engine whose connections a forked child never uses. Opens nothing yet."""
    parsed = parse_url(url)
    try:
        engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgres(parsed)
    except (NoSuchModuleError, ImportError) as exc:
        raise SettingsError(f"no driver for {parsed.drivername}: {exc}", "pip install 'psycopg[binary]'") from exc
    reference = weakref.ref(engine)

    def forget() -> None:
        if (inherited := reference()) is not None:
            inherited.dispose(close=False)  # the parent still uses those sockets

    os.register_at_fork(after_in_child=forget)
    return engine


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, pool_size=8, max_overflow=56, pool_timeout=60)

    @event.listens_for(engine, "connect")
    def pragmas(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver would commit before DDL: transactions are begun below
        for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))

    return engine


def _postgres(url: URL) -> Engine:
    return create_engine(
        url,
        pool_size=8,
        max_overflow=24,
        pool_timeout=60,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "specgen",
            # a worker that freezes within a transaction must not keep the job's row from its successor
            "options": f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT_MS}",
        },
    )


@contextmanager
def reachable() -> Iterator[None]:
    """Turns what the driver raises when the database is away, locked, dead-locked or out of disk into
    StoreUnavailable."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as exc:
        reason = str(getattr(exc, "orig", None) or exc).strip().splitlines()[0]
        raise StoreUnavailable(f"the database cannot be used: {reason}", "is it running, and the URL right?") from exc
    except DBAPIError as exc:
        if exc.connection_invalidated or getattr(exc.orig, "sqlstate", None) == READ_ONLY:
            raise StoreUnavailable(f"the database broke off: {exc.orig}", "is it running?") from exc
        raise


class Database:
    """What the parts of `Store` share: transactions, the fencing check and dialect-free upserts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def close(self) -> None:
        """Close the pool's connections."""
        self.engine.dispose()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with reachable(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """One transaction, all or nothing."""
        with reachable(), self.engine.connect() as connection:
            connection = connection.execution_options(sqlite_begin="BEGIN IMMEDIATE")
            with connection.begin():
                yield connection

    @contextmanager
    def _fenced(self, job_id: str, token: int) -> Iterator[Connection]:
        """A write for a running job. Raises StaleLease unless ``token`` is the newest that was given out.

        The job's row stays locked to the end of the transaction: a lease can be taken before or after this write,
        never in the middle of it.
        """
        with self._write() as connection:
            newest = self._lock_job(connection, job_id)
            if newest != token:
                raise StaleLease(f"job {job_id}: token {token} is not the newest ({newest})")
            yield connection

    def _lock_job(self, connection: Connection, job_id: str) -> int:
        """Locks the job's row and returns its newest token. Raises UserError for an unknown job."""
        query = select(t.jobs.c.fencing_token).where(t.jobs.c.id == job_id).with_for_update(key_share=True)
        token: int | None = connection.execute(query).scalar()
        if token is None:
            raise no_job(job_id)
        return token

    def _clock(self, connection: Connection) -> datetime:
        """The time that leases are compared with: the database server's, so that hosts' clocks may differ."""
        if connection.dialect.name == "sqlite":
            return now()
        clock: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return clock.astimezone(UTC)

    def _insert_new(self, connection: Connection, table: Table, row: Mapping[str, object]) -> bool:
        """Insert unless a row with one of its unique keys is there; True if it was inserted."""
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        statement = insert(table).values(row).on_conflict_do_nothing().returning(*table.primary_key.columns)
        return connection.execute(statement).first() is not None

    def _insert_once(self, connection: Connection, table: Table, row: Mapping[str, object]) -> int:
        """Insert and return the id; where a row of the same ``row_key`` is there (the commit of an earlier attempt was
        done, its acknowledgement lost), that one's."""
        insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        statement = insert(table).values(row).on_conflict_do_nothing(index_elements=["row_key"])
        made: int | None = connection.execute(statement.returning(table.c.id)).scalar()
        if made is None:
            made = connection.execute(select(table.c.id).where(table.c.row_key == row["row_key"])).scalar_one()
        return made


def no_job(job_id: str) -> UserError:
    """The error for a job id that is not in the database."""
    return UserError(f"no job is called {job_id!r}", "`specgen jobs` lists them")
