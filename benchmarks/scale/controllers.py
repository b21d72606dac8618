"""So many jobs in one process: ``python -m benchmarks.scale.controllers JOBS SEED``.

Each uses the pool as SpecController does, by `RedisPool` and the real sender: opens a scope, claims forks, enqueues
what they wrote, profiles half of what was valid, looks at the pool four times a second, closes the scope, goes on. No
LLM and no store. A line on stdin ends a window of time; what happened in it is answered as one line of JSON. SIGTERM
ends it.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

from benchmarks.queue.system import make_request
from specgen.controller.loop import TICK_S
from specgen.scheduler.pool import RedisPool
from specgen.settings import get_settings
from specgen.types import Origin, Phase

ITERATION_S = 4.0
CANDIDATES_PER_S = 0.4  # of one job
MAIN_SHARE, VALID_SHARE = 0.1, 0.5
SENDERS = 4  # threads


@dataclass
class Window:
    """What happened in it."""

    candidates: int = 0
    requests: int = 0
    results: int = 0
    close_ms: list[float] = field(default_factory=list)
    cpu_s: float = field(default_factory=time.process_time)  # at its beginning, then used
    seconds: float = field(default_factory=time.monotonic)  # likewise

    def end(self) -> str:
        """As JSON."""
        self.cpu_s, self.seconds = time.process_time() - self.cpu_s, time.monotonic() - self.seconds
        return json.dumps(asdict(self))


@dataclass
class Job:
    """One job's controller."""

    name: str
    pool: RedisPool
    chance: random.Random
    counts: list[Window]  # the last one is the present one

    async def run(self) -> None:
        """Iterations without end."""
        await asyncio.sleep(self.chance.random() * ITERATION_S)
        iteration = 0
        while True:
            iteration += 1
            await self._iterate(f"{self.name}/{iteration}")

    async def _iterate(self, scope: str) -> None:
        await self.pool.open(scope)
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(part(scope)) for part in (self._generate, self._collect, self._watch)]
            await asyncio.sleep(ITERATION_S * self.chance.uniform(0.75, 1.25))
            for task in work:
                task.cancel()
        begun = time.perf_counter()
        await self.pool.close(scope)
        self.counts[-1].close_ms.append((time.perf_counter() - begun) * 1000)

    async def _generate(self, scope: str) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(CANDIDATES_PER_S))
            await self.pool.claim(scope, max_k=1, at_least_one=True)
            origin = Origin.MAIN if self.chance.random() < MAIN_SHARE else Origin.FORK
            self.counts[-1].candidates += 1
            await self._submit(scope, Phase.VALIDATE, origin)
            await self.pool.release(scope)

    async def _collect(self, scope: str) -> None:
        async for result in self.pool.results(scope):
            self.counts[-1].results += 1
            if result.phase is Phase.VALIDATE and self.chance.random() < VALID_SHARE:
                await self._submit(scope, Phase.PROFILE, Origin.FORK)

    async def _watch(self, scope: str) -> None:
        del scope
        while True:
            await asyncio.sleep(TICK_S)
            await self.pool.snapshot()

    async def _submit(self, scope: str, phase: Phase, origin: Origin) -> None:
        self.counts[-1].requests += 1
        await self.pool.submit(make_request(scope, phase=phase, origin=origin, source="x" * 1000))


async def main(jobs: int, seed: int) -> None:
    """Run them."""
    from workers.app import send_request

    settings, loop = get_settings(), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(SENDERS + 1))
    counts = [Window()]
    controllers = [
        Job(f"job{i}", RedisPool(settings.redis, send_request), random.Random(seed * 1000 + i), counts)
        for i in range(jobs)
    ]
    tasks = [asyncio.create_task(job.run()) for job in controllers]
    while await loop.run_in_executor(None, sys.stdin.readline):
        for task in tasks:
            if task.done():
                task.result()
        counts.append(Window())
        print(counts[-2].end(), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
