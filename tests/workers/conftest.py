"""Device workers as real processes on the session's Valkey."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.scheduler.conftest import celery_app, send  # noqa: F401 (fixtures)
from tests.scheduler.support import WorkerProcess


@pytest.fixture
def start(redis_url, tmp_path) -> Iterator[Callable[..., WorkerProcess]]:
    """Start a process of the package; all that is left at the end is killed."""
    started: list[WorkerProcess] = []

    def one(*arguments: str, **env: str) -> WorkerProcess:
        started.append(WorkerProcess(list(arguments), redis_url, tmp_path, **env))
        return started[-1]

    yield one
    for process in started:
        process.kill()


@pytest.fixture
def device(start, redis_client) -> Callable[..., WorkerProcess]:
    """Start a device worker and wait until it serves."""
    import socket

    from tests.scheduler.support import devices, wait_for

    def one(name: str = "cpu0", **env: str) -> WorkerProcess:
        known = f"device-{name}@{socket.gethostname()}"
        redis_client.zrem("specgen:devices", known)
        worker = start("workers.device", "--device", name, **env)
        wait_for(lambda: known in devices(redis_client), 20, f"{name}, see {worker.log}")
        return worker

    return one
