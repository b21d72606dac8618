"""A job whose worker dies where the test wants it to: the real lanes, controller and store, with a scripted LLM and
devices in memory (the one costs money, the others are not here). Nothing waits for time.

The LLM is a function of what it is asked. It reasons on once its forks are settled: the order of events is the
script's, and two runs of a job can be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import text

from specgen.controller.budgets import Spent
from specgen.llm.openai_compatible import Completion
from specgen.settings import ModelProfile, Settings
from specgen.store import Store
from specgen.types import (
    Delta,
    EvaluationRequest,
    EvaluationResult,
    EventKind,
    JobSpec,
    JobState,
    Phase,
    PoolSnapshot,
    ProblemSpec,
    Profile,
    Prompt,
    Status,
    Usage,
)
from tests.controller.world import TIMING, answer, kernel
from tests.search.conftest import example
from workers.lanes import Lanes, Outside

PROBLEM = ProblemSpec(name="T", source="class Model: ...\n")
T = TypeVar("T")
FAILURES = ("compile_error", "runtime_error", "wrong_value")


class Killed(BaseException):
    """The worker is dead: it does nothing any more."""


def draw(*of: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(of).encode()).digest()[:6], "big")


@dataclass
class Stream:
    deltas: AsyncIterator[Delta]
    done: Callable[[], None]
    finish_reason: str = ""
    usage: Usage = field(default_factory=lambda: Usage(10, 0, 5, 20, reported=True))

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in self.deltas:
            yield delta
        self.finish_reason = "stop"
        self.done()


@dataclass
class Devices:
    """They outlive the worker, as what Redis keeps of a scope does: its results are there from the first on."""

    results: dict[str, list[EvaluationResult]] = field(default_factory=dict)
    judged: list[tuple[str, str]] = field(default_factory=list)  # (candidate, phase)
    known: set[str] = field(default_factory=set)  # request ids

    def copy(self) -> Devices:
        return Devices({scope: list(of) for scope, of in self.results.items()}, list(self.judged), set(self.known))

    def judge(self, request: EvaluationRequest) -> None:
        if request.request_id in self.known:
            return
        self.known.add(request.request_id)
        self.judged.append((request.candidate_id, request.phase.value))
        fate = eval(request.source.split("fate = ")[1])
        base: dict[str, Any] = {"request_id": request.request_id, "candidate_id": request.candidate_id}
        if isinstance(fate, str):
            result = EvaluationResult(**base, phase=request.phase, status=Status(fate), error="line 3: why")
        else:
            profile = Profile(candidate=TIMING, reference=TIMING, roofline="memory")
            result = EvaluationResult(
                **base, phase=request.phase, status=Status.VALID, speedup=fate,
                profile=profile if request.phase is Phase.PROFILE else None,
            )  # fmt: skip
        self.results.setdefault(request.scope, []).append(result)


@dataclass
class Worker:
    """One attempt: what it asks of the LLM and of the devices. ``dead``: every such call raises."""

    devices: Devices
    sections: int = 2  # of a reasoning; each ends with a trigger
    seed: int = 0
    junk: bool = False  # roles answer once what fits no schema
    asked: list[tuple[object, ...]] = field(default_factory=list)
    connected: list[ModelProfile] = field(default_factory=list)
    dead: bool = False
    lanes: Lanes | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def copy(self) -> Worker:
        """As it is now."""
        return replace(self, devices=self.devices.copy(), asked=list(self.asked))

    def successor(self) -> Worker:
        """Who goes on after its death, with the same devices."""
        return Worker(self.devices.copy(), self.sections, self.seed, self.junk)

    def alive(self) -> None:
        if self.dead:
            raise Killed

    # -------------------------------------------------------------------------------------- the LLM

    can_fork = True

    @asynccontextmanager
    async def main(self, prompt: Prompt, *, seed: int, max_tokens: int) -> AsyncIterator[Stream]:
        yield self._stream(("main", seed, 0), self._reasoning(prompt, seed))

    @asynccontextmanager
    async def fork(self, prompt: Prompt, prefix: str, *, seed: int, max_tokens: int) -> AsyncIterator[Stream]:
        yield self._stream(("fork", seed, len(prefix)), self._fork(draw(prompt.user, prefix, seed)))

    def _stream(self, key: tuple[object, ...], deltas: AsyncIterator[Delta]) -> Stream:
        self.alive()
        self.asked.append(key)
        return Stream(deltas, self.alive)

    async def _reasoning(self, prompt: Prompt, seed: int) -> AsyncIterator[Delta]:
        fate = draw(self.seed, prompt.user, seed)
        for section in range(self.sections):
            yield Delta("reasoning", f"Attempt {fate % 97}.{section}.\n```cpp\nint a{section};\n```\n")
            await self._settled(seed)
        if fate % 7 == 0:
            yield Delta("content", "I cannot.")
        else:
            yield Delta("content", answer(self._kernel(fate)))

    async def _fork(self, fate: int) -> AsyncIterator[Delta]:
        yield Delta("content", "no idea" if fate % 11 == 0 else f"{self._kernel(fate)}```\n")

    def _kernel(self, fate: int) -> str:
        """A third fails; some are written again and again."""
        name = fate % 37
        return kernel(f"k{name}", FAILURES[name % 9] if name % 9 < 3 else 0.5 + (name * 7 % 37) / 10)

    async def _settled(self, seed: int) -> None:
        """Until no fork is out; for good where that was the boundary."""
        assert self.lanes is not None
        while any(it.gate.outstanding or it._over for it in self.lanes._begun if it.plan.seed == seed):
            self.alive()
            await asyncio.sleep(0)

    async def complete(self, prompt: Prompt, *, seed: int, max_tokens: int, schema: Any) -> Completion:
        self.alive()
        key = hashlib.sha256(prompt.user.encode()).hexdigest()[:12]
        self.asked.append(("side", key, seed))
        junk = self.junk and seed == 0 and draw(key) % 2 == 0
        told = "no JSON" if junk else json.dumps(example(schema, key))
        return Completion(told, Usage(7, 0, 0, 3, reported=True), "stop")

    async def aclose(self) -> None:
        return None

    # -------------------------------------------------------------------------------------- the pool

    async def open(self, scope: str) -> int:
        self.alive()
        return 0

    async def submit(self, request: EvaluationRequest) -> bool:
        self.alive()
        self.devices.judge(request)
        self.arrived.set()
        return True

    async def missing(self, request_ids: list[str]) -> set[str]:
        return set()

    async def results(self, scope: str) -> AsyncIterator[EvaluationResult]:
        at = 0
        while True:
            self.alive()
            self.arrived.clear()
            for result in self.devices.results.get(scope, [])[at:]:
                yield result
                at += 1
            await self.arrived.wait()

    async def claim(self, scope: str, *, max_k: int, at_least_one: bool) -> int:
        self.alive()
        return min(max_k, 1)

    async def release(self, scope: str, count: int = 1) -> None:
        self.alive()

    async def close(self, scope: str) -> int:
        self.alive()
        return 0

    async def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(1, 1, 1, 1, 0, 0, 0)

    async def view(self) -> Any:
        self.alive()
        return cast("Any", type("View", (), {"devices": ()}))

    @asynccontextmanager
    async def pool(self, _settings: Settings, _label: str) -> AsyncIterator[Any]:
        yield self


class Mortal(Store):
    """The real store; ``moment`` is told of every write, just before it and just after its commit. A worker that is
    dead reads and writes nothing."""

    def watch(self, worker: Worker, moment: Callable[[str], None] = lambda _: None) -> None:
        self.worker, self.moment = worker, moment

    @contextmanager
    def _write(self) -> Iterator[Any]:
        self.worker.alive()
        self.moment("before")
        with super()._write() as connection:
            yield connection
        self.moment("after")

    @contextmanager
    def _read(self) -> Iterator[Any]:
        self.worker.alive()
        with super()._read() as connection:
            yield connection


@dataclass
class Silent:
    """Events are for screens."""

    iteration: int = 0

    async def publish(self, kind: EventKind, /, **data: Any) -> None:
        return None


def spec(search: str, **of: object) -> JobSpec:
    policy = {"spacing_chars": 0, "max_k": 1, "outstanding": 8, "idle_after_s": 1e9}
    fields = {"problem": PROBLEM, "search": search, "model": "m", "policy": policy, "iterations": 6} | of
    return JobSpec.model_validate(fields)


SETTINGS = Settings(llm={"default": ModelProfile(base_url="http://nowhere", model="m")})


class Inline(ThreadPoolExecutor):
    """Calls of the store are made at once, in the event loop's own thread: the order is the script's."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as exc:
            future.set_exception(exc)
        return future


