"""A job killed at any write to the store, before or after its commit, goes on as if it had never been killed.

With one lane the resumed job has the same steps, prompts, candidates in order, outcomes, k*, reasons and search states,
and pays for no answer again. ``SPECGEN_TEST_EVERY_MOMENT=1`` takes all iterations instead of two a search.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specgen.store import migrate
from specgen.types import JobSpec, JobState
from tests.workers.mortal import (
    STORY,
    Devices,
    Killed,
    Mortal,
    Story,
    Worker,
    attempt,
    image,
    paid,
    play,
    restore,
    rows,
    spec,
    story,
    until_over,
)
from workers import journal, lanes

log = logging.getLogger(__name__)
SEARCHES = ("refine", "best_of_n", "cudaforge", "kernelagent", "alphaevolve")
WATCHED = range(100) if os.environ.get("SPECGEN_TEST_EVERY_MOMENT") else (1, 4)  # tasks of the job, an iteration each


@dataclass(frozen=True)
class Moment:
    """The world as a worker leaves it that dies now."""

    at: str
    task: int
    database: bytes
    worker: Worker

    @property
    def state(self) -> object:
        """What can make a difference to whoever goes on."""
        return self.database, len(self.worker.devices.judged), len(self.worker.asked)


@dataclass
class Film:
    """A job that is never killed, with its moments, and its story at the end of each task."""

    path: Path
    worker: Worker
    job: str = ""
    told: str = ""
    moments: list[Moment] = field(default_factory=list)
    stories: list[Story] = field(default_factory=list)

    def moment(self, at: str) -> None:
        if len(self.stories) in WATCHED:
            self.moments.append(Moment(at, len(self.stories), image(self.path), self.worker.copy()))

    async def shoot(self, store: Mortal, of: JobSpec) -> None:
        store.watch(self.worker)
        self.job = store.create_job(of)
        store.watch(self.worker, self.moment)
        self.told = await until_over(store, self.job, self.worker, lambda: self.stories.append(story(store, self.job)))


@pytest.fixture(scope="module", name="empty")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with its tables."""
    path = tmp_path_factory.mktemp("empty") / "specgen.db"
    migrate(f"sqlite:///{path}")
    return image(path)


def film(path: Path, empty: bytes, of: JobSpec, monkeypatch: pytest.MonkeyPatch) -> Film:
    path.write_bytes(empty)
    made = Film(path, Worker(Devices(), junk=True))
    for module in (journal, lanes):  # the named points are moments, too
        monkeypatch.setattr(module, "crash_point", made.moment)
    store = Mortal.open(f"sqlite:///{path}")
    play(made.shoot(store, of))
    store.close()
    monkeypatch.undo()
    return made


async def resume(store: Mortal, moment: Moment, made: Film) -> Story:
    """The task again, from that moment on."""
    worker = moment.worker.successor()
    store.watch(worker)
    stored = paid(store, moment.worker, made.job)
    if not store.job(made.job).state.terminal:
        await attempt(store, made.job, worker)
    assert not stored & set(worker.asked), "an answer that is stored was paid again"
    assert len(set(worker.asked)) == len(worker.asked)
    assert len(set(worker.devices.judged)) == len(worker.devices.judged), "a device did something twice"
    return story(store, made.job)


