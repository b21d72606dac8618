"""A job's iterations under one lease: opened, run, closed. The outer loop of Algorithm 1 (lines 3 and 27).

With one lane (the paper's loop) one iteration is run and the task ends. With several, as many main generations of the
job run side by side; each closes by itself and the next is opened, until the job is over or shall rest. Select,
compose and open are one step that nothing interrupts, and so are update and close: what the search had decided is
stored before anything follows from it. Left open by a worker that died, an iteration is taken up from its stored
prompt. Not here: the lease, the user's wishes, the job's state (`workers.iteration`); what happens inside an iteration
(`specgen.controller.loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property

import structlog

from specgen.controller import termination
from specgen.controller.blame import blame
from specgen.controller.budgets import Budget, Spent, keep
from specgen.controller.cancelling import stop
from specgen.controller.evaluations import Evaluations
from specgen.controller.loop import Iteration, IterationOutcome, IterationPlan
from specgen.crash_points import crash_point
from specgen.errors import ContextTooLong, ModelUnavailable, ModelUnreachable, SettingsError
from specgen.llm import Capabilities, OpenAICompatible, detect
from specgen.prompts import TRIMS, CpuFacts, GpuFacts
from specgen.scheduler.pool import RedisPool
from specgen.search import STOP, WAIT, History, IterationResult, SearchAlgorithm, Step, resolve, rng_for
from specgen.settings import PRICE_HINT, ForkPolicy, ModelProfile, Price, Settings
from specgen.store import IterationRecord, JobRecord, Store
from specgen.types import EventKind, IterationReason, JobState, Json, Prompt, Usage
from workers.app import send_request
from workers.conclusion import Conclusion
from workers.context import JobContext, Models, device_facts, entry
from workers.journal import Journal, Stream, stored

log = structlog.get_logger(__name__)
_seen: dict[str, Capabilities] = {}

Count = Callable[[str, int], Awaitable[None]]  # adds to a counter of the pool's metrics


@dataclass
class Lanes:
    """One attempt at the job, under the fencing token ``token``."""

    settings: Settings
    store: Store
    job: JobRecord
    token: int
    events: Stream
    spent: Spent
    count: Count
    outside: Outside = field(default_factory=lambda: Outside())
    evaluations: dict[int, Evaluations] = field(default_factory=dict)  # of the iterations that run
    _begun: list[Iteration] = field(default_factory=list)  # all of this attempt
    # what roles were asked in this attempt, and at what price
    _side: list[tuple[Usage, Price | None]] = field(default_factory=list)
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopped: bool = False  # by the search algorithm

    def __post_init__(self) -> None:
        self.conclusion = Conclusion(self.store, self.job, self.spent)

    @property
    def width(self) -> int:
        """How many iterations run side by side."""
        return self.job.spec.lanes

    def set_priority(self, priority: int) -> None:
        """Of requests from now on."""
        for evaluations in self.evaluations.values():
            evaluations.priority = priority

    async def run(self) -> tuple[JobState, str]:
        """The next iteration (with several lanes: all that follow, too). Returns the job's state and why."""
        await asyncio.to_thread(self.store.set_state, self.job.id, JobState.RUNNING, "", self.token)
        done = await self._iterations()
        if all(record.closed for record in done):  # what is open gets its boundary first
            if (end := await self.conclusion.reached(done)) is not None:
                return end
            if await self._shall_rest():
                return JobState.RUNNING, ""  # at a boundary already: the user's wish is done
        await self._prepare(done)
        keeper = asyncio.ensure_future(self._keep_budgets())
        try:
            return await self._drive([record for record in done if not record.closed], len(done))
        finally:
            await stop((keeper,))
            await self.models.aclose()

    async def _prepare(self, done: tuple[IterationRecord, ...]) -> None:
        """The search as it was left, and the model. What a torn iteration had measured is known to the store, but to
        the search only once it closes."""
        closed = {record.iteration for record in done if record.closed}
        evaluated = await asyncio.to_thread(self.store.evaluated, self.job.id)
        self.history = History(entry(e) for e in evaluated if e.iteration in closed)
        self.search: SearchAlgorithm = resolve(self.job.spec.search)
        with self._blamed("load"):
            self.search.load(self.job.search_state)
        self.models = Models(self.profile, await self.outside.connect(self.profile), self.outside.connect)

    async def _drive(self, left: list[IterationRecord], opened: int) -> tuple[JobState, str]:
        lanes: set[asyncio.Task[IterationOutcome]] = set()
        end: tuple[JobState, str] | None = None
        rest = False
        try:
            while True:
                while len(lanes) < self.width and (left or not (end or rest)):
                    record = left.pop(0) if left else await self._open_next(opened, alone=not lanes)
                    if record is None:
                        break
                    opened = max(opened, record.iteration + 1)
                    lanes.add(asyncio.create_task(self._lane(record)))
                if not lanes:
                    stopped = (JobState.DONE, "the search algorithm stopped") if self._stopped else None
                    return end or stopped or (JobState.RUNNING, f"{opened} iterations opened")
                finished, lanes = await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
                failed = [error for lane in finished if (error := lane.exception()) is not None]
                for error in failed[1:]:
                    log.warning("another_lane_failed", job_id=self.job.id, error=repr(error))
                if failed:
                    raise failed[0]
                outcomes = [lane.result() for lane in finished]
                if self.width == 1:
                    if outcomes[0].reason is IterationReason.BUDGET:
                        return JobState.DONE, await self.conclusion.over_budget()
                    return JobState.RUNNING, f"iteration {opened} of {self.job.spec.iterations} closed"
                end = await self.conclusion.reached(await self._iterations())
                rest = await self._shall_rest()
        finally:
            await stop(lanes)

    async def _iterations(self) -> tuple[IterationRecord, ...]:
        return await stored(self.store.iterations, self.job.id)

    async def _shall_rest(self) -> bool:
        return bool((await stored(self.store.control, self.job.id)).wish)

    async def _keep_budgets(self) -> None:
        """Ends what runs once a budget is spent or the target reached."""

        def now() -> Spent:
            usages = [usage for iteration in self._begun for usage in iteration.usages]
            best = max((it.best_speedup for it in self._begun), default=0.0)
            spent = self.spent.and_of(usages, best, self.profile.price)
            for usage, price in self._side:
                spent = spent.and_of([usage], 0.0, price)
            return spent

        self.conclusion.told = await keep(Budget.of(self.job.spec), now)
        for iteration in self._begun:
            iteration.end_for_budget()

    # ------------------------------------------------------------------------------------------ one iteration

    async def _open_next(self, index: int, *, alone: bool) -> IterationRecord | None:
        """Line 27 of the iterations before: P = A(k*, H). None: there is nothing to open (now)."""
        if index >= self.job.spec.iterations or self.conclusion.told:
            return None
        async with self._order:
            with self._blamed("select"):
                step = self.search.select(self.history, rng_for(self.job.spec.seed, index))
            if step is STOP:
                self._stopped = True
                return None
            if step is WAIT:
                if alone:
                    name = self.job.spec.search
                    raise SettingsError(f"search {name!r} waits although nothing runs", "WAIT is for several lanes")
                return None
            with self._blamed("select"):
                if not isinstance(step, Step):
                    raise TypeError(f"it returned {step!r}, which is no Step, WAIT or STOP")
                state, decided = as_json(self.search.dump()), as_json(step.dump())
            return await stored(
                self.store.open_iteration,
                self.job.id,
                index,
                step=decided,
                prompt=await self._compose(step, await self._context()),
                search_state=state,
                token=self.token,
            )

    async def _compose(self, step: Step, context: JobContext) -> Prompt:
        with self._blamed("compose"):
            prompt = await self.search.compose(step, context)
            if not isinstance(prompt, Prompt):
                raise TypeError(f"it returned {type(prompt).__name__}, which is no Prompt")
        return context.stamped(prompt)

    def _blamed(self, call: str) -> AbstractContextManager[None]:
        return blame(f"search {self.job.spec.search!r}: {call}")

    async def _context(self, trim: int = 0) -> JobContext:
        return JobContext(
            self.job, self.store, self.models, self.history, self.token, await self._device(), self.profile,
            self._side, trim,
        )  # fmt: skip

    async def _device(self) -> CpuFacts | GpuFacts:
        async with self.outside.pool(self.settings, self.job.spec.label) as pool:
            return device_facts(await pool.view(), self.job.spec.problem.backend, self.job.spec.label)

    async def _lane(self, record: IterationRecord) -> IterationOutcome:
        """An iteration that is open, to its boundary."""
        events = replace(self.events, iteration=record.iteration)
        await events.publish(EventKind.ITERATION, step=Step.load(record.step).kind)
        while True:
            try:
                outcome = await self._control(record, events)
                break
            except ContextTooLong as exc:
                record = await self._tighter(record, exc)
        async with self._order:
            await self._close(record, outcome, events)
        return outcome

    async def _tighter(self, record: IterationRecord, refused: ContextTooLong) -> IterationRecord:
        """The open iteration with the next shorter prompt that its templates make. Raises ``refused`` where there is
        none."""
        for trim in range(1, TRIMS):
            async with self._order:
                prompt = await self._compose(Step.load(record.step), await self._context(trim))
            if len(prompt.user) < len(record.prompt.user):
                log.warning("prompt_refused", job_id=self.job.id, iteration=record.iteration, trim=trim)
                await stored(self.store.tighten_prompt, self.job.id, record.iteration, prompt, token=self.token)
                return replace(record, prompt=prompt)
        raise refused

    async def _control(self, record: IterationRecord, events: Stream) -> IterationOutcome:
        """Lines 4–26: SpecController."""
        spec, profile = self.job.spec, self.profile
        journal = Journal(
            self.store, self.job.id, record.iteration, self.token, profile.model, record.prompt.template_hash,
            profile.price,
        )  # fmt: skip
        plan = IterationPlan(
            prompt=record.prompt,
            history=await asyncio.to_thread(self.store.history, self.job.id, without=record.iteration),
            criterion=termination.resolve(spec.termination),
            policy=ForkPolicy.model_validate(self.settings.forks.model_dump() | spec.policy),
            seed=rng_for(spec.seed, record.iteration).getrandbits(31),
            max_tokens=spec.max_tokens,
            speculation=spec.speculation,
            base=self._base(record),
            loop_chars=profile.loop_chars,
        )
        async with self.outside.pool(self.settings, spec.label) as pool:
            evaluations = Evaluations(
                self.job.id,
                record.iteration,
                spec.problem,
                self.settings.evaluation,
                pool,
                journal,
                label=spec.label,
                priority=(await stored(self.store.control, self.job.id)).priority,
            )
            self.evaluations[record.iteration] = evaluations
            await pool.open(evaluations.scope)
            iteration = Iteration(plan, self.models.main, pool, evaluations, journal, events)
            self._begun.append(iteration)
            if Budget.of(spec).reached(self.spent):
                iteration.end_for_budget()
            try:
                return await iteration.run()
            finally:
                del self.evaluations[record.iteration]
                if evaluations.resent:
                    await self.count("resent", evaluations.resent)

    def _base(self, record: IterationRecord) -> str:
        """The kernel that the iteration's answers may edit; empty where they are whole files."""
        step = Step.load(record.step)
        return self.history.get(step.parents[0]).source if step.args.get("edits") and step.parents else ""

    async def _close(self, record: IterationRecord, outcome: IterationOutcome, events: Stream) -> None:
        """The boundary's commit: what was measured, k*, the search's new state."""
        evaluated = await stored(self.store.evaluated, self.job.id, record.iteration)
        entries = [entry(e) for e in evaluated]
        for new in entries:
            self.history.add(new)
        known = {e.candidate_id for e in entries}
        again = {o.candidate_id for o in outcome.outcomes if o.candidate_id in self.history} - known  # duplicates
        everything = (*entries, *(self.history.get(name) for name in sorted(again)))
        chosen = max((e for e in everything if e.valid), key=lambda e: e.speedup or 0.0, default=None)
        if outcome.reason is IterationReason.EARLY and outcome.chosen is not None:
            chosen = self.history.get(outcome.chosen.candidate_id)  # line 18: the terminating kernel
        result = IterationResult(
            iteration=record.iteration,
            step=Step.load(record.step),
            evaluated=everything,
            chosen=chosen.candidate_id if chosen else None,
            reason=outcome.reason,
            main_failure=outcome.main_failure,
        )
        with self._blamed("update"):
            self.search.update(result, self.history)
            state = as_json(self.search.dump())
        crash_point("boundary.storing")
        await stored(
            self.store.close_iteration,
            self.job.id,
            record.iteration,
            reason=outcome.reason,
            chosen_candidate=result.chosen,
            threshold=outcome.threshold if outcome.reason is IterationReason.EARLY else None,
            search_state=state,
            token=self.token,
        )
        crash_point("boundary.stored")
        speedup = chosen.speedup if chosen else None
        await events.publish(EventKind.BOUNDARY, reason=outcome.reason.value, speedup=speedup)

    @cached_property
    def profile(self) -> ModelProfile:
        """The job's LLM, with the job's model. Raises SettingsError."""
        spec, profiles = self.job.spec, self.settings.llm
        profile = profiles.get(spec.llm_profile)
        if profile is None:
            names = ", ".join(profiles) or "none"
            raise SettingsError(f"this worker knows no LLM profile {spec.llm_profile!r}", f"profiles: {names}")
        if spec.cost_budget is not None and profile.price is None:
            name = spec.llm_profile
            raise SettingsError(f"a cost budget needs a price, and LLM profile {name!r} has none", PRICE_HINT)
        return profile.model_copy(update={"model": spec.model or profile.model})


