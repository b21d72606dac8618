"""The device pool as SpecController sees it (the `Pool` protocol), and as a command or dashboard reads it.

`RedisPool` enqueues, reserves forks, closes scopes and reads results; `PoolState` only reads. Neither knows Celery: how
a task is sent is given as a callable. The scripts do what must be atomic (``lua/claim.lua``, ``lua/close.lua``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import redis
import redis.asyncio

from specgen.errors import PoolUnavailable
from specgen.scheduler.allocation import Role
from specgen.scheduler.keys import (
    ANY_DEVICE,
    LABEL_HEADER,
    ORIGIN_HEADER,
    PRIORITY_HEADER,
    SCOPE_HEADER,
    Keys,
    ScopeClosed,
    is_away,
    script,
)
from specgen.types import EvaluationRequest, EvaluationResult, Json, Phase, PoolSnapshot

TASKS = {Phase.VALIDATE: "workers.validation.validate", Phase.PROFILE: "workers.profiling.profile"}
CLOSED_S = 6 * 3600  # a scope stays closed longer than any message of it can travel
CLAIM_LAPSES_S = 1800.0  # of an owner that died for good; a fork generates for less than that
RESULTS_EXPIRE_S = 6 * 3600
BLOCK_MS = 1000
RETRY_S = 0.2

Send = Callable[[str, dict[str, Json], str, dict[str, str], str], object]
"""(task name, kwargs, queue, headers, task id): Celery's `send_task`, blocking."""


@dataclass(frozen=True)
class DeviceState:
    """One device worker that is alive. ``busy`` names the queue whose request it serves and ``scope`` that request's,
    or both are empty. ``quarantined`` is why it serves nothing, or empty."""

    worker: str
    role: Role
    busy: str
    heartbeat: float  # unix seconds, the server's clock
    info: dict[str, Json]  # device, backend, host, pid, labels, version
    scope: str = ""
    quarantined: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """What requests may ask for."""
        labels = self.info.get("labels")
        return tuple(str(label) for label in labels) if isinstance(labels, list) else ()

    @property
    def version(self) -> str:
        """Of SpecGen, as that worker runs it."""
        return str(self.info.get("version", ""))


@dataclass(frozen=True)
class QueueState:
    """What waits in one queue with one label."""

    queue: str  # validate | profile | iterations
    label: str  # empty for iterations
    waiting: int
    oldest_s: float  # how long the oldest has waited


@dataclass(frozen=True)
class PoolView:
    """The whole pool at one moment."""

    at: float  # unix seconds, the server's clock
    claims: int
    epoch: int
    leader: str  # the scheduler that decides; empty: none
    queues: tuple[QueueState, ...]
    devices: tuple[DeviceState, ...]

    @classmethod
    def parse(cls, raw: Any) -> PoolView:
        """From what ``lua/state.lua`` returns."""
        at, claims, epoch, leader, queues, devices = raw
        return cls(
            at=float(at),
            claims=int(claims),
            epoch=int(epoch),
            leader=leader,
            queues=tuple(QueueState(queue, label, int(n), float(oldest)) for queue, label, n, oldest in queues),
            devices=tuple(
                DeviceState(
                    worker,
                    cast("Role", role),
                    busy,
                    float(heartbeat),
                    json.loads(info),
                    scope,
                    json.loads(quarantined)["reason"] if quarantined else "",
                )
                for worker, heartbeat, role, busy, scope, info, quarantined in devices
            ),
        )

    @property
    def lengths(self) -> dict[str, tuple[int, int]]:
        """Label -> how many wait to be validated, and to be profiled."""
        found = {queue.label: [0, 0] for queue in self.queues if queue.label}
        for queue in self.queues:
            if queue.label:
                found[queue.label][queue.queue != Phase.VALIDATE] = queue.waiting
        return {label: (pair[0], pair[1]) for label, pair in found.items()}

    @property
    def validate_queue(self) -> int:
        """Waiting to be validated, all labels."""
        return sum(validate for validate, _ in self.lengths.values())

    @property
    def profile_queue(self) -> int:
        """Waiting to be profiled, all labels."""
        return sum(profile for _, profile in self.lengths.values())

    @property
    def labels(self) -> frozenset[str]:
        """What a job may ask for now."""
        return frozenset(label for device in self.devices if not device.quarantined for label in device.labels)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, OSError) as exc:
        if not is_away(exc):
            raise
        raise PoolUnavailable(f"Redis cannot be used: {exc}", "see SPECGEN_REDIS_URL, and its log") from exc