def play(scene: Coroutine[Any, Any, T], *, threads: bool = False) -> T:
    """Run it to its end. ``threads``: the store's calls in threads, as in a worker; their order is then anybody's."""

    async def staged() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # a dead worker tells nobody what became of its tasks
        if not threads:
            loop.set_default_executor(Inline(1))
        return await asyncio.wait_for(scene, 170)

    return asyncio.run(staged())


async def attempt(store: Mortal, job: str, worker: Worker) -> tuple[JobState, str]:
    """One task of the job, as `workers.iteration` runs it: lease, lanes, the state they come to."""
    token = await asyncio.to_thread(store.acquire_lease, job, "worker", 600.0)
    assert token is not None
    record = await asyncio.to_thread(store.job, job)

    async def connect(profile: ModelProfile) -> Any:
        worker.connected.append(profile)
        return worker

    async def count(_name: str, _n: int = 1) -> None:
        return None

    outside = Outside(connect, cast("Any", worker.pool))
    lanes = Lanes(SETTINGS, store, record, token, cast("Any", Silent()), Spent(), count, outside)
    worker.lanes = lanes
    state, reason = await lanes.run()
    return await asyncio.to_thread(store.settle, job, state, reason, token, 0.0)


async def until_over(store: Mortal, job: str, worker: Worker, each: Callable[[], None] = lambda: None) -> str:
    """All tasks of the job, each begun where the last one ended."""
    while True:
        state, reason = await attempt(store, job, worker)
        each()
        if state.terminal:
            return f"{state}: {reason}"


