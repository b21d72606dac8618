"""A scripted LLM and an in-memory pool and store for SpecController's own tests: the LLM costs money, and the order of
events must be the test's. The real pool, store and server are in tests/acceptance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from specgen.controller import termination
from specgen.controller.evaluations import Evaluations
from specgen.controller.loop import Iteration, IterationPlan
from specgen.controller.ports import CandidateNote, GenerationRecord, Left
from specgen.errors import ModelUnavailable, StaleLease
from specgen.settings import EvaluationPolicy, ForkPolicy
from specgen.types import (
    Delta,
    EvaluationRequest,
    EvaluationResult,
    EventKind,
    Origin,
    Phase,
    PoolSnapshot,
    ProblemSpec,
    Profile,
    Prompt,
    Status,
    Timing,
    Trigger,
    Usage,
    source_id,
)

TIMING = Timing(mean_ms=1.0, std_ms=0.1, min_ms=0.9, median_ms=1.0, runs=40)


def kernel(name: str, speedup: float | str) -> str:
    """A candidate whose fate the scripted pool reads from its text: a speedup, or a status."""
    return f"class ModelNew:  # {name}\n    fate = {speedup!r}\n"


def answer(source: str) -> str:
    return f"Here it is.\n```python\n{source}```\n"


@dataclass
class ScriptedStream:
    deltas: list[Delta | asyncio.Event | BaseException]
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    closed: bool = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for step in self.deltas:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, BaseException):
                self.finish_reason = "broken"
                return
            else:
                await asyncio.sleep(0)
                yield step
        self.finish_reason = "stop"


@dataclass
class ScriptedModel:
    reasoning: list[Delta | asyncio.Event | BaseException]
    forks: Callable[[str, int], list[Delta | asyncio.Event | BaseException]] = lambda _prefix, _seed: []
    can_fork: bool = True
    prefixes: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)

    @asynccontextmanager
    async def _open(self, deltas: list[Any]) -> AsyncIterator[ScriptedStream]:
        if deltas and isinstance(deltas[0], ModelUnavailable):
            raise deltas[0]
        stream = ScriptedStream(deltas)
        self.streams.append(stream)
        try:
            yield stream
        finally:
            stream.closed = True
            stream.finish_reason = stream.finish_reason or "cancelled"

    def main(self, prompt: Prompt, *, seed: int, max_tokens: int) -> Any:
        return self._open(self.reasoning)

    def fork(self, prompt: Prompt, prefix: str, *, seed: int, max_tokens: int) -> Any:
        self.prefixes.append(prefix)
        self.seeds.append(seed)
        return self._open(self.forks(prefix, seed))


@dataclass
class MemoryPool:
    """Devices that answer at once (or when ``hold`` is set), by the fate that a kernel's text names."""

    free: int = 4
    hold: asyncio.Event | None = None
    infra_errors: int = 0  # that many results are our own fault first
    claims: int = 0
    closed: list[str] = field(default_factory=list)
    submitted: list[EvaluationRequest] = field(default_factory=list)
    queue: asyncio.Queue[EvaluationResult] = field(default_factory=asyncio.Queue)

    async def open(self, scope: str) -> int:
        self.closed = [other for other in self.closed if other != scope]
        return 0

    async def missing(self, request_ids: list[str]) -> set[str]:
        return set(request_ids)

    async def submit(self, request: EvaluationRequest) -> bool:
        if request.scope in self.closed:
            return False
        self.submitted.append(request)
        if self.hold is None:
            self.queue.put_nowait(self.judge(request))
        return True

    def judge(self, request: EvaluationRequest) -> EvaluationResult:
        base: dict[str, Any] = {
            "request_id": request.request_id, "candidate_id": request.candidate_id, "phase": request.phase,
        }  # fmt: skip
        if self.infra_errors:
            self.infra_errors -= 1
            return EvaluationResult(**base, status=Status.INFRA_ERROR, error="a worker died")
        fate = eval(request.source.split("fate = ")[1])
        if isinstance(fate, str):
            return EvaluationResult(**base, status=Status(fate), error="why")
        profile = Profile(candidate=TIMING, reference=TIMING) if request.phase is Phase.PROFILE else None
        return EvaluationResult(**base, status=Status.VALID, speedup=fate, profile=profile)

    async def results(self, scope: str) -> AsyncIterator[EvaluationResult]:
        while True:
            yield await self.queue.get()

    async def claim(self, scope: str, *, max_k: int, at_least_one: bool) -> int:
        k = min(max_k, max(1 if at_least_one else 0, self.free - self.claims))
        self.claims += k
        return k

    async def release(self, scope: str, count: int = 1) -> None:
        self.claims -= count

    async def close(self, scope: str) -> int:
        self.closed.append(scope)
        self.claims = 0
        return 0

    async def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(self.free, 1, 1, 0, 0, 0, self.claims)


@dataclass
class MemoryRecorder:
    triggers: list[tuple[Trigger, int]] = field(default_factory=list)
    finished: dict[int, GenerationRecord] = field(default_factory=dict)
    started: list[tuple[Origin, int]] = field(default_factory=list)
    sources: dict[str, EvaluationResult | None] = field(default_factory=dict)
    lost: bool = False
    behind: Left = field(default_factory=Left)  # by an attempt that died

    async def trigger(self, trigger: Trigger, launched: int) -> int:
        self.triggers.append((trigger, launched))
        return len(self.triggers)

    async def generation_started(self, origin: Origin, *, seed: int, prefix: str, trigger_id: int | None) -> int:
        self.started.append((origin, len(prefix)))
        return len(self.started)

    async def generation_finished(self, generation_id: int, record: GenerationRecord) -> None:
        self.finished[generation_id] = record

    async def candidate(self, source: str, origin: Origin, generation_id: int, trigger_id: int | None) -> CandidateNote:
        name = source_id(source)
        known = name in self.sources
        outcome = self.sources.setdefault(name, None)
        return CandidateNote(name, not known, outcome)

    async def left(self) -> Left:
        return self.behind

    async def request(self, request: EvaluationRequest) -> None:
        return None

    async def confirm(self) -> None:
        if self.lost:
            raise StaleLease("another worker has the job")

    async def result(self, result: EvaluationResult) -> bool:
        if result.phase is Phase.PROFILE or result.status is not Status.VALID:
            self.sources[result.candidate_id] = result
        return True


class NoEvents:
    async def publish(self, kind: EventKind, /, **data: Any) -> None:
        return None


def iteration(
    model: ScriptedModel,
    pool: MemoryPool,
    *,
    recorder: MemoryRecorder | None = None,
    history: tuple[float, ...] = (0.0,),
    criterion: str = "historical_mean",
    policy: ForkPolicy | None = None,
    speculation: bool = True,
    loop_chars: int = 0,
) -> Iteration:
    recorder = recorder or MemoryRecorder()
    plan = IterationPlan(
        prompt=Prompt("s", "u"),
        history=history,
        criterion=termination.resolve(criterion),
        policy=policy or ForkPolicy(idle_after_s=1e9),
        seed=7,
        max_tokens=1000,
        speculation=speculation,
        loop_chars=loop_chars,
    )
    evaluations = Evaluations("j", 0, ProblemSpec(name="p", source="x"), EvaluationPolicy(), pool, recorder)
    return Iteration(plan, model, pool, evaluations, recorder, NoEvents())
