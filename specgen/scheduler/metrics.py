"""The pool as Prometheus metrics, read from Redis at each scrape. Nothing is kept here, so any number may run.

Labels are queues, device labels, roles and states: never a job, a candidate or a worker, of which there is no end.
Counters live in Redis (``<prefix>:counters``) and start from 0 with it. Not here: who serves them (workers/metrics.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import redis
import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from specgen.scheduler.keys import (
    ANY_DEVICE,
    ITERATIONS,
    TICKET_QUEUES,
    UNACKED_INDEX,
    WAIT_BOUNDS_S,
    Keys,
    script,
)

COUNTERS = {  # of the hash: name here, meaning
    "refused_closed": ("specgen_requests_refused", "Requests that came after their scope's boundary."),
    "dropped": ("specgen_requests_dropped", "Queued requests dropped at a boundary."),
    "aborted": ("specgen_evaluations_aborted", "Running evaluations ended by a boundary."),
    "restored": ("specgen_redeliveries", "Messages put back after their worker was lost or gave them back."),
    "quarantined": ("specgen_requests_quarantined", "Requests not run again: their worker was lost too often."),
    "resent": ("specgen_requests_resent", "Requests sent again because nothing was heard of them."),
    "fence_refused": ("specgen_fence_refusals", "Writes refused to a worker that had lost its lease."),
    "boundaries": ("specgen_boundaries", "Ends of iterations."),
    "moved": ("specgen_role_changes", "Changes of a device's role."),
}
COUNTERS_BY_QUEUE = {
    "enqueued": ("specgen_requests_enqueued", "Requests accepted into a queue."),
    "served": ("specgen_requests_served", "Deliveries from a queue, repeated ones included."),
}
COUNTERS_BY_RESULT = {
    "built_ahead": (
        "specgen_builds_ahead",
        "Builds ahead of their turn, by how they ended.",
        ("kept", "failed", "stopped"),
    ),
    "builds": (
        "specgen_validation_builds",
        "Validations that build, by how it was found.",
        ("ready", "waited", "missed"),
    ),
}

log = structlog.get_logger(__name__)


class PoolCollector(Collector):
    """For a `CollectorRegistry`. While Redis does not answer, ``specgen_up`` is 0 and nothing else is there."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys  # a client that answers str

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not scrape to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics, of one moment."""
        up = GaugeMetricFamily("specgen_up", "1 while Redis answers; without it no other metric is there.")
        try:
            args = self._keys.args(UNACKED_INDEX, *TICKET_QUEUES)
            raw: Any = self._client.eval(script("metrics"), 0, *args)
        except (redis.RedisError, OSError) as exc:
            log.warning("no_metrics", error=str(exc))
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        queues, devices, quarantined, claims, scalars, counters, waits = raw
        yield _waiting(queues)
        yield from _devices(devices, quarantined)
        yield from _scalars(claims, scalars)
        yield from _counters(_mapping(counters))
        yield _waits(waits)


def _mapping(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _waiting(queues: list[tuple[str, str, int]]) -> Metric:
    family = GaugeMetricFamily("specgen_queue_waiting", "Requests that wait.", labels=["queue", "label"])
    if not any(queue == ITERATIONS for queue, *_ in queues):
        family.add_metric([ITERATIONS, ""], 0)
    for queue, label, waiting in queues:
        family.add_metric([queue, label], waiting)
    return family


def _devices(devices: list[tuple[str, str, int, int]], quarantined: list[list[str]]) -> Iterator[Metric]:
    """All devices once, and by label: a device with several labels counts under each there."""
    pool = GaugeMetricFamily("specgen_devices", "Devices with a living worker.", labels=["role", "state"])
    by_label = GaugeMetricFamily(
        "specgen_label_devices",
        "Devices with a living worker that have a label; one with several labels counts under each.",
        labels=["label", "role", "state"],
    )
    for label, role, present, busy in devices:
        out = quarantined.count([label, role])
        for state, n in (("idle", present - busy), ("busy", busy), ("quarantined", out)):
            if label == ANY_DEVICE:
                pool.add_metric([role, state], n)
            else:
                by_label.add_metric([label, role, state], n)
    yield pool
    yield by_label


def _scalars(claims: list[tuple[str, int]], scalars: tuple[int, int, int, int]) -> Iterator[Metric]:
    claimed = GaugeMetricFamily("specgen_claims", "Devices reserved for forks that still generate.", labels=["label"])
    for label, n in claims:
        claimed.add_metric([label], n)
    yield claimed
    for name, meaning, value in zip(
        ("specgen_leases", "specgen_open_scopes", "specgen_boundaries_pending", "specgen_scheduler_leader"),
        (
            "Messages delivered and not yet acknowledged.",
            "Iterations that are under way.",
            "Boundaries that no scheduler has answered yet.",
            "1 while a scheduler holds the lease, else 0.",
        ),
        scalars,
        strict=True,
    ):
        yield GaugeMetricFamily(name, meaning, value=value)


def _counters(values: dict[str, str]) -> Iterator[Metric]:
    for field, (name, meaning) in COUNTERS.items():
        yield CounterMetricFamily(name, meaning, value=float(values.get(field, 0)))
    for field, (name, meaning) in COUNTERS_BY_QUEUE.items():
        family = CounterMetricFamily(name, meaning, labels=["queue"])
        for queue in TICKET_QUEUES:
            family.add_metric([queue], float(values.get(f"{field}:{queue}", 0)))
        yield family
    for field, (name, meaning, results) in COUNTERS_BY_RESULT.items():
        family = CounterMetricFamily(name, meaning, labels=["result"])
        for result in results:
            family.add_metric([result], float(values.get(f"{field}:{result}", 0)))
        yield family


def _waits(waits: list[tuple[str, list[str]]]) -> Metric:
    family = HistogramMetricFamily(
        "specgen_queue_wait_seconds", "Time from a request's arrival to its delivery.", labels=["queue"]
    )
    bounds = [*(f"{bound:g}" for bound in WAIT_BOUNDS_S), "+Inf"]
    for queue, flat in waits:
        found = _mapping(flat)
        counts = accumulate(int(found.get(bound, 0)) for bound in bounds)
        family.add_metric([queue], list(zip(bounds, counts, strict=True)), float(found.get("sum", 0)))
    return family
