"""Every query of docs/sql.md runs on both databases, and says what happened in a job that is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from specgen.store import Store
from specgen.types import IterationReason, Origin, Status, Trigger, TriggerClass, Usage, source_id
from tests.store.conftest import Running, running

DOCS = Path(__file__).parents[2] / "docs" / "sql.md"
FOUND = re.findall(r"([^\n]+):\n\n```sql\n(.*?);\n```", DOCS.read_text(), re.DOTALL)
QUERIES = {title.split(",")[0].split(" (")[0]: query for title, query in FOUND}


@pytest.fixture
def told(store: Store) -> Running:
    """Iteration 1: one decision trigger, two forks, one valid at 2.0, which ends it. Iteration 2: the main's kernel
    at 3.0, a trigger that launched nothing. Another job finds the first kernel again, slower."""
    job = running(store)
    trigger = store.add_trigger(job.id, 1, Trigger(TriggerClass.DECISION, 120), 2, token=job.token)
    main = generation(job, Origin.MAIN, None, Usage(100, 0, 40, 40), "r" * 150)
    for _ in range(2):
        generation(job, Origin.FORK, trigger, Usage(130, 90, 0, 30), "")
    assert main
    job.evaluate("bad = 1", Status.COMPILE_ERROR, trigger_id=trigger)
    job.profile("good = 1", 2.0, trigger)
    job.close(IterationReason.EARLY, source_id("good = 1"))
    job.open(2)
    store.add_trigger(job.id, 2, Trigger(TriggerClass.PHRASE, 10), 0, token=job.token)
    generation(job, Origin.MAIN, None, Usage(100, 50, 200, 260), "r" * 900)
    job.profile("better = 1", 3.0)
    job.close(IterationReason.MAIN, source_id("better = 1"))
    running(store).profile("good = 1", 1.5)
    return job


def generation(job: Running, kind: Origin, trigger: int | None, usage: Usage, reasoning: str) -> int:
    number = job.store.start_generation(
        job.id,
        job.iteration,
        kind=kind,
        seed=0,
        model="m",
        template_hash="h",
        trigger_id=trigger,
        token=job.token,
    )
    job.store.finish_generation(job.id, number, usage=usage, finish_reason="stop", reasoning=reasoning, token=job.token)
    return number


def rows(job: Running, title: str) -> list[Any]:
    query = QUERIES[title]
    given = {"job_id": job.id} if ":job_id" in query else {}
    with job.store.engine.connect() as connection:
        return list(connection.execute(text(query), given))


def test_there_are_queries_and_each_is_tested_below() -> None:
    assert len(FOUND) == len(QUERIES) >= 6
    body = Path(__file__).read_text()
    for title in QUERIES:
        assert f'"{title}"' in body, title


def test_queries_of_the_docs(told: Running) -> None:
    fastest = rows(told, "The fastest kernels of all jobs")
    assert [(row.speedup, row.iteration, row.problem) for row in fastest] == [
        (3.0, 2, "T4 diagonal"),
        (1.5, 1, "T4 diagonal"),
    ]

    one, two = rows(told, "How each iteration of a job went")
    assert (one.reason, one.early_termination, one.chosen_speedup, one.profiled, one.forks) == (
        "early_termination",
        1,
        2.0,
        1,
        2,
    )
    assert (two.reason, two.early_termination, two.chosen_speedup, two.forks, two.reasoning_tokens) == (
        "main_outcome",
        0,
        3.0,
        0,
        200,
    )
    assert float(one.seconds) < 60
    assert one.feedback_s is not None
    assert two.feedback_s is None

    worth = rows(told, "Which trigger classes are worth their forks")
    assert [(r.trigger_class, r.triggers, r.forks, r.valid, r.terminating) for r in worth] == [
        ("decision", 1, 2, 1, 1),
        ("phrase", 1, 0, 0, 0),
    ]
    assert float(worth[0].valid_per_fork) == 0.5

    fork, main = rows(told, "What a job paid")
    assert (fork.kind, fork.generations, fork.thrown_away_tokens, fork.cost) == ("fork", 2, 60, None)
    assert main.thrown_away_tokens == 300
    assert main.mean_first_token_s is None

    why = rows(told, "Why candidates fail")
    assert [tuple(row) for row in why] == [("fork", "valid", 2), ("fork", "compile_error", 1)]

    fork, main = rows(told, "Tokens by kind of generation")
    assert (fork.kind, fork.generations, fork.prompt, fork.completion) == ("fork", 2, 260, 60)
    assert float(fork.cached_share) == pytest.approx(180 / 260)
    assert (main.kind, main.reasoning) == ("main", 240)

    curve = rows(told, "The curve of best-so-far against time")
    assert [(row.place, row.speedup, row.best) for row in curve] == [(1, 2.0, 2.0), (2, 3.0, 3.0)]
    assert 0 <= curve[0].seconds <= curve[1].seconds < 60

    (early,) = rows(told, "The iterations that speculation ended early")
    assert tuple(early) == (1, 0.5, 2.0, "decision", 120, 150)

    devices = rows(told, "Where device time went")
    assert [(row.phase, row.status, row.requests, float(row.device_s)) for row in devices] == [
        ("profile", "valid", 3, 3.75),
        ("validate", "compile_error", 1, 1.25),
        ("validate", "valid", 3, 3.75),
    ]

    counters = rows(told, "Counters of the profiled kernels")
    assert [row.speedup for row in counters] == [3.0, 2.0]

    (again,) = rows(told, "The same kernel found by several jobs")
    assert (again.candidate_id, again.jobs, again.best, again.worst) == (source_id("good = 1"), 2, 2.0, 1.5)


def test_deleting_a_job_deletes_all_of_it(told: Running) -> None:
    with told.store.engine.begin() as connection:
        connection.execute(text("DELETE FROM jobs WHERE id = :job_id"), {"job_id": told.id})
    assert told.store.iterations(told.id) == ()
    assert told.store.generations(told.id) == ()
    assert told.store.evaluated(told.id) == ()
    assert told.store.requests(told.id) == ()
    assert len(told.store.jobs()) == 1
