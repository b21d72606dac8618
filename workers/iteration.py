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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import structlog
from celery import signals
from kombu.exceptions import OperationalError
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from specgen.client import ITERATE, iteration_task
from specgen.controller import termination
from specgen.controller.budgets import Budget, Spent, keep, plateau
from specgen.controller.cancelling import stop
from specgen.controller.evaluations import Evaluations
from specgen.controller.loop import Iteration, IterationOutcome, IterationPlan
from specgen.crash_points import crash_point
from specgen.errors import (
    InfrastructureError,
    ModelUnavailable,
    ModelUnreachable,
    SettingsError,
    StaleLease,
    UserError,
)
from specgen.llm import Capabilities, OpenAICompatible, detect
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import PoolState, RedisPool, count
from specgen.search import STOP, History, IterationResult, SearchAlgorithm, Step, resolve, rng_for
from specgen.settings import PRICE_HINT, ForkPolicy, ModelProfile, Settings, get_settings
from specgen.store import IterationRecord, JobRecord, Store
from specgen.store.wishes import FULFILLED
from specgen.types import EventKind, IterationReason, JobState, Wish
from workers.app import app, send_request
from workers.context import JobContext, device_facts, entry
from workers.decisions import follow
from workers.journal import LEASE_S, Journal, Stream, stored
from workers.reconcile import keep_reconciling
from workers.startup import await_database, enter_pool

CONTROL_POLL_S = 0.5
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
    return asyncio.run(Runner(get_settings(), await_database(open_store), job_id, owner).run())


@lru_cache(maxsize=1)
def open_store() -> Store:
    """This process's connection pool."""
    return Store.open(get_settings().database)


def send_iteration(job_id: str) -> None:
    """Enqueue the job's next iteration. Blocking."""
    app.send_task(ITERATE, **iteration_task(job_id, open_store().control(job_id).priority))


