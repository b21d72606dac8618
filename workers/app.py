"""The Celery application, and how a request is sent to the device queues. No torch, no evaluation here."""

# mypy: allow-untyped-calls

from __future__ import annotations

import os
from importlib.util import find_spec

from celery import Celery
from kombu.exceptions import OperationalError

from specgen.crash_points import crash_point
from specgen.errors import PoolUnavailable
from specgen.scheduler.pool import Send
from specgen.types import Json

DEVICE_TASKS = ("workers.validation", "workers.profiling")
ITERATION_TASKS = ("workers.iteration",)
PUBLISH_RETRY = {"max_retries": 5, "interval_start": 0, "interval_step": 0.2, "interval_max": 1.0}
# a device worker never imports what reads LLM keys or the database, and an iteration worker never runs a candidate
_tasks = DEVICE_TASKS if os.environ.get("SPECGEN_WORKER") else ITERATION_TASKS

app = Celery("specgen", include=[name for name in _tasks if find_spec(name)])
app.config_from_object("celeryconfig")


def sender(celery: Celery) -> Send:
    """The ``send`` of `specgen.scheduler.pool.RedisPool`: enqueues a request. Blocking, thread-safe.

    Raises ScopeClosed where the scope's boundary has passed, and PoolUnavailable. Celery shows ids of a request, never
    its source.
    """

    celery.backend.on_task_call = lambda *_: None  # it subscribes to a result that nobody here reads

    def send(task_name: str, kwargs: dict[str, Json], queue: str, headers: dict[str, str], task_id: str) -> None:
        request = kwargs["request"]
        assert isinstance(request, dict)
        shown = "{job_id}/{iteration} {origin} {label} {candidate_id}".format_map(request)
        try:
            celery.send_task(
                task_name,
                kwargs=kwargs,
                task_id=task_id,
                queue=queue,
                headers=headers,
                argsrepr="()",
                kwargsrepr=shown,
                retry_policy=PUBLISH_RETRY,
            )
            crash_point("put.sent")
        except OperationalError as exc:
            raise PoolUnavailable(f"Redis cannot be reached: {exc}", "see SPECGEN_REDIS_URL") from exc

    return send


send_request = sender(app)