# ---------------------------------------------------------------------------------------- what is compared

STORY = {
    "iterations": "SELECT iteration, step, prompt_system, prompt_user, template_hash, reason, chosen_candidate, "
    "threshold, state_opened, state_closed FROM iterations WHERE job_id = :job AND closed_at IS NOT NULL "
    "ORDER BY iteration",
    "candidates": "SELECT candidate_id, iteration, origin FROM candidates WHERE job_id = :job ORDER BY id",
    "outcomes": "SELECT candidate_id, iteration, origin, status, speedup, phase FROM outcomes WHERE job_id = :job "
    "ORDER BY id",
    "side_calls": "SELECT key, reply FROM side_calls WHERE job_id = :job ORDER BY key",
    "triggers": "SELECT iteration, trigger_class, position, launched FROM triggers WHERE job_id = :job ORDER BY id",
    "answers": "SELECT iteration, kind, seed, prefix_chars, content FROM generations "
    "WHERE job_id = :job AND finish_reason IN ('stop', 'length') ORDER BY iteration, kind, seed, prefix_chars",
    "state": "SELECT search_state FROM jobs WHERE id = :job",
}
ENDED = "SELECT kind, seed, prefix_chars FROM generations WHERE job_id = :job AND ended_at IS NOT NULL"
Story = dict[str, list[tuple[Any, ...]]]


def rows(store: Store, query: str, job: str) -> list[tuple[Any, ...]]:
    with store.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query), {"job": job})]


def story(store: Store, job: str) -> Story:
    """All that a resumed job must have in common with one that was never killed."""
    return {name: rows(store, query, job) for name, query in STORY.items()}


def paid(store: Store, worker: Worker, job: str) -> set[tuple[object, ...]]:
    """What `worker` had asked and whose end is stored: mains, forks, and side calls (which come one after another)."""
    side = [key for key in worker.asked if key[0] == "side"]
    return {*rows(store, ENDED, job), *side[: len(rows(store, STORY["side_calls"], job))]}


def restore(path: Path, database: bytes) -> None:
    """The database as it was then; connections to it stay."""
    with contextlib.closing(sqlite3.connect(":memory:")) as was, contextlib.closing(sqlite3.connect(path)) as now:
        was.deserialize(database)
        was.backup(now)


def image(path: Path) -> bytes:
    """The SQLite database as it is now."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        data = bytearray(connection.serialize())
    data[18:20] = b"\x01\x01"  # "not WAL": such an image can be read from memory
    return bytes(data)
