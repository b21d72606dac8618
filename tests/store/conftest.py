"""The same store tests on both databases, and a job to work with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specgen.store import Store, migrate
from specgen.types import (
    EvaluationRequest,
    EvaluationResult,
    IterationReason,
    JobSpec,
    JobState,
    Origin,
    Phase,
    ProblemSpec,
    Profile,
    Prompt,
    Status,
    Timing,
)

PROBLEM = ProblemSpec(name="T4 diagonal", source="class Model: ...\n")
SPEC = JobSpec(problem=PROBLEM, model="synthetic", iterations=5, policy={"outstanding": 3})
PROMPT = Prompt("You write kernels.", "Write one.", "ab" * 32)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a schema (for SQLite: no file yet)."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'specgen.db'}"


@pytest.fixture
def url(empty_url: str) -> str:
    """A migrated database."""
    migrate(empty_url)
    return empty_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield opened
    opened.close()


def timing(mean: float) -> Timing:
    return Timing(mean_ms=mean, std_ms=0.1, min_ms=mean, median_ms=mean, runs=40)


@dataclass
class Running:
    """A job whose lease we hold, with the iteration at hand."""

    store: Store
    id: str
    token: int
    iteration: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def open(self, iteration: int) -> None:
        self.iteration = iteration
        self.store.open_iteration(
            self.id, iteration, step={"kind": "seed"}, prompt=PROMPT, search_state={"at": iteration}, token=self.token
        )

    def candidate(self, source: str, origin: Origin = Origin.FORK, trigger_id: int | None = None) -> str:
        return self.store.add_candidate(
            self.id, self.iteration, source, origin=origin, trigger_id=trigger_id, token=self.token
        ).candidate_id

    def request(self, candidate_id: str, phase: Phase, origin: Origin = Origin.FORK) -> EvaluationRequest:
        request = EvaluationRequest(
            request_id=f"{self.id}-{next(self.numbers)}",
            job_id=self.id,
            iteration=self.iteration,
            candidate_id=candidate_id,
            phase=phase,
            origin=origin,
            source="",
            problem=PROBLEM,
        )
        self.store.add_request(request, token=self.token)
        return request

    def result(self, request: EvaluationRequest, status: Status, speedup: float | None = None) -> EvaluationResult:
        profiled = request.phase is Phase.PROFILE and speedup is not None
        return EvaluationResult(
            request_id=request.request_id,
            candidate_id=request.candidate_id,
            phase=request.phase,
            status=status,
            error="" if speedup else "line 3: expected ';'",
            rule="no own kernel: 0" if status is Status.REJECTED else "",
            speedup=speedup,
            speedup_std=None if speedup is None else 0.01,
            profile=Profile(candidate=timing(1.0), reference=timing(speedup or 1), counters={"ipc": None})
            if profiled
            else None,
            labels=("tf32",),
            build_route="facade",
            build_s=0.5,
            device_s=1.25,
            queue_s=0.125,
            worker="w1",
            device="cpu:0",
            finished_at=1_796_000_000.25,
            environment={"torch": "2.13"},
        )

    def evaluate(
        self, source: str, status: Status, speedup: float | None = None, phase: Phase = Phase.VALIDATE, **of: object
    ) -> bool:
        """A new candidate, one request, one result; True if it was final."""
        trigger_id = of.get("trigger_id")
        candidate = self.candidate(source, trigger_id=trigger_id if isinstance(trigger_id, int) else None)
        result = self.result(self.request(candidate, phase), status, speedup)
        return self.store.record_result(result, self.id, token=self.token)

    def profile(self, source: str, speedup: float, trigger_id: int | None = None) -> bool:
        """A new candidate, validated and profiled; True if the profile was the final outcome."""
        assert not self.evaluate(source, Status.VALID, speedup, trigger_id=trigger_id)
        return self.evaluate(source, Status.VALID, speedup, Phase.PROFILE)

    def close(self, reason: IterationReason = IterationReason.MAIN, chosen: str | None = None) -> bool:
        early = reason is IterationReason.EARLY
        return self.store.close_iteration(
            self.id,
            self.iteration,
            reason=reason,
            chosen_candidate=chosen,
            threshold=0.5 if early else None,
            search_state={"after": self.iteration},
            token=self.token,
        )


def running(store: Store, spec: JobSpec = SPEC) -> Running:
    job_id = store.create_job(spec)
    token = store.acquire_lease(job_id, "worker-a", ttl_s=60)
    assert token is not None
    store.set_state(job_id, JobState.RUNNING, "", token)
    job = Running(store, job_id, token)
    job.open(1)
    return job


@pytest.fixture
def job(store: Store) -> Running:
    """A running job with iteration 1 open."""
    return running(store)