def as_json(value: Json) -> Json:
    """The value, if JSON can hold it. Raises TypeError or ValueError."""
    json.dumps(value)
    return value


async def _connect(profile: ModelProfile) -> OpenAICompatible:
    """What the server can do is asked once a process: later, an LLM that is away is a failed generation."""
    key = profile.model_dump_json(include={"base_url", "model", "dialect", "extra_body", "opens_think"})
    if key not in _seen:
        try:
            _seen[key] = await detect(profile)
        except ModelUnreachable as exc:
            raise ModelUnavailable(exc.message, exc.hint) from exc
    return OpenAICompatible(profile, _seen[key])


@contextlib.asynccontextmanager
async def closing_pool(settings: Settings, label: str) -> AsyncIterator[RedisPool]:
    """The pool of devices with that label, for this event loop."""
    pool = RedisPool(settings.redis, send_request, prefix=settings.prefix, order=settings.pool.order, label=label)
    try:
        yield pool
    finally:
        await pool.aclose()


@dataclass(frozen=True)
class Outside:
    """How lanes come to what is not this machine's: the LLM and the devices."""

    connect: Callable[[ModelProfile], Awaitable[OpenAICompatible]] = _connect
    pool: Callable[[Settings, str], AbstractAsyncContextManager[RedisPool]] = closing_pool
