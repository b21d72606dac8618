"""One iteration of one job: a Celery task. The outer loop of Algorithm 1 (lines 3, 27) is a chain of these tasks.

The task takes the job's lease, composes the prompt P = A(k*, H), runs SpecController, commits the boundary, and
enqueues the next iteration. Killed anywhere, it is redelivered: an open iteration is run again from its stored
prompt, and outcomes that were measured are not measured again. Not here: what happens inside an iteration
(`specgen.controller.loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import structlog
from celery import signals
from kombu.exceptions import OperationalError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from specgen.client import ITERATE
from specgen.controller import termination
from specgen.controller.cancelling import stop
from specgen.controller.evaluations import Evaluations
from specgen.controller.loop import Iteration, IterationOutcome, IterationPlan
from specgen.errors import (
    InfrastructureError,
    ModelUnavailable,
    ModelUnreachable,
    SettingsError,
    StaleLease,
    UserError,
)
from specgen.llm import Capabilities, OpenAICompatible, detect
from specgen.scheduler.pool import RedisPool
from specgen.search import STOP, History, IterationResult, SearchAlgorithm, Step, resolve, rng_for
from specgen.settings import ForkPolicy, ModelProfile, Settings, get_settings
from specgen.store import IterationRecord, JobRecord, Store
from specgen.types import EventKind, IterationReason, JobState
from workers.app import app, send_request
from workers.context import JobContext, device_facts, entry
from workers.decisions import follow
from workers.journal import LEASE_S, Journal, Stream, stored
from workers.reconcile import keep_reconciling

STOP_POLL_S = 0.5
LONGEST_WAIT_S = 30.0
OURS = (InfrastructureError, RedisError, OperationalError)  # never the job's fault: tried again
MODEL_WAITS = 10  # attempts to reach the LLM before an iteration, or to ask it a side question
MODEL_FAILURES = 3  # iterations in a row whose model failed: the job fails

log = structlog.get_logger(__name__)
for _noisy in ("alembic", "httpx2"):  # a line for every store that is opened and every request that is sent
    logging.getLogger(_noisy).setLevel(logging.WARNING)


@app.task(name=ITERATE, bind=True)  # type: ignore[untyped-decorator]
def iterate(self: Any, job_id: str) -> str:
    """Run the job's next iteration, or the one that was left open. Returns what became of the job."""
    owner = f"{self.request.hostname}/{self.request.id}"
    return asyncio.run(Runner(get_settings(), open_store(), job_id, owner).run())


@lru_cache(maxsize=1)
def open_store() -> Store:
    """This process's connection pool."""
    return Store.open(get_settings().database)


def send_iteration(job_id: str) -> None:
    """Enqueue the job's next iteration. Blocking."""
    app.send_task(ITERATE, kwargs={"job_id": job_id}, queue="iterations", kwargsrepr=f"job={job_id}")


_ending = threading.Event()
_seen: dict[tuple[str, str, str], Capabilities] = {}


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


class Stopped(Exception):
    """The user asked the job to stop."""