class PoolState:
    """Reads the pool, for commands and dashboards. Raises PoolUnavailable."""

    def __init__(self, redis_url: str, prefix: str = "specgen") -> None:
        self._client = redis.Redis.from_url(redis_url, decode_responses=True)
        self._keys = Keys(prefix)

    def view(self) -> PoolView:
        """Everything, at one moment."""
        with _unavailable():
            return PoolView.parse(self._client.eval(script("state"), 0, *self._keys.args()))

    def close_scope(self, scope: str) -> int:
        """Close a scope that nobody works on, without a boundary: no ghost of it is served or reserves a device.
        Returns how many queued requests were dropped."""
        with _unavailable():
            dropped, _ = cast("list[int]", self._client.eval(script("close"), 0, *self._keys.args(scope, CLOSED_S, 1)))
            return dropped

    def open_scopes(self) -> list[str]:
        """Scopes of iterations that were begun and whose boundary has not come, oldest first."""
        with _unavailable():
            return cast("list[str]", self._client.zrange(self._keys.open, 0, -1))

    def decisions(self, count: int) -> list[dict[str, str]]:
        """The scheduler's last decisions as recorded, newest first."""
        with _unavailable():
            entries = cast(
                "list[tuple[str, dict[str, str]]]", self._client.xrevrange(self._keys.decisions, count=count)
            )
            return [fields for _, fields in entries]

    def devices(self) -> list[DeviceState]:
        """Devices whose heartbeat is not older than six seconds, by name."""
        return sorted(self.view().devices, key=lambda device: device.worker)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class RedisPool:
    """The `Pool` of specgen.controller.ports, for jobs that want devices of one label. One instance per event loop;
    `aclose` when done.

    ``send`` is called in a thread and may raise `ScopeClosed`. Every other call raises PoolUnavailable while Redis
    cannot be reached or refuses writes, except `results`, which waits for it.
    """

    def __init__(
        self, redis_url: str, send: Send, *, prefix: str = "specgen", order: str = "fair_laf", label: str = "cpu"
    ) -> None:
        self._client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
        self._keys = Keys(prefix, order)
        self._send = send
        self._label = label

    async def aclose(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    async def open(self, scope: str) -> int:
        """Start an iteration, or take one up again: claims of an attempt that died are void, and so is a boundary that
        was never committed. Returns how many claims were void."""
        return int(await self._run("open", scope, self._label))

    async def submit(self, request: EvaluationRequest) -> bool:
        """Enqueue; False if the scope is closed already. A request that is queued or running is not doubled, so a
        controller that takes an iteration up again may submit everything that has no outcome."""
        request = request.model_copy(update={"enqueued_at": request.enqueued_at or time.time()})
        kwargs: dict[str, Json] = {"request": request.model_dump(mode="json")}
        headers = {
            SCOPE_HEADER: request.scope,
            ORIGIN_HEADER: request.origin.value,
            LABEL_HEADER: request.label,
            PRIORITY_HEADER: str(request.priority),
        }
        try:
            await asyncio.to_thread(
                self._send, TASKS[request.phase], kwargs, request.phase.value, headers, request.request_id
            )
        except ScopeClosed:
            return False
        return True

    async def results(self, scope: str) -> AsyncIterator[EvaluationResult]:
        """Results of the scope as they return, from the first on. Waits for Redis; ends only by cancellation."""
        last = "0"
        while True:
            try:
                answer = await self._client.xread({self._keys.results(scope): last}, block=BLOCK_MS)
            except (redis.RedisError, OSError) as exc:
                if not is_away(exc):
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            for _, entries in _streams(answer):
                for entry, fields in entries:
                    last = entry
                    yield EvaluationResult.model_validate_json(fields["result"])

    async def claim(self, scope: str, *, max_k: int, at_least_one: bool) -> int:
        """Reserve K forks over all jobs; see ``lua/claim.lua``. 0 where the scope is closed."""
        return int(await self._run("claim", scope, max_k, int(at_least_one), CLAIM_LAPSES_S, self._label))

    async def release(self, scope: str, count: int = 1) -> None:
        """A fork stopped generating."""
        await self._run("release", scope, count)

    async def close(self, scope: str) -> int:
        """The boundary of ``scope``, and of no other: see ``lua/close.lua``. Running evaluations of it are aborted by
        the devices, which watch for it; the scheduler reallocates. Returns how many queued requests were dropped."""
        dropped, _ = await self._run("close", scope, CLOSED_S, 0)
        return int(dropped)

    async def missing(self, request_ids: Collection[str]) -> set[str]:
        """Those that are neither queued, nor leased by a worker, nor being evaluated: the pool has lost them."""
        return set(await self._run("missing", *request_ids)) if request_ids else set()

    async def view(self) -> PoolView:
        """Everything, at one moment."""
        return PoolView.parse(await self._run("state"))

    async def snapshot(self) -> PoolSnapshot:
        """What a job of this label sees, for idle forks and progress. A device that serves both queues counts in both
        splits; the cost is that of a few lookups, however many devices there are."""
        return PoolSnapshot(*(int(count) for count in await self._run("snapshot", self._label)))

    async def _run(self, name: str, *args: str | float) -> Any:
        with _unavailable():
            return await self._client.register_script(script(name))(args=self._keys.args(*args))


def _streams(answer: Any) -> list[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """XREAD's answer, which is a mapping or a list of pairs depending on the protocol's version."""
    if not answer:
        return []
    if isinstance(answer, dict):
        return [(name, [entry for batch in batches for entry in _flat(batch)]) for name, batches in answer.items()]
    return list(answer)


def _flat(batch: Any) -> list[tuple[str, dict[str, str]]]:
    return [batch] if isinstance(batch[0], str) else list(batch)


def publish_result(client: redis.Redis, keys: Keys, scope: str, result: EvaluationResult) -> None:
    """Append a result to its scope's stream (a device worker's side of `RedisPool.results`)."""
    stream = keys.results(scope)
    with client.pipeline() as pipe:
        pipe.xadd(stream, {"result": result.model_dump_json()})
        pipe.expire(stream, RESULTS_EXPIRE_S)
        pipe.execute()


def snapshot(client: redis.Redis, keys: Keys, label: str = ANY_DEVICE) -> PoolSnapshot:
    """The pool in numbers, as a job of that label sees it (by default all of it)."""
    counts = cast("list[int]", client.eval(script("snapshot"), 0, *keys.args(label)))
    return PoolSnapshot(*(int(count) for count in counts))


def count(client: redis.Redis, keys: Keys, name: str, n: int = 1) -> None:
    """Add to one of the pool's counters. Never fails: a Redis that is away costs a count."""
    try:
        client.hincrby(keys.counters, name, n)
    except (redis.RedisError, OSError) as exc:
        if not is_away(exc):
            raise
