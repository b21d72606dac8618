"""What the store gives back: frozen dataclasses. Times are aware UTC datetimes.

Not here: evaluation results and job specs, which are `specgen.types` already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from specgen.types import (
    EvaluationResult,
    IterationReason,
    JobSpec,
    JobState,
    Json,
    Origin,
    Phase,
    Prompt,
    TriggerClass,
    Usage,
    Wish,
)


@dataclass(frozen=True)
class JobRecord:
    """A row of ``jobs``."""

    id: str
    spec: JobSpec
    state: JobState
    reason: str  # one sentence on why it is in this state; may be empty
    wish: Wish  # of the user, not fulfilled yet
    priority: int  # as it is now; ``spec.priority`` is that of the submission
    search_state: Json  # to go on from, after the latest select() or update()
    active_s: float  # wall clock in iterations, over all attempts; pauses do not count
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    fencing_token: int
    lease_owner: str | None
    lease_expires_at: datetime | None


@dataclass(frozen=True)
class Control:
    """What the user may change while the job runs."""

    wish: Wish
    priority: int


@dataclass(frozen=True)
class IterationRecord:
    """A row of ``iterations``. ``search_state`` is what to load on resume: after update() where the iteration is
    closed, after select() where it is open."""

    job_id: str
    iteration: int
    step: Json
    prompt: Prompt
    search_state: Json
    opened_at: datetime
    closed_at: datetime | None
    reason: IterationReason | None
    chosen_candidate: str | None
    threshold: float | None

    @property
    def closed(self) -> bool:
        """True once its boundary is committed."""
        return self.closed_at is not None


@dataclass(frozen=True)
class CandidateRecord:
    """A row of ``candidates``: the first generation that gave this source. ``is_new`` is False for a duplicate."""

    job_id: str
    candidate_id: str
    iteration: int
    source: str
    origin: Origin
    generation_id: int | None
    trigger_id: int | None
    created_at: datetime
    is_new: bool = False


@dataclass(frozen=True)
class EvaluatedRecord:
    """A candidate with its final outcome. ``iteration`` and ``origin`` are those of the request that gave it."""

    candidate: CandidateRecord
    iteration: int
    origin: Origin
    result: EvaluationResult


@dataclass(frozen=True)
class RequestRecord:
    """A row of ``requests``. ``status`` is ``queued``, ``dropped`` (its scope closed before a device took it) or a
    value of `Status`."""

    request_id: str
    job_id: str
    iteration: int
    candidate_id: str
    phase: Phase
    origin: Origin
    status: str
    enqueued_at: datetime


@dataclass(frozen=True)
class UnfinishedRecord:
    """A candidate without an outcome; ``request`` is the one that was not answered yet, if there is one."""

    candidate: CandidateRecord
    validated: bool
    request: RequestRecord | None


@dataclass(frozen=True)
class TriggerRecord:
    """A row of ``triggers``. ``position`` in characters of the reasoning trace."""

    id: int
    iteration: int
    kind: TriggerClass
    position: int
    text: str
    launched: int
    fired_at: datetime


@dataclass(frozen=True)
class GenerationRow:
    """A row of ``generations``."""

    id: int
    iteration: int
    kind: Origin
    trigger_id: int | None
    seed: int
    model: str
    prefix_chars: int
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime | None
    finish_reason: str
    usage: Usage
    reasoning: str
    content: str
    row_key: str = ""


@dataclass(frozen=True)
class BestKernel:
    """The job's answer: the fastest valid kernel of all iterations."""

    candidate_id: str
    source: str
    speedup: float
    iteration: int
    origin: Origin


@dataclass(frozen=True)
class SideCall:
    """A memoised reply of an LLM role."""

    key: str
    reply: Json
    usage: Usage


@dataclass(frozen=True)
class TokenTotals:
    """Tokens of a job, by what spent them."""

    main: Usage
    forks: Usage
    side: Usage

    @property
    def total(self) -> int:
        """Prompt and completion tokens of everything; what a token budget is compared with."""
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in (self.main, self.forks, self.side))


@dataclass(frozen=True)
class SchedulerDecision:
    """One reallocation (Algorithm 2). ``max_validate`` and ``max_profile`` are L_v and L_p."""

    scope: str
    policy: str
    devices: int
    validators: int
    profilers: int
    max_validate: int
    max_profile: int
    moved: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class JobSummary:
    """A job at a glance."""

    job: JobRecord
    iterations_closed: int
    early_terminations: int
    candidates: int
    profiled: int  # entries of H
    best_speedup: float | None
    tokens: TokenTotals
    cost: float | None  # by the price of the LLM profile
    elapsed_s: float  # from the first start to the end, or to now
    statuses: dict[str, int] = field(default_factory=dict)  # final outcomes by status
