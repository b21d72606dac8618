"""What the user wishes of a job, and how a job comes to rest.

Where a worker holds the job, a wish is written down and the worker fulfils it: at once (stop, cancel) or at the
boundary (pause). Where nobody does, the job is moved at once and its newest token outdated, so that a worker that only
slept cannot undo it. Not here: leases (jobs.py), what a worker does with a wish (workers/iteration.py).
"""

from __future__ import annotations

from sqlalchemy import select, update

from specgen.errors import UserError
from specgen.store import tables as t
from specgen.store.database import no_job
from specgen.store.jobs import NEXT, Jobs, moved
from specgen.store.records import Control
from specgen.types import JobState, Wish

FULFILLED = {Wish.PAUSE: JobState.PAUSED, Wish.STOP: JobState.STOPPED, Wish.CANCEL: JobState.CANCELLED}
PRIORITIES = range(-9, 10)
FREE = {"lease_owner": None, "lease_expires_at": None}


class Wishes(Jobs):
    """The part of `Store` about what the user changes while a job lives."""

    def ask(self, job_id: str, wish: Wish) -> JobState:
        """Write the wish down for the job's worker, or fulfil it at once where nobody holds the job; returns the state
        that the job is in then.

        Raises UserError where nothing happens any more by itself; but what could be resumed can be cancelled.
        """
        target = FULFILLED[wish]
        with self._write() as connection:
            self._lock_job(connection, job_id)
            row = connection.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one()
            state = JobState(row.state)
            if state.terminal and target not in NEXT[state]:
                hint = f"specgen resume {job_id} goes on with it" if NEXT[state] else "submit a new one"
                raise UserError(f"job {job_id} is {state} already: it cannot be {target}", hint)
            if row.wish == Wish.CANCEL and wish is not Wish.CANCEL:
                raise UserError(f"job {job_id} is being cancelled", "submit a new one")
            if self._held(connection, row):
                connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(wish=wish.value))
                return state
            values = moved(row, target, _told(wish)) | FREE
            self._move(connection, job_id, target, values | {"fencing_token": row.fencing_token + 1})
            return target

    def resume(self, job_id: str) -> JobState:
        """Take wishes back, and queue the job where it had ended; returns its state then. The caller sends its task.

        Raises UserError for a job that is done or cancelled.
        """
        with self._write() as connection:
            self._lock_job(connection, job_id)
            row = connection.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one()
            state = JobState(row.state)
            if state.terminal and not NEXT[state]:
                raise UserError(f"job {job_id} is {state}: {row.reason}", "submit a new one")
            if row.wish == Wish.CANCEL:
                raise UserError(f"job {job_id} is being cancelled", "submit a new one")
            values: dict[str, object] = {"wish": Wish.NONE.value}
            if state.terminal:
                state = JobState.QUEUED
                values = moved(row, state, "resumed")
            connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(values))
            return state

    def control(self, job_id: str) -> Control:
        """What the user may have changed since the job began. Raises UserError for an unknown job."""
        query = select(t.jobs.c.wish, t.jobs.c.priority).where(t.jobs.c.id == job_id)
        with self._read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise no_job(job_id)
        return Control(Wish(row.wish), row.priority)

    def set_priority(self, job_id: str, priority: int) -> None:
        """Of the requests that the job makes from now on. Raises UserError where there will be none."""
        if priority not in PRIORITIES:
            raise UserError(f"{priority} is not a priority", "-9 (last) to 9 (first)")
        with self._write() as connection:
            self._lock_job(connection, job_id)
            row = connection.execute(select(t.jobs.c.state).where(t.jobs.c.id == job_id)).one()
            if not NEXT[JobState(row.state)]:
                raise UserError(f"job {job_id} is {row.state}: nothing of it is evaluated any more", "submit a new one")
            connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(priority=priority))

    def settle(
        self, job_id: str, state: JobState, reason: str, token: int, active_s: float | None = None
    ) -> tuple[JobState, str]:
        """The worker's last write: move the job and let the lease go, in one step. Returns state and reason as they are
        then: a wish that came meanwhile is fulfilled here, so that none is missed. Raises StaleLease.

        Called again, because the commit's acknowledgement was lost, it changes nothing.
        """
        with self._fenced(job_id, token) as connection:
            row = connection.execute(select(t.jobs).where(t.jobs.c.id == job_id)).one()
            if row.lease_owner is None:
                return JobState(row.state), row.reason
            wish, old = Wish(row.wish), JobState(row.state)
            if wish and (not state.terminal or (wish is Wish.CANCEL and state is not JobState.DONE)):
                state, reason = FULFILLED[wish], _told(wish)
            if state is not old and state not in NEXT[old]:
                raise UserError(f"job {job_id} is {old}: it cannot become {state}", "submit a new job")
            values = moved(row, state, reason) | FREE
            if active_s is not None:
                values["active_s"] = active_s
            self._move(connection, job_id, state, values)
            return state, reason


def _told(wish: Wish) -> str:
    return f"{FULFILLED[wish]} by the user"
