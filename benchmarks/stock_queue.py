"""A stock Celery worker on kombu's own Redis transport, beside which the queue is measured. Not part of SpecGen.

``BENCH_BROKER`` is its broker. Settings are those that a careful user of Celery for such tasks would choose.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import os
import time

import redis
from celery import Celery

app = Celery("stock", broker=os.environ.get("BENCH_BROKER"))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_default_queue="stock",
    worker_prefetch_multiplier=1,
    worker_concurrency=1,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 600},
)
STARTS = "bench:start:"


@app.task(name="stamp")
def stamp(token: str, sleep_s: float, redis_url: str) -> None:
    """Say when it started, then sleep."""
    started = time.time()
    with redis.Redis.from_url(redis_url) as client:
        client.rpush(STARTS + token, repr(started))
        client.expire(STARTS + token, 600)
    time.sleep(sleep_s)
