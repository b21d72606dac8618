"""The values that cross module boundaries.

Frozen pydantic models at the edges (queue payloads, evaluation results, job specs), frozen dataclasses inside one
process. Not here: behaviour, I/O, settings. Words are those of docs/architecture.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


class Frozen(BaseModel):
    """Immutable, strict about unknown fields, JSON in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ------------------------------------------------------------------------------------------------ candidates


def normalise_source(source: str) -> str:
    """LF line ends, no trailing blanks: what decides whether two candidates are the same."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def source_id(source: str) -> str:
    """The candidate's name: sha256 (64 hex digits) of its normalised source."""
    return hashlib.sha256(normalise_source(source).encode()).hexdigest()


class Origin(StrEnum):
    """Which generation wrote a candidate."""

    MAIN = "main"
    FORK = "fork"


class Status(StrEnum):
    """What became of an evaluation. Three kinds that are never mixed: see :func:`Status.kind`."""

    NO_CODE = "no_code"  # the answer holds no code block
    NO_MODELNEW = "no_modelnew"  # code, but no class ModelNew
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    LOAD_ERROR = "load_error"  # the file or its extension raises on import or construction
    RUNTIME_ERROR = "runtime_error"
    DEVICE_FAULT = "device_fault"  # a signal (segmentation fault) or an illegal access on the device
    HANG = "hang"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_VALUE = "wrong_value"
    NOT_FINITE = "not_finite"
    REJECTED = "rejected"  # integrity: a rule and a number say why
    VALID = "valid"
    REFERENCE_ERROR = "reference_error"  # the problem's fault
    INFRA_ERROR = "infra_error"  # ours; retried
    PROFILER_UNAVAILABLE = "profiler_unavailable"  # ours; timings stand
    ABORTED = "aborted"  # the scope closed

    @property
    def kind(self) -> Literal["candidate", "problem", "infrastructure"]:
        """Whose business the status is."""
        if self is Status.REFERENCE_ERROR:
            return "problem"
        if self in (Status.INFRA_ERROR, Status.PROFILER_UNAVAILABLE, Status.ABORTED):
            return "infrastructure"
        return "candidate"

    @property
    def final(self) -> bool:
        """False where a later request reopens the candidate (aborted, infra_error)."""
        return self not in (Status.INFRA_ERROR, Status.ABORTED)


# ------------------------------------------------------------------------------------------------ evaluation


class Phase(StrEnum):
    """The two kinds of request; each has its queue."""

    VALIDATE = "validate"
    PROFILE = "profile"


class ProblemSpec(Frozen):
    """A problem as the evaluator needs it. ``source`` is the whole KernelBench-format file."""

    name: str
    source: str
    backend: Literal["cpu", "cuda"] = "cpu"
    tolerance: float = Field(default=1e-4, gt=0)  # absolute and relative, as KernelBench uses it
    seed: int = 42
    origin: str = ""  # where the file comes from, such as a KernelBench commit and path

    @property
    def sha256(self) -> str:
        """sha256 of the file's text: identifies the reference in results and caches."""
        return hashlib.sha256(self.source.encode()).hexdigest()


class EvaluationRequest(Frozen):
    """One request to a device: a candidate, its problem and its budget. Travels as a Celery task's payload."""

    request_id: str
    job_id: str
    iteration: int
    candidate_id: str
    phase: Phase
    origin: Origin
    source: str
    problem: ProblemSpec
    label: str = "cpu"  # what the device must be labelled with: its backend, or more, such as h200
    priority: int = Field(default=0, ge=-9, le=9)  # of the job: higher goes first
    time_budget_s: float = 120.0
    warmups: int = 10
    timed_runs: int = 40
    enqueued_at: float = 0.0  # unix seconds

    @property
    def scope(self) -> str:
        """``<job>/<iteration>``: what a boundary closes."""
        return f"{self.job_id}/{self.iteration}"


class Timing(Frozen):
    """Run times in milliseconds over ``runs`` timed runs."""

    mean_ms: float
    std_ms: float
    min_ms: float
    median_ms: float
    runs: int


class Profile(Frozen):
    """The timed runs and what the hardware counters gave; ``None`` where this machine has no such counter."""

    candidate: Timing
    reference: Timing
    achieved_gb_s: float | None = None  # bytes of inputs and outputs moved once, per mean candidate time
    achieved_gflop_s: float | None = None  # the reference's arithmetic, per mean candidate time
    ceiling_gb_s: float | None = None  # measured on this device
    ceiling_gflop_s: float | None = None
    roofline: Literal["memory", "compute", "latency", "unknown"] = "unknown"  # what bounds it; latency: neither
    counters: dict[str, float | None] = Field(default_factory=dict)


QUARANTINED = "quarantined"  # label of a result that nobody should ask for again: it cost several workers their life


class EvaluationResult(Frozen):
    """The outcome of one request. The validator ties the status to the fields that may exist."""

    request_id: str
    candidate_id: str
    phase: Phase
    status: Status
    error: str = ""  # feedback for the LLM: first errors with file and line, then the tail, capped
    rule: str = ""  # REJECTED only: which integrity rule, and its number
    speedup: float | None = None  # mean(reference) / mean(candidate)
    speedup_std: float | None = None
    profile: Profile | None = None
    labels: tuple[str, ...] = ()  # such as "tf32", "uses_library"
    max_abs_error: float | None = None
    build_route: Literal["facade", "stock", "cached", "none"] = "none"
    build_s: float = 0.0
    device_s: float = 0.0  # how long the device was held
    queue_s: float = 0.0  # enqueued -> started
    worker: str = ""
    device: str = ""
    finished_at: float = 0.0  # unix seconds
    environment: dict[str, str] = Field(default_factory=dict)  # torch, compiler, cpu/gpu, sandbox, tolerance rule

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        valid = self.status in (Status.VALID, Status.PROFILER_UNAVAILABLE)
        if valid and (self.speedup is None or not self.speedup > 0):
            raise ValueError(f"a {self.status} result needs a positive speedup")
        if not valid and (self.speedup is not None or self.profile is not None):
            raise ValueError(f"a {self.status} result has neither speedup nor profile")
        if (self.status is Status.REJECTED) != bool(self.rule):
            raise ValueError("a rule is given exactly for rejected results")
        if self.profile is not None and self.phase is not Phase.PROFILE:
            raise ValueError("only profiling gives a profile")
        return self


