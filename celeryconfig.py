"""Celery's settings, all of them. Addresses come from `specgen.settings`; the reasons are in docs/queue.md."""

# mypy: allow-untyped-calls

from __future__ import annotations

import os
import ssl

from kombu.entity import Exchange, Queue

from specgen.scheduler.transport import broker_url as _broker_url
from specgen.settings import get_settings

_settings = get_settings()


def _backend(redis_url: str) -> str:
    if not redis_url.startswith("unix://"):
        return redis_url
    return _broker_url(redis_url).replace("specgen+socket", "redis+socket", 1)


broker_url = _broker_url(_settings.redis)
result_backend = _backend(_settings.redis)
if _settings.redis.startswith("rediss://"):
    broker_use_ssl = redis_backend_use_ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}

broker_transport_options = {
    "visibility_timeout": _settings.visibility_timeout_s,
    "unacked_restore_interval": min(5, _settings.visibility_timeout_s / 4),
    "unacked_restore_throttle": 1,
    "specgen_prefix": _settings.prefix,
    "specgen_order": _settings.pool.order,
    "specgen_device": os.environ.get("SPECGEN_WORKER", ""),
    "specgen_labels": tuple(label for label in os.environ.get("SPECGEN_LABELS", "cpu").split(",") if label),
}
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
broker_channel_error_retry = True

# exchanges named as their queues: the transport needs no binding table for them, so there is none to lose
task_queues = [Queue(name, Exchange(name), routing_key=name) for name in ("iterations", "validate", "profile")]
task_default_queue = "iterations"
task_create_missing_queues = True

task_acks_late = True
task_reject_on_worker_lost = True
task_send_sent_event = False
task_serializer = result_serializer = event_serializer = "json"
accept_content = ["json"]
result_expires = 3600
enable_utc = True

worker_concurrency = 1
worker_prefetch_multiplier = 1
worker_disable_prefetch = True
worker_deduplicate_successful_tasks = True
worker_cancel_long_running_tasks_on_connection_loss = False
worker_send_task_events = True
worker_enable_remote_control = True
worker_hijack_root_logger = False
worker_max_tasks_per_child = None
worker_proc_alive_timeout = 60.0
worker_lost_wait = 1.0
