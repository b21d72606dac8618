"""Bringing a database to this version's schema, and telling whether it is there. Alembic, driven from the program.

The migrations lie in ``alembic/`` of a source checkout and in ``specgen/_alembic`` of an installed wheel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text

from alembic import command
from specgen.errors import EnvironmentLacking, SettingsError
from specgen.store.database import connect, reachable

ADVISORY_LOCK = 7_305_118_922  # any number: two migrations of one Postgres wait for each other


def script_location() -> Path:
    """Where the migrations are. Raises EnvironmentLacking if they were not installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise EnvironmentLacking("the migrations are not part of this installation", "reinstall specgen")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The newest revision that this version knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "there are no migrations"
    return revision


def migrate(url: str) -> str:
    """Upgrade to the newest schema (creating it, and SQLite's file); returns the revision.

    Raises StoreUnavailable, SettingsError (URL), EnvironmentLacking (the database is newer than this version).
    """
    engine = connect(url)
    if engine.dialect.name == "sqlite":
        Path(str(engine.url.database)).parent.mkdir(parents=True, exist_ok=True)
    try:
        with _exclusive(engine) as connection:
            _known(connection)
            command.upgrade(_config(connection), "head")
    finally:
        engine.dispose()
    return head()


def downgrade(url: str, revision: str) -> None:
    """Go back to ``revision`` (``base`` drops everything). Raises SettingsError for an unknown revision."""
    engine = connect(url)
    try:
        with _exclusive(engine) as connection:
            command.downgrade(_config(connection), revision)
    except CommandError as exc:
        raise SettingsError(f"cannot go back to {revision!r}: {exc}", "a revision of alembic/versions") from exc
    finally:
        engine.dispose()


@contextmanager
def _exclusive(engine: Engine) -> Iterator[Connection]:
    """One transaction for all of it, and one migration at a time."""
    with reachable(), engine.connect() as connection:
        connection = connection.execution_options(sqlite_begin="BEGIN IMMEDIATE")
        with connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            yield connection


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _known(connection: Connection) -> None:
    revision = _revision(connection)
    revisions = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in revisions:
        raise EnvironmentLacking(
            f"the database's schema ({revision}) is newer than this SpecGen's ({head()})", "install the newer SpecGen"
        )


def check(engine: Engine) -> None:
    """Raises EnvironmentLacking unless the schema is exactly this version's, StoreUnavailable if it is away."""
    missing = EnvironmentLacking("the database is not migrated", "run `specgen migrate`")
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).is_file():
        raise missing  # opening would create an empty file
    with reachable(), engine.connect() as connection:
        _known(connection)
        if _revision(connection) != head():
            raise missing