# ------------------------------------------------------------------------------------------------ pool


@dataclass(frozen=True)
class PoolSnapshot:
    """The pool as it is now, over all jobs."""

    devices: int
    validators: int
    profilers: int
    busy: int
    validate_queue: int
    profile_queue: int
    claims: int  # forks still generating, all jobs


# ------------------------------------------------------------------------------------------------ LLM


@dataclass(frozen=True)
class Prompt:
    """What a main generation starts from: P in Algorithm 1. ``template_hash`` identifies the Jinja2 sources."""

    system: str
    user: str
    template_hash: str = ""


@dataclass(frozen=True)
class Delta:
    """A piece of a stream."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclass(frozen=True)
class Usage:
    """Tokens of one generation. ``reported`` is False where they were counted from what was received
    (a cancelled stream reports none)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, served from the prefix cache
    reasoning_tokens: int = 0
    completion_tokens: int = 0  # all generated tokens, reasoning included
    reported: bool = False

    def __add__(self, other: Usage) -> Usage:
        """Of several generations together."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.completion_tokens + other.completion_tokens,
            self.reported and other.reported,
        )


class TriggerClass(StrEnum):
    """Why a fork was launched: the four classes of §6.1.1, an idle device, or a plain generation in a fork's place."""

    DECISION = "decision"
    FENCE = "fence"
    KERNEL_BODY = "kernel_body"
    PHRASE = "phrase"
    IDLE = "idle"
    PLAIN = "plain"  # the server cannot fork: a whole generation of its own, from an empty prefix


@dataclass(frozen=True)
class Trigger:
    """A place in the reasoning trace. ``position`` counts characters from the trace's start to the trigger's end."""

    kind: TriggerClass
    position: int
    text: str = field(default="", compare=True)  # the matched words, at most 200 characters


# ------------------------------------------------------------------------------------------------ jobs


class JobState(StrEnum):
    """A job's life: queued -> running -> a state in which nothing more happens by itself."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"  # by the user, at a boundary; resumable
    STOPPED = "stopped"  # by the user, at once (Ctrl-C); resumable, its open iteration runs again
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by the user, for good

    @property
    def terminal(self) -> bool:
        """True where nothing more happens by itself."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Wish(StrEnum):
    """What the user asked of a job that somebody works on."""

    NONE = ""
    PAUSE = "pause"  # at the next boundary
    STOP = "stop"  # at once, to be resumed
    CANCEL = "cancel"  # at once, for good


class JobSpec(Frozen):
    """What a user submits. Keys are not here: ``llm_profile`` names settings that only iteration workers hold."""

    problem: ProblemSpec
    llm_profile: str = "default"
    model: str = ""
    search: str = "refine"  # a name, or module:Class
    termination: str = "historical_mean"  # a name, or module:callable
    iterations: int = Field(default=10, ge=1)
    lanes: int = Field(default=1, ge=1)  # main generations of this job at a time; the search must allow it
    speculation: bool = True
    seed: int = 0
    device: str = ""  # label of the devices that may serve it, such as h200; empty: any of the problem's backend
    priority: int = Field(default=0, ge=-9, le=9)  # at submission; `specgen priority` changes it
    max_tokens: int = Field(default=32_768, ge=16)
    token_budget: int | None = Field(default=None, ge=1)  # the job ends cleanly once it has used that many tokens
    time_budget_s: float | None = Field(default=None, gt=0)  # of wall clock in iterations; pauses do not count
    cost_budget: float | None = Field(default=None, gt=0)  # by the price of the LLM profile, in its unit
    target_speedup: float | None = Field(default=None, gt=0)  # the job ends once a kernel is that fast
    plateau: int | None = Field(default=None, ge=1)  # it ends after so many iterations without a faster kernel
    prompt_dir: str = ""  # the user's templates, looked up first
    policy: dict[str, str | int | float | bool] = Field(default_factory=dict)  # overrides of settings.ForkPolicy

    @property
    def label(self) -> str:
        """What a device must be labelled with to serve this job."""
        return self.device or self.problem.backend


class IterationReason(StrEnum):
    """Why an iteration ended."""

    EARLY = "early_termination"
    MAIN = "main_outcome"
    NO_CODE = "no_code"
    MODEL_FAILED = "model_failed"
    BUDGET = "budget"  # a budget of the job was spent, or its target reached, in the middle of it


class EventKind(StrEnum):
    """What a job's event stream tells (live only: the truth is in SQL)."""

    ITERATION = "iteration"  # started: prompt composed, main generation begins
    PROGRESS = "progress"  # reasoning characters so far, rate, pool snapshot; about twice a second
    TRIGGER = "trigger"
    FORK = "fork"  # a fork ended: with a candidate or without
    RESULT = "result"  # a validation or a profile came back
    BOUNDARY = "boundary"
    WAITING = "waiting"  # Redis, the database or the LLM is away: tried again
    JOB = "job"  # the job changed its state


class Event(Frozen):
    """One line of a job's event stream. ``data`` holds a few scalars named by the kind's publisher."""

    kind: EventKind
    job_id: str
    iteration: int
    at: float  # unix seconds
    data: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