_ending = threading.Event()
_seen: dict[tuple[str, str, str], Capabilities] = {}


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
    evaluations: Evaluations | None = None  # of the iteration at hand
    budget_told: str = ""  # which budget ended it, as it was seen then

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
        self.spent = await self._spent(job)
        try:
            state, reason = await self._beside(self._iterate(job, events), self._renew(), self._heed())
        except Asked as exc:
            state, reason = exc.state, f"{exc.state} by the user"
            await self._clear()
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

    async def _spent(self, job: JobRecord) -> Spent:
        tokens = await stored(self.store.tokens, self.job_id)
        best = await stored(self.store.best, self.job_id)
        cost = await stored(self.store.cost, self.job_id)
        return Spent(tokens.total, job.active_s, cost or 0.0, best.speedup if best else 0.0, time.monotonic())

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
            if self.evaluations is not None:
                self.evaluations.priority = control.priority
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

    # ------------------------------------------------------------------------------------------ one iteration

    async def _iterate(self, job: JobRecord, events: Stream) -> tuple[JobState, str]:
        """Line 3: the next iteration of the budget, unless something ends the job first."""
        await asyncio.to_thread(self.store.set_state, self.job_id, JobState.RUNNING, "", self.token)
        done = await asyncio.to_thread(self.store.iterations, self.job_id)
        if (end := await self._ended(job, done)) is not None:
            return end
        if all(record.closed for record in done) and (await stored(self.store.control, self.job_id)).wish:
            return JobState.RUNNING, ""  # at a boundary already: `_commit` does what the user wishes
        evaluated = await asyncio.to_thread(self.store.evaluated, self.job_id)
        closed = [record for record in done if record.closed]
        # what a torn iteration had measured is known to the store, but to the search only once it closes
        history = History(entry(e) for e in evaluated if e.iteration < len(closed))
        search = resolve(job.spec.search)
        search.load(closed[-1].search_state if closed else None)
        profile = self._profile(job)
        model = await self._connect(profile)
        try:
            async with closing_pool(self.settings, job.spec.label) as pool:
                device = device_facts(await pool.view(), job.spec.problem.backend, job.spec.label)
            context = JobContext(job, self.store, model, history, self.token, device, profile.price)
            record = await self._open(job, len(closed), done, search, context)
            if record is None:
                return JobState.DONE, "the search algorithm stopped"
            events.iteration = record.iteration
            await events.publish(EventKind.ITERATION, step=Step.load(record.step).kind)
            outcome = await self._control(job, record, model, profile, events)
        finally:
            await model.aclose()
        await self._close(record, search, history, outcome, events)
        if outcome.reason is IterationReason.BUDGET:
            return JobState.DONE, await self._over_budget(job)
        return JobState.RUNNING, f"iteration {record.iteration + 1} of {job.spec.iterations} closed"

    async def _ended(self, job: JobRecord, done: tuple[IterationRecord, ...]) -> tuple[JobState, str] | None:
        """Whether a budget is spent, or the model fails again and again."""
        reasons = [record.reason for record in done if record.closed]
        if len(reasons) >= MODEL_FAILURES and set(reasons[-MODEL_FAILURES:]) == {IterationReason.MODEL_FAILED}:
            return JobState.FAILED, f"the model failed in {MODEL_FAILURES} iterations in a row"
        if len(reasons) >= job.spec.iterations:
            if set(reasons) == {IterationReason.NO_CODE}:
                return JobState.DONE, "iteration budget reached: the model never produced code"
            return JobState.DONE, f"iteration budget reached: {await self._told_best()}"
        if IterationReason.BUDGET in reasons[-1:] or Budget.of(job.spec).reached(self.spent):
            return JobState.DONE, await self._over_budget(job)
        if job.spec.plateau is not None:
            best = await stored(self.store.best, self.job_id)
            if told := plateau(job.spec.plateau, len(reasons), best.iteration if best else None):
                return JobState.DONE, f"{told}: {await self._told_best()}"
        return None

    async def _over_budget(self, job: JobRecord) -> str:
        """Which budget, as it stands in the store now, and what the job came to."""
        spent = replace(await self._spent(job), seconds=self.spent.seconds, began=self.spent.began)
        told = Budget.of(job.spec).reached(spent) or self.budget_told or "budget reached"
        return f"{told}: {await self._told_best()}"

    async def _told_best(self) -> str:
        best = await stored(self.store.best, self.job_id)
        return f"best {best.speedup:.3f}x" if best else "no valid kernel"

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
        if job.spec.cost_budget is not None and profile.price is None:
            name = job.spec.llm_profile
            raise SettingsError(f"a cost budget needs a price, and LLM profile {name!r} has none", PRICE_HINT)
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
            self.store,
            self.job_id,
            record.iteration,
            self.token,
            profile.model,
            record.prompt.template_hash,
            profile.price,
        )
        plan = IterationPlan(
            prompt=record.prompt,
            history=await asyncio.to_thread(self.store.history, self.job_id),
            criterion=termination.resolve(job.spec.termination),
            policy=ForkPolicy.model_validate(self.settings.forks.model_dump() | job.spec.policy),
            seed=rng_for(job.spec.seed, record.iteration).getrandbits(31),
            max_tokens=job.spec.max_tokens,
            speculation=job.spec.speculation,
            loop_chars=profile.loop_chars,
        )
        async with closing_pool(self.settings, job.spec.label) as pool:
            self.evaluations = evaluations = Evaluations(
                self.job_id,
                record.iteration,
                job.spec.problem,
                self.settings.evaluation,
                pool,
                journal,
                label=job.spec.label,
                priority=(await stored(self.store.control, self.job_id)).priority,
            )
            await pool.open(evaluations.scope)
            iteration = Iteration(plan, model, pool, evaluations, journal, events)
            guard = asyncio.ensure_future(keep(Budget.of(job.spec), self.spent, iteration, profile.price))
            try:
                return await iteration.run()
            finally:
                self.evaluations = None
                if guard.done():
                    self.budget_told = guard.result()
                await stop((guard,))
                if evaluations.resent:
                    await self._count("resent", evaluations.resent)

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
        crash_point("boundary.storing")
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
        crash_point("boundary.stored")
        speedup = chosen.speedup if chosen else None
        await events.publish(EventKind.BOUNDARY, reason=outcome.reason.value, speedup=speedup)


@contextlib.asynccontextmanager
async def closing_pool(settings: Settings, label: str) -> AsyncIterator[RedisPool]:
    """The pool of devices with that label, for this event loop."""
    pool = RedisPool(settings.redis, send_request, prefix=settings.prefix, order=settings.pool.order, label=label)
    try:
        yield pool
    finally:
        await pool.aclose()
