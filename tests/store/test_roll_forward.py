"""A database of revision 0002 with rows in every table comes to this version whole, and goes back."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, inspect, text

from alembic import command
from specgen.store import Store, downgrade, migrate
from specgen.store.database import connect
from specgen.store.migrations import _config
from specgen.types import IterationReason, JobState, Trigger, TriggerClass, Wish
from tests.store.conftest import SPEC

AT = "2026-03-01 10:00:0"
OLD = f"""
INSERT INTO jobs (id, spec, problem, problem_sha256, backend, model, search, termination, max_iterations, speculation,
                  state, reason, stop_requested, created_at, started_at, fencing_token, lease_owner)
VALUES ('old-1', :spec, 'T4', 'ab', 'cpu', 'm', 'refine', 'never', 5, :yes, 'running', '', :yes, '{AT}0', '{AT}1', 3,
        'w');
INSERT INTO jobs (id, spec, problem, problem_sha256, backend, model, search, termination, max_iterations, speculation,
                  state, reason, created_at)
VALUES ('old-2', :spec, 'T4', 'ab', 'cpu', 'm', 'refine', 'never', 5, :yes, 'stopped', 'by the user', '{AT}0');
INSERT INTO iterations (job_id, iteration, step, prompt_system, prompt_user, template_hash, opened_at, closed_at,
                        reason, chosen_candidate, threshold)
VALUES ('old-1', 0, '{{"kind": "seed"}}', 's', 'u', 'h', '{AT}1', '{AT}5', 'early_termination', 'c1', 0.5),
       ('old-1', 1, '{{"kind": "seed"}}', 's', 'u', 'h', '{AT}5', '{AT}8', 'main_outcome', NULL, NULL),
       ('old-1', 2, '{{"kind": "seed"}}', 's', 'u', 'h', '{AT}8', NULL, NULL, NULL, NULL);
INSERT INTO triggers (id, job_id, iteration, trigger_class, position, text, launched, fired_at)
VALUES (7, 'old-1', 0, 'decision', 120, 'use tiles', 2, '{AT}2');
INSERT INTO generations (id, job_id, iteration, kind, trigger_id, seed, model, template_hash, prefix_chars, started_at,
                         ended_at, finish_reason, prompt_tokens, completion_tokens)
VALUES (11, 'old-1', 0, 'main', NULL, 1, 'm', 'h', 0, '{AT}1', '{AT}5', 'cancelled', 100, 40),
       (12, 'old-1', 0, 'fork', 7, 2, 'm', 'h', 120, '{AT}2', '{AT}3', 'stop', 130, 30);
INSERT INTO candidates (id, job_id, candidate_id, iteration, origin, source, generation_id, trigger_id, created_at)
VALUES (21, 'old-1', 'c1', 0, 'fork', 'good = 1', 12, 7, '{AT}3');
INSERT INTO requests (request_id, job_id, iteration, candidate_id, phase, origin, status, enqueued_at)
VALUES ('r1', 'old-1', 0, 'c1', 'profile', 'fork', 'valid', '{AT}3');
INSERT INTO outcomes (id, job_id, candidate_id, iteration, request_id, phase, origin, status, recorded_at, speedup,
                      finished_at, labels, build_route, queue_s, build_s, device_s, worker, device, environment)
VALUES (31, 'old-1', 'c1', 0, 'r1', 'profile', 'fork', 'valid', '{AT}4', 2.5, '{AT}4', '[]', 'none', 0, 0, 0, 'w',
        'cpu:0', '{{}}');
INSERT INTO side_calls (job_id, key, reply, made_at) VALUES ('old-1', 'judge/1', '{{"a": 1}}', '{AT}1');
INSERT INTO scheduler_decisions (id, decided_at, scope, policy, devices, validators, profilers, max_validate,
                                 max_profile, moved, dropped)
