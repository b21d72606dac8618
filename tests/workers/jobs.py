"""One iteration worker's task in this process, on a real Valkey and SQLite, with the project's own model server.

No device is here: with few tokens the model gives no code and the iteration ends by itself, with many it reasons on.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from specgen.client import Client, problem
from specgen.settings import ModelProfile, Settings
from specgen.store import Store, migrate
from specgen.types import JobSpec, JobState
from workers import iteration
from workers.iteration import Runner

SHORT, LONG = 40, 32_000  # tokens


@pytest.fixture(scope="module", name="model_url")
def start_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The synthetic model server, at twice the paper's token rate."""
    url = tmp_path_factory.mktemp("model") / "url"
    command = ["-m", "specgen.llm.server", "--port", "0", "--port-file", str(url), "--speed", "2"]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 120
        while not url.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield url.read_text().strip()
        server.terminate()


@dataclass
class World:
    """A system with one job at a time, whose tasks this test runs itself."""

    client: Client
    settings: Settings
    redis: redis.Redis
    sent: list[str] = field(default_factory=list)
    runner: Runner | None = None
    owners: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    @property
    def store(self) -> Store:
        return self.client.store

    def submit(self, tokens: int, **of: object) -> str:
        fields = {"problem": problem("T4"), "model": "specgen-synthetic", "iterations": 3, "max_tokens": tokens} | of
        return self.client.submit(JobSpec.model_validate(fields))

    def run(self, job_id: str, during: Callable[[], None] | None = None) -> str:
        """One task of the job, to its end; ``during`` once its main generation is streaming."""
        return asyncio.run(asyncio.wait_for(self._run(job_id, during), 60))

    async def _run(self, job_id: str, during: Callable[[], None] | None) -> str:
        self.runner = runner = Runner(self.settings, self.store, job_id, f"worker/{next(self.owners)}")
        async with started(runner) as task:
            if during is not None:
                while not self._streams(job_id) and not task.done():
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(during)
            return await task

    def _streams(self, job_id: str) -> bool:
        return any(row.ended_at is None for row in self.store.generations(job_id))

    def await_priority(self, priority: int) -> None:
        """Until the iteration's next request would carry it."""
        deadline = time.monotonic() + 20
        while priority not in self._priorities():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _priorities(self) -> list[int]:
        lanes = self.runner.lanes if self.runner is not None else None
        return [evaluations.priority for evaluations in lanes.evaluations.values()] if lanes is not None else []

    def state(self, job_id: str) -> JobState:
        return self.client.job(job_id).state


@contextlib.asynccontextmanager
async def started(runner: Runner) -> AsyncIterator[asyncio.Task[str]]:
    """The task's own coroutine, ended with the test whatever happens."""
    task = asyncio.create_task(runner.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


@pytest.fixture(name="world")
def start_world(
    tmp_path: Path, redis_url: str, redis_client: redis.Redis, model_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """The system; what the task enqueues next is only noted."""
    database = f"sqlite:///{tmp_path / 'specgen.db'}"
    migrate(database)
    profile = ModelProfile(base_url=model_url, model="specgen-synthetic")
    settings = Settings(home=tmp_path, redis_url=redis_url, database_url=database, llm={"default": profile})
    with contextlib.closing(Client(settings)) as client:
        it = World(client, settings, redis_client)
        monkeypatch.setattr(iteration, "send_iteration", it.sent.append)
        yield it
