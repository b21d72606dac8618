"""Jobs, their states and their leases.

::

    queued ──▶ running ──▶ done                    (final)
      ▲ │         │ ├────▶ failed ─────────┐
      │ └────┬────┘ └────▶ paused ─────────┤
      │      ├───────────▶ stopped ────────┼─ resume ─▶ queued
      │      └───────────▶ cancelled ◀─────┘           (final)
      └────────── redelivered

A lease says which iteration worker may write for a job. Its fencing token grows with every acquisition; a writer whose
token is not the newest is refused (StaleLease), however long it slept. Not here: what a running job
writes, what the user wishes (wishes.py).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, or_, select, update

from specgen.errors import StaleLease, UserError
from specgen.store import tables as t
from specgen.store.database import Database, no_job, now
from specgen.store.records import JobRecord
from specgen.types import JobSpec, JobState, Wish

IDS_PER_DAY = 0x10000
BY_USER = (JobState.PAUSED, JobState.STOPPED, JobState.CANCELLED)
RESUMABLE = (JobState.QUEUED, JobState.RUNNING, JobState.CANCELLED)
NEXT: dict[JobState, tuple[JobState, ...]] = {
    JobState.QUEUED: (JobState.RUNNING, JobState.FAILED, *BY_USER),
    JobState.RUNNING: (JobState.QUEUED, JobState.DONE, JobState.FAILED, *BY_USER),
    JobState.PAUSED: RESUMABLE,
    JobState.STOPPED: RESUMABLE,
    JobState.FAILED: RESUMABLE,
    JobState.DONE: (),
    JobState.CANCELLED: (),
}


def short_id(problem: str, created: datetime, attempt: int = 0) -> str:
    """``<problem>-<day>-<time of day in 65536ths>``: short, and sorted by creation within a problem."""
    name = re.sub(r"[^a-z0-9]+", "-", problem.lower()).strip("-")[:24].rstrip("-") or "job"
    midnight = created.replace(hour=0, minute=0, second=0, microsecond=0)
    share = int((created - midnight).total_seconds() / 86_400 * IDS_PER_DAY)
    return f"{name}-{created:%Y%m%d}-{(share + attempt) % IDS_PER_DAY:04x}"


class Jobs(Database):
    """The part of `Store` about jobs as a whole."""

    def create_job(self, spec: JobSpec) -> str:
        """Store a queued job and return its id."""
        created = now()
        with self._write() as connection:
            for attempt in range(IDS_PER_DAY):
                name = short_id(spec.problem.name, created, attempt)
                row = dict(_spec_columns(spec), id=name, state=JobState.QUEUED.value, created_at=created)
                row["priority"] = spec.priority
                if self._insert_new(connection, t.jobs, row):
                    return name
        raise UserError(f"no id is left for {spec.problem.name!r} today", "give the problem another name")

    def job(self, job_id: str) -> JobRecord:
        """One job. Raises UserError if there is none of that id."""
        with self._read() as connection:
            row = connection.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one_or_none()
        if row is None:
            raise no_job(job_id)
        return _record(row)

    def jobs(self, state: JobState | None = None) -> tuple[JobRecord, ...]:
        """All jobs, or those in one state, in the order of their creation."""
        query = select(t.jobs).order_by(t.jobs.c.created_at, t.jobs.c.id)
        if state is not None:
            query = query.where(t.jobs.c.state == state.value)
        with self._read() as connection:
            return tuple(_record(row) for row in connection.execute(query))

    # ------------------------------------------------------------------------------------------ leases

    def acquire_lease(self, job_id: str, owner: str, ttl_s: float) -> int | None:
        """The new fencing token; None while another owner's lease lives, or where the job has ended. Taking it again
        outdates the old token."""
        jobs = t.jobs.c
        with self._write() as connection:
            self._lock_job(connection, job_id)
            clock = self._clock(connection)
            free = or_(jobs.lease_owner.is_(None), jobs.lease_owner == owner, jobs.lease_expires_at <= clock)
            alive = jobs.state.in_([state.value for state in JobState if not state.terminal])
            grant = (
                update(t.jobs)
                .where(jobs.id == job_id, free, alive)
                .values(
                    fencing_token=jobs.fencing_token + 1,
                    lease_owner=owner,
                    lease_expires_at=clock + timedelta(seconds=ttl_s),
                )
                .returning(jobs.fencing_token)
            )
            token: int | None = connection.execute(grant).scalar()
            return token

    def renew_lease(self, job_id: str, token: int, ttl_s: float, active_s: float | None = None) -> None:
        """Prolong it to ``ttl_s`` from now; ``active_s`` is how long the job has been worked on, over all attempts.
        Raises StaleLease."""
        with self._fenced(job_id, token) as connection:
            values: dict[str, object] = {"lease_expires_at": self._clock(connection) + timedelta(seconds=ttl_s)}
            if active_s is not None:
                values["active_s"] = active_s
            connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(values))

    def release_lease(self, job_id: str, token: int) -> None:
        """Let others have it at once. Raises StaleLease."""
        with self._fenced(job_id, token) as connection:
            free = {"lease_owner": None, "lease_expires_at": None}
            connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(**free))

    # ------------------------------------------------------------------------------------------ states

    def set_state(self, job_id: str, state: JobState, reason: str = "", token: int | None = None) -> None:
        """Move the job along the graph above; staying where it is only changes the reason.

        Without a token (a client, the scheduler) only a job whose lease nobody holds can be moved. Raises StaleLease,
        or UserError for a move that the graph does not have.
        """
        with self._write() as connection:
            self._lock_job(connection, job_id)
            row = connection.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one()
            self._may_move(connection, row, token)
            old = JobState(row.state)
            if state is not old and state not in NEXT[old]:
                raise UserError(f"job {job_id} is {old}: it cannot become {state}", "submit a new job")
            self._move(connection, job_id, state, moved(row, state, reason))

    def _may_move(self, connection: Connection, row: Any, token: int | None) -> None:
        if (token is None and self._held(connection, row)) or (token is not None and token != row.fencing_token):
            raise StaleLease(f"job {row.id}: token {token} is not the newest ({row.fencing_token}, {row.lease_owner})")

    def _held(self, connection: Connection, row: Any) -> bool:
        return row.lease_owner is not None and row.lease_expires_at > self._clock(connection)

    def _move(self, connection: Connection, job_id: str, state: JobState, values: dict[str, object]) -> None:
        connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(values))
        if state is not JobState.CANCELLED:
            return
        requests, generations = t.requests.c, t.generations.c  # of the iteration that is given up
        dropped = update(t.requests).where(requests.job_id == job_id, requests.status == "queued")
        ended = update(t.generations).where(generations.job_id == job_id, generations.ended_at.is_(None))
        connection.execute(dropped.values(status="dropped"))
        connection.execute(ended.values(ended_at=now(), finish_reason="abandoned"))


def moved(row: Any, state: JobState, reason: str) -> dict[str, object]:
    """The columns that change as the job of ``row`` comes into ``state``."""
    values: dict[str, object] = {"state": state.value, "reason": reason}
    old = JobState(row.state)
    if old.terminal or state.terminal:
        values["wish"] = Wish.NONE.value
    if old.terminal and not state.terminal:
        values["finished_at"] = None
    if state is JobState.RUNNING and row.started_at is None:
        values["started_at"] = now()
    if state.terminal and not old.terminal:
        values["finished_at"] = now()
    return values


def _spec_columns(spec: JobSpec) -> dict[str, object]:
    return {
        "spec": spec.model_dump(mode="json"),
        "problem": spec.problem.name,
        "problem_sha256": spec.problem.sha256,
        "backend": spec.problem.backend,
        "model": spec.model,
        "search": spec.search,
        "termination": spec.termination,
        "max_iterations": spec.iterations,
        "speculation": spec.speculation,
    }


def _record(row: Any) -> JobRecord:
    return JobRecord(
        id=row.id,
        spec=JobSpec.model_validate(row.spec),
        state=JobState(row.state),
        reason=row.reason,
        wish=Wish(row.wish),
        priority=row.priority,
        search_state=row.search_state,
        active_s=row.active_s,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        fencing_token=row.fencing_token,
        lease_owner=row.lease_owner,
        lease_expires_at=row.lease_expires_at,
    )
