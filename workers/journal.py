"""The store and the event stream, as SpecController sees them: the real `Recorder` and `Events` of one iteration.

Database calls are synchronous and run in a thread each; every write carries the iteration's fencing token.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from specgen.client import events_key
from specgen.controller.cancelling import patiently
from specgen.controller.ports import (
    Answered,
    CandidateNote,
    GenerationRecord,
    Left,
    Measured,
    Unfinished,
    prefix_key,
)
from specgen.crash_points import crash_point
from specgen.settings import Price
from specgen.store import GenerationRow, Store, UnfinishedRecord
from specgen.types import EvaluationRequest, EvaluationResult, Event, EventKind, Origin, Phase, Trigger

LEASE_S = 15.0  # of an iteration worker on its job; renewed four times as often
NO_ANSWER = ("cancelled", "abandoned", "broken")  # by us, by our end, or by the server's
EVENTS_KEPT = 20_000  # entries of a job's stream
EVENTS_EXPIRE_S = 7 * 86_400

log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


async def stored(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """A call of the store, in a thread, for as long as it takes to reach the database. It may run twice, its first
    commit unacknowledged: what it is called with makes that harmless (ids and row keys are made by the caller)."""
    return await patiently(lambda: asyncio.to_thread(call, *args, **kwargs))


@dataclass
class Journal:
    """`Recorder` over the store, for one iteration of one job."""

    store: Store
    job_id: str
    iteration: int
    token: int  # the fencing token of this iteration's lease
    model: str
    template_hash: str
    price: Price | None = None

    async def trigger(self, trigger: Trigger, launched: int) -> int:
        """A row of ``triggers``. One that fires again after a crash, at the same place, is the same row."""
        fired = f"{self.job_id}/{self.iteration}/{trigger.kind}/{trigger.position}/{launched}/{trigger.text}"
        key = hashlib.sha256(fired.encode()).hexdigest()
        return await stored(
            self.store.add_trigger, self.job_id, self.iteration, trigger, launched, token=self.token, key=key
        )

    async def generation_started(self, origin: Origin, *, seed: int, prefix: str, trigger_id: int | None) -> int:
        """A row of ``generations``, whose key begins with the prefix's."""
        return await stored(
            self.store.start_generation,
            self.job_id,
            self.iteration,
            kind=origin,
            seed=seed,
            prefix_chars=len(prefix),
            trigger_id=trigger_id,
            model=self.model,
            template_hash=self.template_hash,
            token=self.token,
            key=f"{prefix_key(prefix)}-{uuid.uuid4().hex}",
        )

    async def generation_finished(self, generation_id: int, record: GenerationRecord) -> None:
        """Tokens, times and text of a generation."""
        await stored(
            self.store.finish_generation,
            self.job_id,
            generation_id,
            usage=record.usage,
            finish_reason=record.finish_reason,
            reasoning=record.reasoning,
            content=record.content,
            first_token_at=record.first_token_at,
            longest_gap_s=record.longest_gap_s,
            cost=self.price.cost(record.usage) if self.price else None,
            token=self.token,
        )

    async def candidate(self, source: str, origin: Origin, generation_id: int, trigger_id: int | None) -> CandidateNote:
        """The candidate's row, with the outcome where a former request already gave it one."""
        record = await stored(
            self.store.add_candidate,
            self.job_id,
            self.iteration,
            source,
            origin=origin,
            generation_id=generation_id,
            trigger_id=trigger_id,
            token=self.token,
        )
        if record.is_new:
            return CandidateNote(record.candidate_id, True, None)
        outcome = await stored(self.store.outcome_of, self.job_id, record.candidate_id)
        validated = await stored(self.store.validation_of, self.job_id, record.candidate_id)
        return CandidateNote(record.candidate_id, False, outcome, validated is not None)

    async def left(self) -> Left:
        """Answers, outcomes and unfinished candidates of this iteration: nothing where this attempt is the first."""
        rows = await stored(self.store.generations, self.job_id, self.iteration)
        if not rows:
            return Left()
        measured = await stored(self.store.evaluated, self.job_id, self.iteration)
        records = await stored(self.store.unfinished, self.job_id, self.iteration)
        return Left(
            tuple(_answered(row) for row in rows if row.ended_at and row.finish_reason not in NO_ANSWER),
            tuple(Measured(it.candidate.candidate_id, it.origin, it.result) for it in measured),
            tuple(_unfinished(record) for record in records),
        )

    async def request(self, request: EvaluationRequest) -> None:
        """A row of ``requests``."""
        await stored(self.store.add_request, request, token=self.token)

    async def confirm(self) -> None:
        """The lease, renewed: raises StaleLease where it is lost."""
        await stored(self.store.renew_lease, self.job_id, self.token, LEASE_S)

    async def result(self, result: EvaluationResult) -> bool:
        """The request's answer; True if it is the candidate's final outcome."""
        crash_point("result.storing")
        try:
            final = bool(await stored(self.store.record_result, result, self.job_id, token=self.token))
            crash_point("result.stored")
            return final
        except ValueError:  # no such request: not this job's, or never stored
            return False


def _answered(row: GenerationRow) -> Answered:
    return Answered(
        row.id, row.kind, row.trigger_id, row.seed, row.prefix_chars, row.row_key.partition("-")[0],
        row.finish_reason, row.reasoning, row.content,
    )  # fmt: skip


def _unfinished(record: UnfinishedRecord) -> Unfinished:
    return Unfinished(
        candidate_id=record.candidate.candidate_id,
        source=record.candidate.source,
        origin=record.candidate.origin,
        validated=record.validated,
        request_id=record.request.request_id if record.request else "",
        phase=record.request.phase if record.request else Phase.VALIDATE,
    )


@dataclass
class Stream:
    """`Events` over a Redis stream, bounded and expiring."""

    redis: Redis
    prefix: str
    job_id: str
    iteration: int = 0

    async def publish(self, kind: EventKind, /, **data: str | int | float | bool | None) -> None:
        """One entry."""
        key = events_key(self.prefix, self.job_id)
        event = Event(kind=kind, job_id=self.job_id, iteration=self.iteration, at=time.time(), data=data)
        try:
            async with self.redis.pipeline(transaction=False) as pipe:
                pipe.xadd(key, {"event": event.model_dump_json()}, maxlen=EVENTS_KEPT, approximate=True)
                pipe.expire(key, EVENTS_EXPIRE_S)
                await pipe.execute()
        except RedisError as exc:
            log.warning("event_lost", job_id=self.job_id, kind=kind.value, error=str(exc))
