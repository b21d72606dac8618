"""The Python client: submit, wait, best, events, pause, stop, cancel, resume. `specgen run` is a thin layer over it.

Needs Redis (to enqueue and to follow) and the database (to create the job and to read results); never torch, never a
GPU, and no LLM key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from specgen.controller import termination
from specgen.errors import PoolUnavailable, SpecGenError, UserError
from specgen.evaluation.problems import backend_of, load_problem
from specgen.scheduler.keys import ITERATIONS, PRIORITY_HEADER, SCOPE_HEADER, Keys
from specgen.scheduler.members import Membership
from specgen.scheduler.pool import PoolState
from specgen.scheduler.transport import broker_url
from specgen.search import check_lanes
from specgen.settings import Settings, get_settings
from specgen.store import BestKernel, JobRecord, Store
from specgen.types import Event, EventKind, JobSpec, JobState, ProblemSpec, Wish

AWAY_S = 30.0  # how long `events` waits for a Redis that went away
ITERATE = "workers.iteration.iterate"


def iteration_task(job_id: str, priority: int) -> dict[str, Any]:
    """Arguments of Celery's ``send_task`` for the job's next iteration. Its scope tells whether one waits or runs."""
    return {
        "kwargs": {"job_id": job_id},
        "queue": ITERATIONS,
        "headers": {SCOPE_HEADER: f"{job_id}/task", PRIORITY_HEADER: str(priority)},
        "kwargsrepr": f"job={job_id}",
    }


def iteration_key(prefix: str, job_id: str) -> str:
    """The Redis set that is there while a task of the job waits or runs."""
    return f"{prefix}:scope:{job_id}/task"


def events_key(prefix: str, job_id: str) -> str:
    """The Redis stream of a job's live events."""
    return f"{prefix}:events:{job_id}"


