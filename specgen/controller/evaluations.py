"""One iteration's candidates on their way through validation and profiling.

De-duplicates before a device is asked, sends a valid kernel on to profiling, retries what was our own fault, and
reports each candidate's final outcome once. Not here: triggers, termination (loop.py), queues (the pool's).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from specgen.controller.cancelling import patiently
from specgen.controller.ports import Pool, Recorder, Unfinished
from specgen.settings import EvaluationPolicy
from specgen.types import QUARANTINED, EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, Status

ASK_AFTER_S, ASK_EVERY_S = 5.0, 2.0  # whether the pool still knows a request that it owes us an outcome for
INFRA_RETRIES = 2  # further requests after a result that was our own fault


@dataclass
class Pending:
    """A candidate that a device owes us an answer for."""

    request: EvaluationRequest
    origins: list[Origin]  # one per generation of this iteration that gave this source
    retries: int = 0
    sent_at: float = field(default_factory=time.monotonic)
    missed: bool = False  # the pool did not know it when it was asked last


@dataclass(frozen=True)
class Outcome:
    """A candidate's final result in this iteration, and which generations gave it.

    ``fresh`` is False for a duplicate whose outcome was known already: it enters neither H nor the termination test.
    """

    candidate_id: str
    origins: tuple[Origin, ...]
    result: EvaluationResult
    fresh: bool


@dataclass
class Evaluations:
    """The candidates of the scope ``<job_id>/<iteration>``."""

    job_id: str
    iteration: int
    problem: ProblemSpec
    policy: EvaluationPolicy
    pool: Pool
    recorder: Recorder
    label: str = "cpu"  # of the devices that serve this job
    priority: int = 0  # of the requests from now on
    resent: int = 0
    asked_at: float = 0.0
    pending: dict[str, Pending] = field(default_factory=dict)
    settled: dict[str, EvaluationResult] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """What the boundary closes."""
        return f"{self.job_id}/{self.iteration}"

    async def offer(self, source: str, origin: Origin, generation_id: int, trigger_id: int | None) -> Outcome | None:
        """Send a kernel to validation. Returns its outcome at once where this job knows it already."""
        note = await self.recorder.candidate(source, origin, generation_id, trigger_id)
        known_result = note.outcome or self.settled.get(note.candidate_id)  # it may have settled while we asked
        if known_result is not None:
            return Outcome(note.candidate_id, (origin,), known_result, fresh=False)
        if (known := self.pending.get(note.candidate_id)) is not None:
            known.origins.append(origin)
            return None
        phase = Phase.PROFILE if note.validated else Phase.VALIDATE
        request = self._request(note.candidate_id, source, origin, phase)
        self.pending[note.candidate_id] = Pending(request, [origin])
        await self._submit(request)
        return None

    async def take_up(self, unfinished: Iterable[Unfinished]) -> None:
        """Go on with what an attempt at this iteration that died had begun: a request that is queued or running still
        is not doubled, a kernel that was found valid is profiled. Which generations gave them is for `offer` to say."""
        for left in unfinished:
            phase = Phase.PROFILE if left.validated else Phase.VALIDATE
            request = self._request(left.candidate_id, left.source, left.origin, phase)
            if left.request_id:
                request = request.model_copy(update={"request_id": left.request_id, "phase": left.phase})
            self.pending[left.candidate_id] = Pending(request, [])
            await self._submit(request)

    def _request(self, candidate_id: str, source: str, origin: Origin, phase: Phase) -> EvaluationRequest:
        validate = phase is Phase.VALIDATE
        return EvaluationRequest(
            request_id=uuid.uuid4().hex,
            job_id=self.job_id,
            iteration=self.iteration,
            candidate_id=candidate_id,
            phase=phase,
            origin=origin,
            source=source,
            problem=self.problem,
            label=self.label,
            priority=self.priority,
            time_budget_s=self.policy.validate_budget_s if validate else self.policy.profile_budget_s,
            warmups=self.policy.warmups,
            timed_runs=self.policy.timed_runs,
            enqueued_at=time.time(),
        )

    async def _submit(self, request: EvaluationRequest) -> None:
        await self.recorder.request(request)
        await patiently(lambda: self._send(request))

    async def _send(self, request: EvaluationRequest) -> None:
        """Nobody but us may close our scope while we run. Where it is closed all the same, a worker that had lost the
        job was frozen between its last look at the lease and its boundary: it is opened again, for the lease is ours.
        """
        while not await self.pool.submit(request):
            await self.recorder.confirm()
            await self.pool.open(self.scope)

    async def outcomes(self) -> AsyncIterator[tuple[EvaluationResult, Outcome | None]]:
        """Every result of the scope as it returns, with the outcome where the result settles its candidate."""
        async for result in self.pool.results(self.scope):
            pending = self.pending.get(result.candidate_id)
            if pending is not None and pending.request.request_id == result.request_id:
                yield result, await self._settle(result, pending)
            elif await self.recorder.result(result):  # asked for before a crash, and nobody has stored it yet
                late = self.pending.pop(result.candidate_id, None)
                self.settled[result.candidate_id] = result
                yield result, Outcome(result.candidate_id, tuple(late.origins) if late else (), result, fresh=True)

    async def _settle(self, result: EvaluationResult, pending: Pending) -> Outcome | None:
        await self.recorder.result(result)
        request = pending.request
        again = result.status is Status.INFRA_ERROR and QUARANTINED not in result.labels
        if again and pending.retries < INFRA_RETRIES:
            pending.retries += 1
            pending.request = self._request(request.candidate_id, request.source, request.origin, request.phase)
            pending.sent_at = time.monotonic()
            await self._submit(pending.request)
            return None
        if result.status is Status.VALID and result.phase is Phase.VALIDATE:
            pending.request = self._request(request.candidate_id, request.source, request.origin, Phase.PROFILE)
            pending.sent_at = time.monotonic()
            await self._submit(pending.request)
            return None
        del self.pending[result.candidate_id]
        self.settled[result.candidate_id] = result
        return Outcome(result.candidate_id, tuple(pending.origins), result, fresh=True)

    async def resend(self) -> int:
        """Enqueue again, under their own ids, requests that the pool has lost (Redis was wiped, or restarted without
        its last second): those that are neither queued nor leased nor being evaluated, twice in a row, so that a result
        on its way to us is not taken for a loss. Returns how many."""
        now = time.monotonic()
        if now - self.asked_at < ASK_EVERY_S:
            return 0
        self.asked_at = now
        waiting = {p.request.request_id: p for p in self.pending.values() if now - p.sent_at > ASK_AFTER_S}
        missing = await self.pool.missing(list(waiting)) if waiting else set()
        lost = [pending for name, pending in waiting.items() if name in missing and pending.missed]
        for name, pending in waiting.items():
            pending.missed = name in missing
        for pending in lost:
            pending.sent_at, pending.missed = now, False
            await self._send(pending.request)
        self.resent += len(lost)
        return len(lost)
