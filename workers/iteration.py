"""One iteration of one job: a Celery task. The outer loop of Algorithm 1 (lines 3, 27) is a chain of these tasks.

The task takes the job's lease, runs the iteration (`workers.lanes`), heeds what the user wishes meanwhile, and enqueues
the next one. Killed anywhere, it is redelivered: an open iteration is run again from its stored prompt, and outcomes
that were measured are not measured again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import structlog
from celery import signals
from kombu.exceptions import OperationalError
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from specgen.client import ITERATE, iteration_task
from specgen.controller.budgets import Spent
from specgen.controller.cancelling import stop
from specgen.crash_points import crash_point
from specgen.errors import (
    InfrastructureError,
    ModelUnavailable,
    StaleLease,
    UserError,
)
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import PoolState, count
from specgen.settings import Settings, get_settings
from specgen.store import Store
from specgen.store.wishes import FULFILLED
from specgen.types import EventKind, JobState, Wish
from workers.app import app
from workers.conclusion import spent_so_far
from workers.decisions import follow
from workers.journal import LEASE_S, Stream, stored
from workers.lanes import Lanes
from workers.reconcile import keep_reconciling
from workers.startup import await_database, enter_pool

CONTROL_POLL_S = 0.5
LONGEST_WAIT_S = 30.0
OURS = (InfrastructureError, RedisError, OperationalError)  # never the job's fault: tried again
MODEL_WAITS = 10  # attempts to reach the LLM before an iteration, or to ask it a side question

log = structlog.get_logger(__name__)
for _noisy in ("alembic", "httpx2"):  # a line for every store that is opened and every request that is sent
    logging.getLogger(_noisy).setLevel(logging.WARNING)


@app.task(name=ITERATE, bind=True)  # type: ignore[untyped-decorator]
def iterate(self: Any, job_id: str) -> str:
    """Run the job's next iteration, or the one that was left open. Returns what became of the job."""
    owner = f"{self.request.hostname}/{self.request.id}"
    return asyncio.run(Runner(get_settings(), await_database(open_store), job_id, owner).run())


@lru_cache(maxsize=1)
def open_store() -> Store:
    """This process's connection pool."""
    return Store.open(get_settings().database)


def send_iteration(job_id: str) -> None:
    """Enqueue the job's next iteration. Blocking."""
    app.send_task(ITERATE, **iteration_task(job_id, open_store().control(job_id).priority))


_ending = threading.Event()


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _enter(sender: Any, **_: Any) -> None:
    enter_pool(get_settings(), str(sender.hostname), _ending)
    await_database(open_store)


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _start_watches(sender: Any, **_: Any) -> None:
    """An iteration worker also stores what the scheduler decides, and looks after jobs that nobody works on."""
    settings = get_settings()
    for target, arguments in (
        (follow, (settings, open_store, str(sender.hostname), _ending)),
        (keep_reconciling, (settings, open_store, send_iteration, _ending)),
    ):
        threading.Thread(target=target, args=arguments, name=target.__name__, daemon=True).start()


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _end_watches(**_: Any) -> None:
    _ending.set()


class Asked(Exception):
    """The user wants the job to end at once."""

    def __init__(self, state: JobState) -> None:
        super().__init__(state.value)
        self.state = state


