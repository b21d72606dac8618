"""The Python client: submit, wait, best, events, stop, resume. `specgen run` is a thin layer over it.

Needs Redis (to enqueue and to follow) and the database (to create the job and to read results); never torch, never a
GPU, and no LLM key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from specgen.controller import termination
from specgen.errors import PoolUnavailable, SettingsError, SpecGenError, UserError
from specgen.evaluation.problems import load_problem
from specgen.scheduler.transport import broker_url
from specgen.search import resolve as resolve_search
from specgen.settings import Settings, get_settings
from specgen.store import BestKernel, JobRecord, Store
from specgen.types import Event, JobSpec, JobState, ProblemSpec

AWAY_S = 30.0  # how long `events` waits for a Redis that went away
ITERATE = "workers.iteration.iterate"


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
            broker_transport_options=self._app.conf.broker_transport_options | options,
        )

    def close(self) -> None:
        """Give back the connections."""
        self._app.close()
        self.redis.close()
        self.store.close()

    # ------------------------------------------------------------------------------------------ write

    def submit(self, spec: JobSpec) -> str:
        """Create the job and start it; returns its id. Names in the spec are checked first: nothing half-written."""
        resolve_search(spec.search)
        termination.resolve(spec.termination)
        self._ping()
        job_id = self.store.create_job(spec)
        self._enqueue(job_id)
        return job_id

    def stop(self, job_id: str) -> None:
        """Ask the job to stop at once (its iteration is given up; `resume` runs it again)."""
        self.store.request_stop(job_id)

    def resume(self, job_id: str) -> str:
        """Go on with a stopped, failed or orphaned job: outcomes already measured are not measured again.

        Returns the position in its event stream from which on the events are new (``since`` of `events`).
        """
        job = self.job(job_id)
        if job.state is JobState.DONE:
            raise UserError(f"job {job_id} is done: {job.reason}", "submit a new one")
        self._ping()
        self.store.request_stop(job_id, False)
        if job.state is not JobState.RUNNING:  # else its worker died: the next one waits for the lease to lapse
            self.store.set_state(job_id, JobState.QUEUED, "resumed")
        last: Any = self.redis.xrevrange(events_key(self.settings.prefix, job_id), count=1)
        self._enqueue(job_id)
        return str(last[0][0]) if last else "0"

    def _enqueue(self, job_id: str) -> None:
        try:
            self._app.send_task(ITERATE, kwargs={"job_id": job_id}, queue="iterations", kwargsrepr=f"job={job_id}")
        except Exception as exc:  # kombu's and redis's errors alike: the job is stored
            raise PoolUnavailable(
                f"job {job_id} is stored but could not be enqueued: {exc}",
                f"a running system takes it up within minutes, or: specgen resume {job_id}",
            ) from exc

    def _ping(self) -> None:
        try:
            self.redis.ping()
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
    if backend == "cuda":
        return load_problem(str(name_or_path), "cuda")
    if backend != "cpu":
        raise SettingsError(f"no backend is called {backend!r}", "cpu or cuda")
    return load_problem(str(name_or_path), "cpu")


__all__ = ["BestKernel", "Client", "JobRecord", "JobSpec", "SpecGenError", "problem"]