@pytest.mark.parametrize("search", SEARCHES)
def test_killed_at_any_write_a_job_goes_on_the_same(
    search: str, tmp_path: Path, empty: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the state at every moment the task is run again, to its end, where the stories must be the same: all that
    follows is made of them."""
    made = film(tmp_path / "specgen.db", empty, spec(search), monkeypatch)
    assert made.told.startswith("done: iteration budget reached: best ")
    seen: set[object] = set()
    store = Mortal.open(f"sqlite:///{made.path}")

    async def all_of_them() -> None:
        for number, moment in enumerate(made.moments):
            if moment.state in seen:
                continue
            seen.add(moment.state)
            restore(made.path, moment.database)
            told = await resume(store, moment, made)
            closed = len(told["iterations"])  # the task's own, or the next, where it had closed already
            assert closed in (moment.task + 1, moment.task + 2) or closed == len(made.stories[-1]["iterations"])
            whole = made.stories[min(closed, len(made.stories)) - 1]
            for part in whole:
                assert told[part] == whole[part], f"{part}, killed {moment.at} ({number})"

    play(all_of_them())
    store.close()
    log.info("%s: %d moments of death, %d of them different", search, len(made.moments), len(seen))
    assert len(made.moments) > 60


# ------------------------------------------------------------------------------------------------ dying for real


@dataclass
class Fate:
    """The worker dies at its ``nth`` moment (two a write: before it, and after its commit)."""

    worker: Worker
    nth: int
    passed: int = 0

    def __call__(self, _at: str) -> None:
        self.passed += 1
        if self.passed == self.nth:
            self.worker.dead = True
            raise Killed


def killed_often(store: Mortal, of: JobSpec, deaths: list[int]) -> tuple[str, list[Worker]]:
    """A job whose workers die one after another, and which the last one finishes. Returns its id, and the workers."""
    worker, workers = Worker(Devices()), []
    store.watch(worker)
    job = store.create_job(of)
    for nth in [*deaths, sys.maxsize]:
        workers.append(worker)
        store.watch(worker, Fate(worker, nth))
        with contextlib.suppress(Killed):
            play(until_over(store, job, worker), threads=of.lanes > 1)
        worker = worker.successor()
        store.watch(worker)
        if store.job(job).state.terminal:
            break
    assert store.job(job).state is JobState.DONE
    return job, workers


def asked_again(workers: list[Worker]) -> int:
    """How many calls more than there are questions."""
    asked = [key for worker in workers for key in worker.asked]
    return len(asked) - len(set(asked))


@pytest.mark.parametrize("search", ["cudaforge", "kernelagent"])
def test_workers_that_die_one_after_another_on_both_databases(search: str, store_url: str) -> None:
    store = Mortal.open(store_url)
    whole, _ = killed_often(store, spec(search, iterations=3), [])
    random.seed(search)
    job, workers = killed_often(store, spec(search, iterations=3), [random.randrange(1, 60) for _ in range(6)])
    assert story(store, job) == story(store, whole)
    assert asked_again(workers) <= 2 * (len(workers) - 1)  # the main and the fork that streamed at each death
    store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, empty: bytes) -> str:
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
        migrate(url)
        return url
    (tmp_path / "specgen.db").write_bytes(empty)
    return f"sqlite:///{tmp_path / 'specgen.db'}"


@pytest.mark.parametrize(("search", "side_by_side"), [("best_of_n", 3), ("kernelagent", 4), ("alphaevolve", 3)])
def test_with_several_lanes_nothing_is_lost_or_doubled(
    search: str, side_by_side: int, tmp_path: Path, empty: bytes
) -> None:
    (tmp_path / "specgen.db").write_bytes(empty)
    store = Mortal.open(f"sqlite:///{tmp_path / 'specgen.db'}")
    random.seed(search)
    deaths = [random.randrange(20, 160) for _ in range(4)]
    job, workers = killed_often(store, spec(search, lanes=side_by_side, iterations=8), deaths)
    told = story(store, job)
    assert [row[0] for row in told["iterations"]] == list(range(8))
    assert len({row[0] for row in told["outcomes"]}) == len(told["outcomes"])
    assert {row[0] for row in told["outcomes"]} <= {row[0] for row in told["candidates"]}
    assert max(Counter(row[:4] for row in told["answers"]).values()) == 1
    side = Counter(key for worker in workers for key in worker.asked if key[0] == "side")
    assert sum(side.values()) - len(side) <= len(deaths)  # what was on its way at a death
    assert len(rows(store, STORY["side_calls"], job)) == len(side)
    store.close()