@dataclass
class Runner:
    """The job as this task sees it."""

    settings: Settings
    store: Store
    job_id: str
    owner: str
    token: int = 0
    spent: Spent = field(default_factory=Spent)  # when this attempt began
    lanes: Lanes | None = None  # this attempt's iterations

    async def run(self) -> str:
        """Until the iteration is committed or the job is somebody else's: what is our own fault is tried again, with
        a line in the log, for as long as it takes (Redis or the database is down)."""
        wait_s, failures = 1.0, 0
        async with Redis.from_url(self.settings.redis) as redis:
            events = Stream(redis, self.settings.prefix, self.job_id)
            while True:
                try:
                    return await self._attempt(events, give_up=failures >= MODEL_WAITS)
                except StaleLease as exc:
                    log.warning("write_refused", job_id=self.job_id, error=str(exc))
                    await self._count("fence_refused")
                    return "another worker took it over"
                except OURS as exc:
                    failures += isinstance(exc, ModelUnavailable)
                    log.warning("iteration_waits", job_id=self.job_id, error=str(exc), again_in_s=wait_s)
                    await events.publish(EventKind.WAITING, reason=str(exc))
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _attempt(self, events: Stream, *, give_up: bool) -> str:
        """Lease, iterate, commit, enqueue the next. ``give_up``: the LLM was away often enough."""
        job = await asyncio.to_thread(self.store.job, self.job_id)
        if job.state.terminal:
            return f"already {job.state}"
        if not await self._lease():
            return "another worker has it"
        job = await asyncio.to_thread(self.store.job, self.job_id)  # as whoever had the lease before left it
        self.spent = await spent_so_far(self.store, job)
        self.lanes = Lanes(self.settings, self.store, job, self.token, events, self.spent, self._count)
        try:
            state, reason = await self._beside(self.lanes.run(), self._renew(), self._heed())
        except Asked as exc:
            state, reason = exc.state, f"{exc.state} by the user"
        except UserError as exc:
            state, reason = JobState.FAILED, f"{exc.message} ({exc.hint})" if exc.hint else exc.message
        except OURS as exc:
            if not (give_up and isinstance(exc, ModelUnavailable)):
                raise
            state, reason = JobState.FAILED, f"the model is away: {exc.message}"
        except Exception as exc:
            log.exception("iteration_failed", job_id=self.job_id)
            state, reason = JobState.FAILED, f"{type(exc).__name__}: {exc}"
        if state is not JobState.RUNNING:
            await self._clear()
        return await self._commit(state, reason, events)

    async def _lease(self) -> bool:
        """Wait out a dead worker's lease; False where a live one keeps renewing it, or the job has ended."""
        deadline = time.monotonic() + LEASE_S + 5.0
        while time.monotonic() < deadline:
            token = await asyncio.to_thread(self.store.acquire_lease, self.job_id, self.owner, LEASE_S)
            if token is not None:
                self.token = token
                return True
            await asyncio.sleep(1.0)
        return False

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            await stored(self.store.renew_lease, self.job_id, self.token, LEASE_S, self.spent.seconds_now())

    async def _heed(self) -> None:
        """What the user changes meanwhile; a pause waits for the boundary (`_commit`)."""
        while True:
            control = await stored(self.store.control, self.job_id)
            if control.wish in (Wish.STOP, Wish.CANCEL):
                raise Asked(FULFILLED[control.wish])
            if self.lanes is not None:
                self.lanes.set_priority(control.priority)
            await asyncio.sleep(CONTROL_POLL_S)

    async def _beside(self, work: Awaitable[tuple[JobState, str]], *guards: Awaitable[None]) -> tuple[JobState, str]:
        """Run ``work``; the first guard that raises ends it."""
        main = asyncio.ensure_future(work)
        others = [asyncio.ensure_future(guard) for guard in guards]
        try:
            await asyncio.wait([main, *others], return_when=asyncio.FIRST_COMPLETED)
            for guard in others:
                if guard.done():
                    guard.result()
            return await main
        finally:
            await stop((main, *others))

    async def _clear(self) -> None:
        """What an earlier attempt, which died, had left in the pool: this one may not have come to open its scope."""
        await stored(self.store.renew_lease, self.job_id, self.token, LEASE_S)
        with PoolState(self.settings.redis, self.settings.prefix) as pool:
            for record in await stored(self.store.iterations, self.job_id):
                scope = f"{self.job_id}/{record.iteration}"
                if not record.closed and scope in await asyncio.to_thread(pool.open_scopes):
                    await asyncio.to_thread(pool.close_scope, scope)

    async def _commit(self, state: JobState, reason: str, events: Stream) -> str:
        """The boundary is behind us: let the job go, to rest where the user wants it to."""
        state, reason = await stored(
            self.store.settle, self.job_id, state, reason, self.token, self.spent.seconds_now()
        )
        if state.terminal:
            await events.publish(EventKind.JOB, state=state.value, reason=reason)
        else:
            crash_point("iteration.sending")
            await asyncio.to_thread(send_iteration, self.job_id)
        return f"{state}: {reason}"

    async def _count(self, name: str, n: int = 1) -> None:
        def call() -> None:
            with SyncRedis.from_url(self.settings.redis) as client:
                count(client, Keys(self.settings.prefix), name, n)

        await asyncio.to_thread(call)