@dataclass
class Runner:
    """The job as this task sees it."""

    settings: Settings
    store: Store
    job_id: str
    owner: str
    token: int = 0

    async def run(self) -> str:
        """Until the iteration is committed or the job is somebody else's: what is our own fault is tried again, with
        a line in the log, for as long as it takes (Redis or the database is down)."""
        wait_s, failures = 1.0, 0
        async with Redis.from_url(self.settings.redis) as redis:
            events = Stream(redis, self.settings.prefix, self.job_id)
            while True:
                try:
                    return await self._attempt(events, give_up=failures >= MODEL_WAITS)
                except StaleLease:
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
        try:
            state, reason = await self._beside(self._iterate(job, events), self._renew(), self._await_stop())
        except Stopped:
            state, reason = JobState.STOPPED, "stopped by the user"
        except UserError as exc:
            state, reason = JobState.FAILED, f"{exc.message} ({exc.hint})" if exc.hint else exc.message
        except OURS as exc:
            if not (give_up and isinstance(exc, ModelUnavailable)):
                raise
            state, reason = JobState.FAILED, f"the model is away: {exc.message}"
        except Exception as exc:
            log.exception("iteration_failed", job_id=self.job_id)
            state, reason = JobState.FAILED, f"{type(exc).__name__}: {exc}"
        return await self._commit(state, reason, events)

    async def _lease(self) -> bool:
        """Wait out a dead worker's lease; False where a live one keeps renewing it."""
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
            await stored(self.store.renew_lease, self.job_id, self.token, LEASE_S)

    async def _await_stop(self) -> None:
        while not await stored(self.store.stop_requested, self.job_id):  # noqa: ASYNC110  another process says so
            await asyncio.sleep(STOP_POLL_S)
        raise Stopped

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

    async def _commit(self, state: JobState, reason: str, events: Stream) -> str:
        await asyncio.to_thread(self.store.set_state, self.job_id, state, reason, self.token)
        await asyncio.to_thread(self.store.release_lease, self.job_id, self.token)
        if state.terminal:
            await events.publish(EventKind.JOB, state=state.value, reason=reason)
        else:
            await asyncio.to_thread(send_iteration, self.job_id)
        return f"{state}: {reason}"

    # ------------------------------------------------------------------------------------------ one iteration

    async def _iterate(self, job: JobRecord, events: Stream) -> tuple[JobState, str]:
        """Line 3: the next iteration of the budget, unless something ends the job first."""
        await asyncio.to_thread(self.store.set_state, self.job_id, JobState.RUNNING, "", self.token)
        done = await asyncio.to_thread(self.store.iterations, self.job_id)
        if (end := await self._ended(job, done)) is not None:
            return end
        evaluated = await asyncio.to_thread(self.store.evaluated, self.job_id)
        closed = [record for record in done if record.closed]
        # what a torn iteration had measured is known to the store, but to the search only once it closes
        history = History(entry(e) for e in evaluated if e.iteration < len(closed))
        search = resolve(job.spec.search)
        search.load(closed[-1].search_state if closed else None)
        profile = self._profile(job)
        model = await self._connect(profile)
        try:
            async with closing_pool(self.settings) as pool:
                device = device_facts(await pool.view(), job.spec.problem.backend)
            context = JobContext(job, self.store, model, history, self.token, device)
            record = await self._open(job, len(closed), done, search, context)
            if record is None:
                return JobState.DONE, "the search algorithm stopped"
            events.iteration = record.iteration
            await events.publish(EventKind.ITERATION, step=Step.load(record.step).kind)
            outcome = await self._control(job, record, model, profile, events)
        finally:
            await model.aclose()
        await self._close(record, search, history, outcome, events)
        return JobState.RUNNING, f"iteration {record.iteration + 1} of {job.spec.iterations} closed"

    async def _ended(self, job: JobRecord, done: tuple[IterationRecord, ...]) -> tuple[JobState, str] | None:
        """Whether a budget is spent, or the model fails again and again."""
        closed = [record for record in done if record.closed]
        reasons = [record.reason for record in closed]
        if len(reasons) >= MODEL_FAILURES and set(reasons[-MODEL_FAILURES:]) == {IterationReason.MODEL_FAILED}:
            return JobState.FAILED, f"the model failed in {MODEL_FAILURES} iterations in a row"
        spent = (await asyncio.to_thread(self.store.tokens, self.job_id)).total
        best = await asyncio.to_thread(self.store.best, self.job_id)
        told = f"best {best.speedup:.3f}x" if best else "no valid kernel"
        if len(closed) >= job.spec.iterations:
            if set(reasons) == {IterationReason.NO_CODE}:
                told = "the model never produced code"
            return JobState.DONE, f"iteration budget reached: {told}"
        if job.spec.token_budget is not None and spent >= job.spec.token_budget:
            return JobState.DONE, f"token budget reached ({spent} tokens): {told}"
        elapsed = sum((r.closed_at - r.opened_at).total_seconds() for r in closed if r.closed_at)
        if job.spec.time_budget_s is not None and elapsed >= job.spec.time_budget_s:
            return JobState.DONE, f"time budget reached ({elapsed:.0f} s): {told}"
        return None

    async def _connect(self, profile: ModelProfile) -> OpenAICompatible:
        """What the server can do is asked once a process: later, an LLM that is away is a failed generation."""
        key = (profile.base_url, profile.model, profile.dialect)
        if key not in _seen:
            try:
                _seen[key] = await detect(profile)
            except ModelUnreachable as exc:
                raise ModelUnavailable(exc.message, exc.hint) from exc
        return OpenAICompatible(profile, _seen[key])

    def _profile(self, job: JobRecord) -> ModelProfile:
        profile = self.settings.llm.get(job.spec.llm_profile)
        if profile is None:
            names = ", ".join(self.settings.llm) or "none"
            raise SettingsError(f"this worker knows no LLM profile {job.spec.llm_profile!r}", f"profiles: {names}")
        return profile.model_copy(update={"model": job.spec.model or profile.model})

    async def _open(
        self,
        job: JobRecord,
        index: int,
        done: tuple[IterationRecord, ...],
        search: SearchAlgorithm,
        context: JobContext,
    ) -> IterationRecord | None:
        """Line 27 of the iteration before: P = A(k*, H). One that was left open keeps its step and its prompt."""
        if len(done) > index:
            search.load(done[index].search_state)
            return done[index]
        step = search.select(context.history, rng_for(job.spec.seed, index))
        if step is STOP:
            return None
        if not isinstance(step, Step):
            raise SettingsError(f"search {job.spec.search!r} waits although nothing runs", "WAIT is for several lanes")
        prompt = context.stamped(await search.compose(step, context))
        return await asyncio.to_thread(
            self.store.open_iteration,
            self.job_id,
            index,
            step=step.dump(),
            prompt=prompt,
            search_state=search.dump(),
            token=self.token,
        )

    async def _control(
        self, job: JobRecord, record: IterationRecord, model: OpenAICompatible, profile: ModelProfile, events: Stream
    ) -> IterationOutcome:
        """Lines 4–26: SpecController."""
        journal = Journal(
            self.store, self.job_id, record.iteration, self.token, profile.model, record.prompt.template_hash
        )
        plan = IterationPlan(
            prompt=record.prompt,
            history=await asyncio.to_thread(self.store.history, self.job_id),
            criterion=termination.resolve(job.spec.termination),
            policy=ForkPolicy.model_validate(self.settings.forks.model_dump() | job.spec.policy),
            seed=rng_for(job.spec.seed, record.iteration).getrandbits(31),
            max_tokens=job.spec.max_tokens,
            speculation=job.spec.speculation,
        )
        async with closing_pool(self.settings) as pool:
            evaluations = Evaluations(
                self.job_id, record.iteration, job.spec.problem, self.settings.evaluation, pool, journal
            )
            await pool.open(evaluations.scope)
            return await Iteration(plan, model, pool, evaluations, journal, events).run()

    async def _close(
        self,
        record: IterationRecord,
        search: SearchAlgorithm,
        history: History,
        outcome: IterationOutcome,
        events: Stream,
    ) -> None:
        """The boundary's commit: what was measured, k*, the search's new state."""
        evaluated = await stored(self.store.evaluated, self.job_id, record.iteration)
        entries = [entry(e) for e in evaluated]
        for new in entries:
            history.add(new)
        known = {e.candidate_id for e in entries}
        again = {o.candidate_id for o in outcome.outcomes if o.candidate_id in history} - known  # duplicates
        everything = (*entries, *(history.get(name) for name in sorted(again)))
        chosen = max((e for e in everything if e.valid), key=lambda e: e.speedup or 0.0, default=None)
        if outcome.reason is IterationReason.EARLY and outcome.chosen is not None:
            chosen = history.get(outcome.chosen.candidate_id)  # line 18: the terminating kernel
        result = IterationResult(
            iteration=record.iteration,
            step=Step.load(record.step),
            evaluated=everything,
            chosen=chosen.candidate_id if chosen else None,
            reason=outcome.reason,
            main_failure=outcome.main_failure,
        )
        search.update(result, history)
        await stored(
            self.store.close_iteration,
            self.job_id,
            record.iteration,
            reason=outcome.reason,
            chosen_candidate=result.chosen,
            threshold=outcome.threshold if outcome.reason is IterationReason.EARLY else None,
            search_state=search.dump(),
            token=self.token,
        )
        speedup = chosen.speedup if chosen else None
        await events.publish(EventKind.BOUNDARY, reason=outcome.reason.value, speedup=speedup)


@contextlib.asynccontextmanager
async def closing_pool(settings: Settings) -> AsyncIterator[RedisPool]:
    """The pool, for this event loop."""
    pool = RedisPool(settings.redis, send_request, prefix=settings.prefix, order=settings.pool.order)
    try:
        yield pool
    finally:
        await pool.aclose()