class Client:
    """A connection to one SpecGen system. Every method raises a `specgen.errors.SpecGenError` on failure."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or get_settings()
        self.store = Store.open(self.settings.database)
        self.redis = redis.Redis.from_url(self.settings.redis, decode_responses=True)
        self._app = Celery("specgen-client")
        self._app.config_from_object("celeryconfig")
        options = {"specgen_prefix": self.settings.prefix, "specgen_order": self.settings.pool.order}
        self._app.conf.update(  # of these settings, which need not be the process's
            broker_url=broker_url(self.settings.redis),
            result_backend="disabled://",  # else every task that is sent leaves a subscription to its result
            broker_transport_options=self._app.conf.broker_transport_options | options,
        )

    def close(self) -> None:
        """Give back the connections."""
        self._app.close()
        self.redis.close()
        self.store.close()

    # ------------------------------------------------------------------------------------------ write

    def submit(self, spec: JobSpec, *, wait_for_device: bool = False) -> str:
        """Create the job and start it; returns its id. Names in the spec are checked first: nothing half-written.

        A job that wants devices which are not here is refused, unless ``wait_for_device``: then it waits for one.
        """
        check_lanes(spec.search, spec.lanes)
        termination.resolve(spec.termination)
        self._ping()
        if not wait_for_device:
            self._check_device(spec)
        job_id = self.store.create_job(spec)
        self._enqueue(job_id)
        return job_id

    def pause(self, job_id: str) -> JobState:
        """Rest at the next boundary: the running iteration is finished, nothing is lost. Returns the state as it is
        now (`paused` where nobody works on the job)."""
        return self._ask(job_id, Wish.PAUSE)

    def stop(self, job_id: str) -> JobState:
        """Stop at once: the iteration is given up, `resume` runs it again. Returns the state as it is now."""
        return self._ask(job_id, Wish.STOP)

    def cancel(self, job_id: str) -> JobState:
        """Stop at once and for good; also a job that rests. Returns the state as it is now."""
        return self._ask(job_id, Wish.CANCEL)

    def set_priority(self, job_id: str, priority: int) -> None:
        """-9 to 9, higher goes first: of the job's requests and iterations from now on."""
        self.store.set_priority(job_id, priority)

    def resume(self, job_id: str) -> str:
        """Go on with a paused, stopped, failed or orphaned job: outcomes already measured are not measured again.

        Returns the position in its event stream from which on the events are new (``since`` of `events`).
        """
        self._ping()
        self.store.resume(job_id)  # where it runs, its worker may have died: the next one waits for the lease to lapse
        last: Any = self.redis.xrevrange(events_key(self.settings.prefix, job_id), count=1)
        self._enqueue(job_id)
        return str(last[0][0]) if last else "0"

    def _ask(self, job_id: str, wish: Wish) -> JobState:
        """Written down for the worker, or done at once where there is none: then its leavings in the pool go too (what
        cannot be reached now, `workers.reconcile` closes within minutes)."""
        state = self.store.ask(job_id, wish)
        if state.terminal:
            with suppress(PoolUnavailable, redis.RedisError), self._pool() as pool:
                for record in self.store.iterations(job_id):
                    if not record.closed:
                        pool.close_scope(f"{job_id}/{record.iteration}")
                self._tell(job_id, state)
        return state

    def _tell(self, job_id: str, state: JobState) -> None:
        """To whoever follows the job's events."""
        data: dict[str, Any] = {"state": state.value, "reason": self.job(job_id).reason}
        event = Event(kind=EventKind.JOB, job_id=job_id, iteration=0, at=time.time(), data=data)
        self.redis.xadd(events_key(self.settings.prefix, job_id), {"event": event.model_dump_json()})

    def _check_device(self, spec: JobSpec) -> None:
        """Nothing is refused while no device at all is here: the system may be starting."""
        with self._pool() as pool:
            labels = pool.view().labels
        if spec.label not in labels and (labels or spec.device):
            there = ", ".join(sorted(labels)) or "none"
            raise UserError(f"no device labelled {spec.label!r} is here (labels: {there})", "or wait for one")

    def _pool(self) -> PoolState:
        return PoolState(self.settings.redis, self.settings.prefix)

    def _enqueue(self, job_id: str) -> None:
        try:
            self._app.send_task(ITERATE, **iteration_task(job_id, self.job(job_id).priority))
        except Exception as exc:  # kombu's and redis's errors alike: the job is stored
            raise PoolUnavailable(
                f"job {job_id} is stored but could not be enqueued: {exc}",
                f"a running system takes it up within minutes, or: specgen resume {job_id}",
            ) from exc

    def _ping(self) -> None:
        """Redis is there, and the processes of the pool are of this version: else nothing is written."""
        try:
            Membership(self.redis, Keys(self.settings.prefix), "", "client").check()
        except redis.RedisError as exc:
            raise PoolUnavailable(
                f"Redis cannot be reached: {exc}", "is `specgen up` or docker compose running?"
            ) from exc

    # ------------------------------------------------------------------------------------------ read

    def job(self, job_id: str) -> JobRecord:
        """The job's row. Raises UserError for an unknown id."""
        return self.store.job(job_id)

    def best(self, job_id: str) -> BestKernel | None:
        """The fastest valid kernel of all iterations so far: source, speedup, iteration."""
        return self.store.best(job_id)

    def wait(self, job_id: str, timeout_s: float | None = None, poll_s: float = 0.5) -> JobRecord:
        """Until the job is in a terminal state; raises TimeoutError after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (job := self.job(job_id)).state.terminal:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} is still {job.state} after {timeout_s:g} s")
            time.sleep(poll_s)
        return job

    def events(self, job_id: str, *, block_s: float = 0.5, since: str = "0") -> Iterator[Event | None]:
        """The job's live events from the stream's start; None whenever ``block_s`` passed without one. Ends after the
        job's own terminal event."""
        key, last, away_since = events_key(self.settings.prefix, job_id), since, 0.0
        while True:
            try:
                answer: Any = self.redis.xread({key: last}, count=200, block=int(block_s * 1000))
                away_since = 0.0
            except redis.RedisError as exc:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_S:
                    raise PoolUnavailable(f"Redis is away: {exc}", f"the job is stored: {job_id}") from exc
                time.sleep(block_s)
                answer = None
            if not answer:
                yield None
                continue
            entries = answer[0][1]
            last = entries[-1][0]
            for _, fields in entries:
                event = Event.model_validate_json(fields["event"])
                yield event
                if event.kind == "job" and JobState(str(event.data["state"])).terminal:
                    return


def problem(name_or_path: str | Path, *, backend: str = "cpu") -> ProblemSpec:
    """A built-in problem by name (T4) or any KernelBench-format file. Raises ProblemError or SettingsError."""
    return load_problem(str(name_or_path), backend_of(backend))


__all__ = ["BestKernel", "Client", "JobRecord", "JobSpec", "SpecGenError", "problem"]
