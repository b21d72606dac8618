"""Schemas go up and down with the data in them, on both databases; a database that is not ours is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from alembic import command
from specgen.errors import EnvironmentLacking, SettingsError, StoreUnavailable
from specgen.store import Store, downgrade, migrate
from specgen.store.database import connect
from specgen.store.migrations import head
from specgen.store.tables import metadata
from tests.store.conftest import running

VIEWS = {
    "best_kernels",
    "trigger_feedback",
    "trigger_value",
    "iteration_summary",
    "best_so_far",
    "generation_use",
    "token_use",
}


def test_the_migrated_schema_is_the_one_of_the_tables(url: str) -> None:
    engine = connect(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert set(inspect(connection).get_view_names()) == VIEWS
    engine.dispose()


def test_migrating_twice_changes_nothing(url: str) -> None:
    assert migrate(url) == head()
    Store.open(url).close()


def test_data_survives_down_to_the_tables_and_up_again(url: str) -> None:
    store = Store.open(url)
    job = running(store)
    assert job.profile("a = 1", 2.0)
    before = store.evaluated(job.id)
    store.close()

    downgrade(url, "0001")
    with pytest.raises(EnvironmentLacking, match="not migrated") as caught:
        Store.open(url)
    assert "specgen migrate" in caught.value.hint
    migrate(url)

    store = Store.open(url)
    assert store.evaluated(job.id) == before
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT speedup FROM best_kernels")).scalar() == 2.0
    store.close()


def test_base_drops_everything(url: str) -> None:
    downgrade(url, "base")
    engine = connect(url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    assert inspect(engine).get_view_names() == []
    engine.dispose()


def test_unknown_revision_is_the_users_error(url: str) -> None:
    with pytest.raises(SettingsError, match="0999"):
        downgrade(url, "0999")


def test_an_empty_database_is_refused_with_a_hint(empty_url: str) -> None:
    with pytest.raises(EnvironmentLacking, match="not migrated"):
        Store.open(empty_url)


def test_a_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking):
        Store.open(f"sqlite:///{tmp_path / 'absent.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_database_is_refused_by_open_and_migrate(url: str) -> None:
    engine = connect(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    for use in (Store.open, migrate):
        with pytest.raises(EnvironmentLacking, match="newer"):
            use(url)


@pytest.mark.parametrize("bad", ["mysql://localhost/x", "nonsense", "sqlite://", "sqlite:///:memory:"])
def test_other_urls_are_settings_errors(bad: str) -> None:
    with pytest.raises(SettingsError):
        Store.open(bad)


def test_nobody_at_the_address_is_store_unavailable() -> None:
    for use in (Store.open, migrate):
        with pytest.raises(StoreUnavailable):
            use("postgresql://nobody@127.0.0.1:1/none")


def test_a_failing_migration_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given views that do not compile, if migrated, I expect the tables of the step before to be gone as well."""
    import specgen.store.migrations as migrations

    real = command.upgrade

    def break_after(config: object, revision: str) -> None:
        real(config, "0001")  # type: ignore[arg-type]
        raise KeyError(revision)

    monkeypatch.setattr(migrations.command, "upgrade", break_after)
    with pytest.raises(KeyError):
        migrate(empty_url)
    engine = create_engine(connect(empty_url).url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_an_installed_wheel_brings_its_migrations(tmp_path: Path) -> None:
    """Given the package as a wheel lays it out, far from the checkout, I expect `migrate` to find specgen/_alembic."""
    checkout, site = Path(__file__).parents[2], tmp_path / "site"
    shutil.copytree(checkout / "specgen", site / "specgen", ignore=shutil.ignore_patterns("__pycache__"))
    included = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shutil.copytree(checkout / "alembic", site / included["force-include"]["alembic"])
    program = (
        "import specgen.store.migrations as m, sys; print(m.script_location()); m.migrate(sys.argv[1]);"
        "m.check(m.connect(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'x' / 'specgen.db'}"],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "specgen" / "_alembic")


def test_processes_that_migrate_at_once_wait_for_each_other(empty_url: str) -> None:
    program = "import sys; from specgen.store import migrate; migrate(sys.argv[1])"
    running_now = [subprocess.Popen([sys.executable, "-c", program, empty_url]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running_now] == [0, 0, 0]
    Store.open(empty_url).close()
