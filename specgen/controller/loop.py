"""SpecController: one iteration of Algorithm 1 (§6.1), for one job.

The main generation streams; its reasoning goes through the trigger parser; triggers and idle devices launch
non-reasoning forks on P ⊕ π; forked kernels are validated and profiled while the reasoning goes on; the first whose
speedup meets the criterion ends it. The main generation's own kernel is the fallback. Not here: the outer loop over
iterations (`workers.iteration`: one Celery task each), the prompt (`specgen.search`), queues (`Pool`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial

from specgen.controller.answers import Answer, FirstBlock
from specgen.controller.blame import blame
from specgen.controller.cancelling import finish, patiently, stop
from specgen.controller.evaluations import Evaluations, Outcome
from specgen.controller.forks import ForkGate
from specgen.controller.ports import Answered, Events, Model, Pool, Recorder
from specgen.controller.receipts import Receipt
from specgen.controller.repetition import LoopWatch
from specgen.controller.resuming import Former
from specgen.controller.termination import Criterion, Threshold
from specgen.controller.triggers import TriggerParser
from specgen.errors import ModelAccessError, ModelUnavailable, PoolUnavailable, ProblemError
from specgen.settings import ForkPolicy
from specgen.types import EventKind, IterationReason, Origin, Prompt, Status, Trigger, TriggerClass, Usage

TICK_S = 0.25  # how often idle devices are looked for and progress is told
TELL_AGAIN_S = 60.0  # that no device is here


@dataclass(frozen=True)
class IterationPlan:
    """What one iteration starts from."""

    prompt: Prompt
    history: tuple[float, ...]  # H before the iteration; starts with 0
    criterion: Criterion
    policy: ForkPolicy
    seed: int
    max_tokens: int
    speculation: bool = True
    base: str = ""  # the kernel that answers may edit, instead of writing a whole one
    loop_chars: int = 0  # reasoning that repeats itself over so many characters is cut; 0: never


@dataclass(frozen=True)
class IterationOutcome:
    """What one iteration ended with. ``chosen`` is k*: the terminating kernel, else the best valid one, else None."""

    reason: IterationReason
    outcomes: tuple[Outcome, ...]
    chosen: Outcome | None
    threshold: float | None = None  # τ that the terminating kernel exceeded
    main_failure: str = ""  # what the search algorithm is told where nothing was valid


@dataclass
class Iteration:
    """The machinery of one iteration; `run` is Algorithm 1's loop body, lines 3–27."""

    plan: IterationPlan
    model: Model
    pool: Pool
    evaluations: Evaluations
    recorder: Recorder
    events: Events
    gate: ForkGate = field(init=False)
    history: list[float] = field(init=False)
    outcomes: list[Outcome] = field(default_factory=list)
    threshold: float | None = None
    main_ended: bool = False
    without_main: IterationReason | None = None  # it gave no kernel, and how: the forks that are out decide
    refused: bool = False  # the server refuses forks of this prompt (its context is too long, say)
    main_failure: str = ""
    _trace: list[str] = field(default_factory=list)
    _receipts: list[Receipt] = field(default_factory=list)
    _told_at: float | None = None
    _boundary: asyncio.Future[IterationReason] | None = None  # None before `run`
    _spent: bool = False  # a budget of the job
    _terminating: Outcome | None = None  # the kernel that ends the iteration early
    _former: Former = field(default_factory=Former)
    _forks: set[asyncio.Task[None]] = field(default_factory=set)
    _fork_count: int = 0
    _launching: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.gate = ForkGate(self.plan.policy)
        self.history = list(self.plan.history)

    async def run(self) -> IterationOutcome:
        """Until the boundary; on every path the streams are closed and the scope is closed."""
        self._boundary = asyncio.get_running_loop().create_future()
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._resume()
            if self._spent:
                self._end(IterationReason.BUDGET)
            if not self._boundary.done():
                tasks += [asyncio.create_task(work()) for work in (self._main, self._collect, self._watch)]
            for task in tasks:
                task.add_done_callback(self._fail)
            reason = await self._boundary
        finally:
            await finish(self._close(tasks))
        chosen = self._terminating if reason is IterationReason.EARLY else self._best()
        return IterationOutcome(reason, tuple(self.outcomes), chosen, self.threshold, self.main_failure)

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        """Line 19: no stream goes on, and the pool forgets the scope."""
        await stop(tasks)
        while self._forks:  # a trigger may have launched some while it was being stopped
            await stop(list(self._forks))
        await self.recorder.confirm()  # a worker that lost the job must not close its successor's scope
        await patiently(lambda: self.pool.close(self.evaluations.scope))

    def _best(self) -> Outcome | None:
        valid = [o for o in self.outcomes if o.result.speedup is not None]
        return max(valid, key=lambda o: o.result.speedup or 0.0, default=None)

    def _end(self, reason: IterationReason) -> None:
        if not self._over:
            self._started.set_result(reason)

    def end_for_budget(self) -> None:
        """The job's budget is spent: a boundary here and now, with what was measured. Nothing if one is under way.
        Before `run`: nothing is asked any more, only what an attempt that died had measured counts."""
        self._spent = True
        if self._boundary is not None:
            self._end(IterationReason.BUDGET)

    @property
    def usages(self) -> list[Usage]:
        """Of this attempt's generations, those that still run included."""
        return [receipt.stream.usage for receipt in self._receipts if receipt.stream is not None]

    @property
    def best_speedup(self) -> float:
        """Of what was measured so far; 0 where nothing was valid."""
        return max((outcome.result.speedup or 0.0 for outcome in self.outcomes), default=0.0)

    def _fail(self, task: asyncio.Task[None]) -> None:
        """A part of the iteration that raises ends the iteration with its error."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._over:
            self._started.set_exception(error)

    @property
    def _started(self) -> asyncio.Future[IterationReason]:
        assert self._boundary is not None, "`run` makes it"
        return self._boundary

    @property
    def _over(self) -> bool:
        return self._started.done()

    # -------------------------------------------------------------------------------------- after a crash

    async def _resume(self) -> None:
        """Go on where an attempt at this iteration died: its outcomes pass the termination test again, in their order,
        so that a boundary that was due is taken now; its answers give their kernels without being paid again."""
        self._former = former = Former(await self.recorder.left(), self.plan.base)
        for outcome in former.outcomes():
            self._decide(outcome)
        due = self._over or former.without_code
        if not due:
            await self.evaluations.take_up(former.left.unfinished)
        for it, source in former.forks:
            if due:  # no device is asked any more; what was known before counts still
                note = await self.recorder.candidate(source, Origin.FORK, it.generation_id, it.trigger_id)
                if note.outcome is not None:
                    self.outcomes.append(Outcome(note.candidate_id, (Origin.FORK,), note.outcome, fresh=False))
            elif known := await self.evaluations.offer(source, Origin.FORK, it.generation_id, it.trigger_id):
                self._decide(known)
            else:
                self.gate.outstanding += 1

    async def _main_again(self, main: Answered) -> None:
        """The main generation had ended: its answer is in the store."""
        self.main_ended, self._trace = True, [main.reasoning]
        if main.finish_reason == "repetition":
            watched = LoopWatch(self.plan.loop_chars).feed(main.reasoning)
            await self._cut_short(self._former.cut_at or watched or 0)
            return
        receipt = Receipt.restored(main)
        await self._main_answer(main.generation_id, receipt, receipt.answer(prefilled=False, base=self.plan.base))

    # -------------------------------------------------------------------------------------- main generation

    async def _main(self) -> None:
        """Line 5: the reasoning generation, monitored; then its own kernel (the fallback)."""
        if self._former.main is not None:
            await self._main_again(self._former.main)
            return
        generation = await self.recorder.generation_started(
            Origin.MAIN, seed=self.plan.seed, prefix="", trigger_id=None
        )
        await self._plain()
        parser = TriggerParser(self.plan.policy.classes) if self._speculates else None
        receipt, watch = self._receipt(), LoopWatch(self.plan.loop_chars)
        try:
            async with self.model.main(
                self.plan.prompt, seed=self.plan.seed, max_tokens=self.plan.max_tokens
            ) as stream:
                receipt.stream = stream
                async for delta in stream:
                    receipt.add(delta.kind, delta.text)
                    if delta.kind == "reasoning":
                        self._trace.append(delta.text)
                        receipt.loops_from = watch.feed(delta.text)
                        if receipt.loops_from is not None:
                            break
                        for trigger in parser.feed(delta.text) if parser else ():
                            await self._trigger(trigger)
        except ModelUnavailable as exc:
            self.main_failure = receipt.failure = exc.message
        finally:
            self.main_ended = True
            await finish(self.recorder.generation_finished(generation, receipt.record(self.trace)))
        if receipt.loops_from is not None:
            await self._cut_short(receipt.loops_from)
        else:
            await self._main_answer(generation, receipt, receipt.answer(prefilled=False, base=self.plan.base))

    async def _cut_short(self, position: int) -> None:
        """The reasoning went round in circles from there: the kernel is asked for from what came before."""
        prefix = self.trace[:position]
        self.main_failure = f"the reasoning repeated itself from character {position} on and was cut"
        await self.events.publish(EventKind.WAITING, reason=self.main_failure)
        receipt = self._receipt()
        if not self.model.can_fork or not prefix:  # nothing came before it
            self._main_without_code(failed=True)
            return
        if (answered := self._former.continuation(self.plan.seed, prefix)) is not None:
            generation, receipt = answered.generation_id, Receipt.restored(answered)
        else:
            generation = await self._continue(prefix, self.plan.seed, None, receipt)
        await self._main_answer(generation, receipt, receipt.answer(prefilled=True, base=self.plan.base))

    def _main_without_code(self, *, failed: bool) -> None:
        reason = IterationReason.MODEL_FAILED if failed else IterationReason.NO_CODE
        if self.gate.outstanding and (failed or not self.model.can_fork):
            self.without_main = reason  # a shorter reasoning, or generations of their own, stand: `_answered` ends it
        else:
            self._end(reason)

    async def _main_answer(self, generation: int, receipt: Receipt, answer: Answer) -> None:
        if answer.source is None:
            self.main_failure = self.main_failure or f"{answer.status or Status.NO_CODE}"
            self._main_without_code(failed=receipt.finish_reason not in ("stop", "length"))
            return
        known = await self.evaluations.offer(answer.source, Origin.MAIN, generation, None)
        if known is not None:
            await self._outcome(known)

    # -------------------------------------------------------------------------------------- triggers and forks

    @property
    def trace(self) -> str:
        """π: the reasoning received so far."""
        if len(self._trace) > 1:
            self._trace = ["".join(self._trace)]
        return self._trace[0] if self._trace else ""

    @property
    def _speculates(self) -> bool:
        return self.plan.speculation and self.model.can_fork and not self.refused

    async def _plain(self) -> None:
        """On request, where the server cannot fork: whole generations beside the main one, each with its own seed.

        Their kernels count as forks' do, so that the first to meet the criterion ends the iteration. They reserve no
        device: it would wait for all of their reasoning.
        """
        k = self.plan.policy.plain
        if not k or not self.plan.speculation or self.model.can_fork:
            return
        self.gate.launched(k, 0)
        self._launch(k, "", await self.recorder.trigger(Trigger(TriggerClass.PLAIN, 0), k))
        await self.events.publish(EventKind.TRIGGER, kind=TriggerClass.PLAIN.value, position=0, launched=k, text="")

    def _launch(self, k: int, prefix: str, trigger_id: int) -> None:
        for _ in range(k):
            self._fork_count += 1
            seed = self.plan.seed * 1009 + self._fork_count  # K equal seeds would give K equal kernels
            task = asyncio.create_task(self._fork(prefix, seed, trigger_id))
            self._forks.add(task)
            task.add_done_callback(self._forks.discard)
            task.add_done_callback(self._fail)

    async def _trigger(self, trigger: Trigger) -> None:
        """Lines 7–11: π, P_s, K, and K forks. A trigger that the brake holds back is recorded with K = 0."""
        idle = trigger.kind is TriggerClass.IDLE
        async with self._launching:  # a trigger and an idle device at the same time must not share the room
            prefix = self.trace
            k = await self._claim(self.gate.room(trigger.kind, len(prefix)), at_least_one=not idle)
            self.gate.launched(k, len(prefix))
        if idle and not k:
            return  # nothing happened: worth no row
        self._launch(k, prefix, await self.recorder.trigger(trigger, k))
        await self.events.publish(
            EventKind.TRIGGER, kind=trigger.kind.value, position=trigger.position, launched=k, text=trigger.text[:80]
        )

    async def _claim(self, room: int, *, at_least_one: bool) -> int:
        """Line 10's K within ``room`` (its max(1, …) is for triggers, not for idle devices); 0 once the main generation
        has ended, and while Redis is away."""
        if not room or self.main_ended or not self._speculates:
            return 0
        try:
            return await self.pool.claim(self.evaluations.scope, max_k=room, at_least_one=at_least_one)
        except PoolUnavailable:
            return 0

    async def _continue(self, prefix: str, seed: int, trigger_id: int | None, receipt: Receipt) -> int:
        """One non-reasoning generation on P ⊕ π, stopped at its closing fence; on no prefix one that reasons itself.
        Returns its row id."""
        generation = await self.recorder.generation_started(
            Origin.FORK, seed=seed, prefix=prefix, trigger_id=trigger_id
        )
        block, watch, reasoning = FirstBlock(), LoopWatch(self.plan.loop_chars), []
        prompt, limit = self.plan.prompt, self.plan.max_tokens
        ask = partial(self.model.fork, prompt, prefix) if prefix else partial(self.model.main, prompt)
        try:
            async with ask(seed=seed, max_tokens=limit) as stream:
                receipt.stream = stream
                async for delta in stream:
                    receipt.add(delta.kind, delta.text)
                    if delta.kind == "content":
                        receipt.block = block.feed(delta.text) if prefix else None
                    elif not prefix:
                        reasoning.append(delta.text)
                        receipt.loops_from = watch.feed(delta.text)
                    if receipt.block is not None or receipt.loops_from is not None:
                        break
        except ModelUnavailable as exc:
            receipt.failure = exc.message
        except ModelAccessError as exc:  # refuses this request, not the job: the main generation goes on
            receipt.failure, self.refused = exc.message, True
        finally:
            await finish(self.recorder.generation_finished(generation, receipt.record("".join(reasoning))))
        return generation

    async def _fork(self, prefix: str, seed: int, trigger_id: int) -> None:
        """Lines 11–13: one speculative generation, its kernel sent to validation."""
        if self._former.paid(seed, prefix):  # its kernel was offered when this attempt began
            await self._release(prefix)
            self._answered()
            return
        receipt = self._receipt()
        generation = await self._continue(prefix, seed, trigger_id, receipt)
        answer = receipt.answer(prefilled=bool(prefix), base=self.plan.base)
        known = None
        if answer.source is not None:
            known = await self.evaluations.offer(answer.source, Origin.FORK, generation, trigger_id)
        await self._release(prefix)
        await self.events.publish(
            EventKind.FORK, prefix_chars=len(prefix), candidate=answer.source is not None, duplicate=known is not None
        )
        if known is not None:
            await self._outcome(known)
        elif answer.source is None:
            self._answered()

    async def _release(self, prefix: str) -> None:
        """The claim of a fork that ended; a plain generation had none."""
        if prefix:
            await patiently(lambda: self.pool.release(self.evaluations.scope))

    def _receipt(self) -> Receipt:
        self._receipts.append(Receipt())
        return self._receipts[-1]

    def _answered(self) -> None:
        """A fork is settled; where the main stream broke, the last one to settle is the boundary."""
        self.gate.answered()
        if self.without_main is not None and self.gate.outstanding == 0:
            self._end(self.without_main)

    # -------------------------------------------------------------------------------------- outcomes

    async def _collect(self) -> None:
        """Lines 13–22: results as they return, in the order of their return."""
        async for result, outcome in self.evaluations.outcomes():
            await self.events.publish(
                EventKind.RESULT,
                phase=result.phase.value,
                status=result.status.value,
                speedup=result.speedup,
                candidate=result.candidate_id[:8],
                error=result.error[:160],
            )
            if result.status is Status.REFERENCE_ERROR:
                raise ProblemError(f"the reference failed: {result.error.strip()[:300]}", "mend the problem file")
            if outcome is not None:
                await self._outcome(outcome)
            if self._over:
                return

    async def _outcome(self, outcome: Outcome) -> None:
        """Lines 14–21 for one candidate: τ before s enters H, then the test. What comes back while the boundary is
        under way is stored, but decides nothing any more."""
        if self._over:
            return
        self._decide(outcome)
        for _ in range(outcome.origins.count(Origin.FORK)):
            self._answered()

    def _decide(self, outcome: Outcome) -> None:
        if self._over:
            return
        self.outcomes.append(outcome)
        speedup = outcome.result.speedup
        early = False
        if outcome.fresh and speedup is not None:
            early = self._terminates(speedup)
            self.history.append(speedup)
        if early and Origin.FORK in outcome.origins:
            self._terminating = outcome
            self._end(IterationReason.EARLY)
        elif Origin.MAIN in outcome.origins:
            if speedup is None:
                self.main_failure = f"{outcome.result.status}: {outcome.result.error}"
            self._end(IterationReason.MAIN)

    def _terminates(self, speedup: float) -> bool:
        criterion, before = self.plan.criterion, tuple(self.history)
        self.threshold = criterion.tau(before) if isinstance(criterion, Threshold) else None
        with blame("the termination criterion"):
            return bool(criterion(speedup, before))

    # -------------------------------------------------------------------------------------- the watch

    async def _watch(self) -> None:
        """Idle devices fork (§6.1.1), progress is told, and outcomes that the pool lost are asked for again."""
        started = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            try:
                pool = await self.pool.snapshot()
                queued = pool.validate_queue + pool.profile_queue
                if self.gate.idle(pool.devices - pool.busy - queued - pool.claims, time.monotonic()) and self._trace:
                    await self._trigger(Trigger(TriggerClass.IDLE, len(self.trace)))
                await self.evaluations.resend()
            except PoolUnavailable:
                continue  # Redis is away: the generation goes on
            await self._tell_lack(pool.devices)
            await self.events.publish(
                EventKind.PROGRESS,
                reasoning_chars=len(self.trace),
                seconds=round(time.monotonic() - started, 2),
                forks=len(self._forks),
                devices=pool.devices,
                busy=pool.busy,
                validators=pool.validators,
                profilers=pool.profilers,
                validate_queue=pool.validate_queue,
                profile_queue=pool.profile_queue,
            )

    async def _tell_lack(self, devices: int) -> None:
        """That no device can serve this job now, instead of waiting in silence."""
        now = time.monotonic()
        if devices:
            self._told_at = None
        elif self._told_at is None or now - self._told_at > TELL_AGAIN_S:
            self._told_at = now
            await self.events.publish(EventKind.WAITING, reason=f"no device labelled {self.evaluations.label} is here")
