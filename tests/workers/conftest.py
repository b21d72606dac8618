"""Device workers as real processes on the session's Valkey."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from specgen.types import EvaluationRequest
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


@pytest.fixture
def submit(send) -> Callable[..., bool]:  # noqa: F811
    """Enqueue requests as a controller does; False where a scope is closed."""
    import time

    from specgen.scheduler.keys import LABEL_HEADER, ORIGIN_HEADER, SCOPE_HEADER, ScopeClosed
    from specgen.scheduler.pool import TASKS

    def one(*requests: EvaluationRequest) -> bool:
        for given in requests:
            it = given.model_copy(update={"enqueued_at": given.enqueued_at or time.time()})
            sent = {SCOPE_HEADER: it.scope, ORIGIN_HEADER: it.origin.value, LABEL_HEADER: it.label}
            try:
                send(TASKS[it.phase], {"request": it.model_dump(mode="json")}, it.phase.value, sent, it.request_id)
            except ScopeClosed:
                return False
        return True

    return one