VALUES (41, '{AT}5', 'old-1/0', 'paper', 4, 3, 1, 2, 1, 1, 0);
"""
NEWER = {"device", "priority", "lanes", "cost_budget", "target_speedup", "plateau"}  # fields of a job that 0002 had not
TABLES = (
    "jobs", "iterations", "triggers", "generations", "candidates", "requests", "outcomes", "side_calls",
    "scheduler_decisions",
)  # fmt: skip


@pytest.fixture
def old_url(empty_url: str) -> str:
    engine = connect(empty_url)
    with engine.begin() as connection:
        command.upgrade(_config(connection), "0002")
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET TIME ZONE 'UTC'"))
        for statement in OLD.split(";"):
            if statement.strip():
                given = {"spec": SPEC.model_dump_json(exclude=NEWER), "yes": True}
                wanted = {name: value for name, value in given.items() if f":{name}" in statement}
                connection.execute(text(statement), wanted)
        if connection.dialect.name == "postgresql":  # as the program that wrote them had used the sequences
            for table in ("triggers", "generations", "candidates", "outcomes", "scheduler_decisions"):
                connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 50)"))
    engine.dispose()
    return empty_url


def rows(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Everything, without the columns that the two revisions do not share."""
    new = {"wish", "priority", "active_s", "row_key", "stop_requested", "cost", "longest_gap_s", "search_state"}
    with engine.connect() as connection:
        return {table: _rows(connection, table, new) for table in TABLES}


def _rows(connection: Connection, table: str, without: set[str]) -> list[dict[str, Any]]:
    found = connection.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2")).mappings()
    return [{name: value for name, value in row.items() if name not in without} for row in found]


def test_every_row_survives_the_way_up_and_the_new_program_goes_on_with_it(old_url: str) -> None:
    engine = connect(old_url)
    before = rows(engine)
    assert all(before.values())
    engine.dispose()
    migrate(old_url)

    store = Store.open(old_url)
    assert rows(store.engine) == before
    one, two = store.jobs()
    assert (one.wish, one.priority, one.fencing_token, one.state) == (Wish.STOP, 0, 3, JobState.RUNNING)
    assert one.active_s == pytest.approx(7.0, abs=0.01)  # of the two closed iterations
    assert (two.wish, two.state, two.active_s) == (Wish.NONE, JobState.STOPPED, 0.0)
    assert store.history("old-1") == (0.0, 2.5)
    assert store.tokens("old-1").total == 300
    with store.engine.connect() as connection:
        for view, count in {
            "best_kernels": 1, "iteration_summary": 3, "trigger_feedback": 1, "trigger_value": 1, "best_so_far": 1,
            "generation_use": 2, "token_use": 2,
        }.items():  # fmt: skip
            assert connection.execute(text(f"SELECT COUNT(*) FROM {view}")).scalar() == count, view
    token = store.acquire_lease("old-1", "w", 60)
    assert token == 4
    assert store.add_trigger("old-1", 2, Trigger(TriggerClass.FENCE, 9), 0, token=token, key="k") > 7
    assert store.settle("old-1", JobState.RUNNING, "", token) == (JobState.STOPPED, "stopped by the user")
    store.close()


def test_every_row_survives_the_way_back(old_url: str) -> None:
    migrate(old_url)
    store = Store.open(old_url)
    before = rows(store.engine)
    store.ask("old-2", Wish.CANCEL)
    paused = store.create_job(SPEC)
    store.ask(paused, Wish.PAUSE)
    token = store.acquire_lease("old-1", "w", 60)
    assert token is not None
    store.close_iteration("old-1", 2, reason=IterationReason.BUDGET, chosen_candidate=None, threshold=None,
                          search_state=None, token=token)  # fmt: skip
    store.close()

    downgrade(old_url, "0002")
    engine = connect(old_url)
    after = rows(engine)
    assert {table: len(found) for table, found in after.items()} == {
        **{table: len(found) for table, found in before.items()}, "jobs": 3,
    }  # fmt: skip
    with engine.connect() as connection:
        states = dict(connection.execute(text("SELECT id, state FROM jobs")).all())
        asked = dict(connection.execute(text("SELECT id, stop_requested FROM jobs")).all())
        reasons = set(connection.execute(text("SELECT reason FROM iterations")).scalars())
        assert "wish" not in {column["name"] for column in inspect(connection).get_columns("jobs")}
    assert states == {"old-1": "running", "old-2": "done", paused: "stopped"}
    assert {job for job, stop in asked.items() if stop} == {"old-1"}
    assert reasons == {"early_termination", "main_outcome"}
    engine.dispose()

    migrate(old_url)  # and up again
    Store.open(old_url).close()
