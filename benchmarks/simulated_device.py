"""A device worker in place of a Celery process, as far as Redis can tell: the same scripts at the same pace.

It beats, blocks on its bells for a second at a time, grabs, claims the start, looks for the boundary while it "runs"
(sleeps), publishes a result, gives the claim back and acknowledges. Hundreds of them share one asyncio loop. Left out:
Celery's own keys (results, events, remote control), so a new role takes effect at the next heartbeat or grab.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.wire import Wire, packed, script_command
from specgen.scheduler.elastic import QUEUES
from specgen.scheduler.keys import DEVICE_QUEUES, UNACKED_INDEX, Keys
from specgen.scheduler.pool import RESULTS_EXPIRE_S
from specgen.scheduler.transport import BOUNDS
from specgen.types import EvaluationResult, Phase, Profile, Status, Timing

SCRIPTS = ("heartbeat", "grab", "start", "done")
HEARTBEAT_S = 2.0
BLOCK_S = 1  # as long as kombu blocks
CLAIM_S = 30
TIMING = Timing(mean_ms=1.0, std_ms=0.0, min_ms=1.0, median_ms=1.0, runs=1)

Service = Callable[[str, str], float]
"""(queue, scope) → seconds on the device."""


@dataclass
class Device:
    """One of them. ``on_grab`` is called with the scope and the id of each request that it is given."""

    name: str
    keys: Keys
    service: Service
    watch_s: float
    on_grab: Callable[[str, str], None] = lambda _scope, _request: None
    role: str = "both"
    served: int = 0
    aborted: int = 0
    _beats_at: float = field(default_factory=lambda: time.monotonic() + random.random() * HEARTBEAT_S)

    async def run(self, socket: str) -> None:
        """Until cancelled."""
        wire, beat = await Wire.connect(socket), await Wire.connect(socket)
        info = json.dumps({"labels": ["cpu"], "device": self.name, "backend": "cpu", "host": "simulated", "pid": 0})
        self._beat = script_command("heartbeat", self.keys, self.name, info)
        try:
            self._learn(await beat(self._beat))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._heart(beat))
                group.create_task(self._serve(wire))
        finally:
            wire.close()
            beat.close()

    def _learn(self, role: bytes) -> None:
        self.role = role.decode()
        self._queues = [queue for queue in DEVICE_QUEUES if queue in QUEUES[self.role]]  # type: ignore[index]
        self._grab = script_command("grab", self.keys, UNACKED_INDEX, self.name, "cpu", BOUNDS, *self._queues)
        self._listen = packed("BRPOP", *(self.keys.bell(queue, "cpu") for queue in self._queues), BLOCK_S)

    async def _heart(self, beat: Wire) -> None:
        await asyncio.sleep(max(0.0, self._beats_at - time.monotonic()))
        while True:
            self._learn(await beat(self._beat))
            await asyncio.sleep(HEARTBEAT_S)

    async def _serve(self, wire: Wire) -> None:
        while True:
            if (ticket := await wire(self._grab)) is None:
                await wire(self._listen)
                continue
            queue, tag, payload, delivery, _ = ticket
            request = _request(payload)
            scope = f"{request['job_id']}/{request['iteration']}"
            self.on_grab(scope, request["request_id"])
            if await self._evaluate(wire, queue.decode(), scope, request):
                self.served += 1
            await wire(script_command("done", self.keys, UNACKED_INDEX, tag, delivery))

    async def _evaluate(self, wire: Wire, queue: str, scope: str, request: dict[str, Any]) -> bool:
        name = request["request_id"]
        if await wire(script_command("start", self.keys, scope, name, self.name, CLAIM_S)) != b"mine":
            return False
        ends, look = time.monotonic() + self.service(queue, scope), packed("EXISTS", self.keys.closed(scope))
        while (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(self.watch_s, left))
            if await wire(look):
                self.aborted += 1
                await wire(packed("DEL", self.keys.start(name)))
                return False
        stream = self.keys.results(scope)
        await wire.batch(
            [
                packed("XADD", stream, "*", "result", _result(request, self.name).model_dump_json()),
                packed("EXPIRE", stream, RESULTS_EXPIRE_S),
                packed("DEL", self.keys.start(name)),
            ]
        )
        return True


def _request(payload: bytes) -> dict[str, Any]:
    """Out of Celery's message."""
    body = json.loads(base64.b64decode(json.loads(payload)["body"]))
    request: dict[str, Any] = body[1]["request"]
    return request


def _result(request: dict[str, Any], worker: str) -> EvaluationResult:
    phase = Phase(request["phase"])
    return EvaluationResult(
        request_id=request["request_id"],
        candidate_id=request["candidate_id"],
        phase=phase,
        status=Status.VALID,
        speedup=1.0,
        profile=Profile(candidate=TIMING, reference=TIMING) if phase is Phase.PROFILE else None,
        worker=worker,
        finished_at=time.time(),
    )
