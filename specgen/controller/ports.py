"""What SpecController needs of the world, as structural types.

The controller imports neither the scheduler nor kombu nor SQLAlchemy; `workers.iteration` plugs in the real ones
(`specgen.llm`, `specgen.scheduler.pool`, `specgen.store`).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from specgen.types import (
    Delta,
    EvaluationRequest,
    EvaluationResult,
    EventKind,
    Origin,
    Phase,
    PoolSnapshot,
    Prompt,
    Trigger,
    Usage,
)


class Stream(Protocol):
    """One LLM generation being received. Leaving its context closes it at the server."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    @property
    def usage(self) -> Usage:
        """What is known so far; ``reported`` once the server said."""

    @property
    def finish_reason(self) -> str:
        """``stop``, ``length``, ``cancelled`` (closed by us), ``broken`` (the stream broke), or empty."""


class Model(Protocol):
    """A reasoning LLM. Both calls raise ModelAccessError or ModelUnavailable when entered."""

    @property
    def can_fork(self) -> bool:
        """Whether it can continue from a given reasoning prefix; without it an iteration does not speculate."""

    def main(self, prompt: Prompt, *, seed: int, max_tokens: int) -> AbstractAsyncContextManager[Stream]:
        """The main generation: reasons, then answers."""

    def fork(self, prompt: Prompt, prefix: str, *, seed: int, max_tokens: int) -> AbstractAsyncContextManager[Stream]:
        """A non-reasoning generation on P ⊕ π. Its content starts inside an opened ```python block."""


class Pool(Protocol):
    """The devices, as one job's iteration sees them."""

    async def open(self, scope: str) -> int:
        """Requests of the scope are taken from now on; claims of an earlier attempt are void."""

    async def submit(self, request: EvaluationRequest) -> bool:
        """Enqueue; False if the scope is closed already (nothing was enqueued)."""

    async def missing(self, request_ids: list[str]) -> set[str]:
        """Those that are neither queued, nor leased, nor being evaluated: answered a moment ago, or lost."""

    def results(self, scope: str) -> AsyncIterator[EvaluationResult]:
        """Results of the scope as they return, from the first on; ends only by cancellation."""

    async def claim(self, scope: str, *, max_k: int, at_least_one: bool) -> int:
        """K = max(1, min(C.val, C.prof)), capped by ``max_k``, reserved atomically over all jobs (0 if not
        ``at_least_one`` and nothing is free). Each claim must be given back by `release`, or by `close`."""

    async def release(self, scope: str, count: int = 1) -> None:
        """A fork stopped generating (its request is queued now, or it gave nothing)."""

    async def close(self, scope: str) -> int:
        """The boundary: refuse further requests of the scope, drop queued ones, abort running ones, give back
        its claims, and reallocate from the recorded maxima. Returns how many queued requests were dropped."""

    async def snapshot(self) -> PoolSnapshot:
        """For idle forks and progress."""


@dataclass(frozen=True)
class CandidateNote:
    """What the store knows of a source that a generation gave."""

    candidate_id: str
    is_new: bool  # False: this job has this candidate already
    outcome: EvaluationResult | None  # its final outcome, if it has one
    validated: bool = False  # no outcome yet, but a validation found it valid (before a crash or a boundary)


@dataclass(frozen=True)
class GenerationRecord:
    """How a generation went, for the accounting."""

    usage: Usage
    finish_reason: str
    reasoning: str
    content: str
    first_token_at: float | None  # unix seconds of the first delta
    longest_gap_s: float | None = None  # between two deltas


@dataclass(frozen=True)
class Unfinished:
    """A candidate of this iteration that an attempt which died left without an outcome."""

    candidate_id: str
    source: str
    origin: Origin
    validated: bool  # a validation found it valid: it is to be profiled
    request_id: str = ""  # the request that was not answered yet, if there is one,
    phase: Phase = Phase.VALIDATE  # and its phase


@dataclass(frozen=True)
class Answered:
    """A generation of this iteration that an attempt which died had received to its end: it is not paid again.
    ``prefix_key``: see `prefix_key`."""

    generation_id: int
    origin: Origin
    trigger_id: int | None
    seed: int
    prefix_chars: int
    prefix_key: str
    finish_reason: str
    reasoning: str
    content: str


@dataclass(frozen=True)
class Measured:
    """A final outcome of this iteration that such an attempt had stored."""

    candidate_id: str
    origin: Origin  # of the request that gave it
    result: EvaluationResult


@dataclass(frozen=True)
class Left:
    """What an attempt at this iteration that died left behind; each in the order in which it came."""

    answered: tuple[Answered, ...] = ()
    measured: tuple[Measured, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


def prefix_key(prefix: str) -> str:
    """Names a reasoning prefix: of two generations of one iteration with the same seed and kind, those with the same
    prefix were asked the same."""
    return hashlib.sha256(prefix.encode()).hexdigest()[:31]


class Recorder(Protocol):
    """The store, as one iteration writes to it. Every call carries the job's fencing token inside; StaleLease
    means that another worker owns the job now, and the iteration must stop without a further write."""

    async def trigger(self, trigger: Trigger, launched: int) -> int:
        """Record a trigger and how many forks it launched; returns its row id."""

    async def generation_started(self, origin: Origin, *, seed: int, prefix: str, trigger_id: int | None) -> int:
        """Record that a generation on P ⊕ prefix was asked for; returns its row id."""

    async def generation_finished(self, generation_id: int, record: GenerationRecord) -> None:
        """Record how it went."""

    async def candidate(self, source: str, origin: Origin, generation_id: int, trigger_id: int | None) -> CandidateNote:
        """Keep a source; says whether this job had it already, and with which final outcome."""

    async def left(self) -> Left:
        """What an earlier attempt at this iteration left; nothing where there was none."""

    async def request(self, request: EvaluationRequest) -> None:
        """Record a request before it is enqueued."""

    async def result(self, result: EvaluationResult) -> bool:
        """Store a result; True if it became the candidate's final outcome."""

    async def confirm(self) -> None:
        """Raises StaleLease if the job is another worker's by now."""


class Events(Protocol):
    """The live stream that terminals and dashboards read."""

    async def publish(self, kind: EventKind, /, **data: str | int | float | bool | None) -> None:
        """Append one event; losing it costs a line on a screen."""
