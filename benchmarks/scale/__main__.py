"""``python -m benchmarks.scale [--quick]``: 10, 50 and 200 jobs and 1000 simulated devices through one real Redis.

Prints how controller CPU per candidate, Redis' CPU and memory, and the boundary grow: with the number of jobs at one
load per job (flat, at most 1.5-fold from the fewest to the most), and with the queue of one scope (not more than
linear). Devices are `benchmarks.simulated_device`, controllers `benchmarks.scale.controllers`; scripts, `RedisPool`,
sender and ElasticScheduler are the real ones. ``boundary`` is a job's in a process of its own, ``in_the_controllers``
that of the jobs that share one process, ``server_time`` what the server itself needed, without any queueing.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from benchmarks.figures import figure, machine
from benchmarks.queue.system import quantile, server
from benchmarks.scale import many_jobs, one_scope
from benchmarks.scale.controllers import CANDIDATES_PER_S
from benchmarks.scale.server_time import median, served

FLAT, EXPONENT = 1.5, 1.1
QUICK_JOBS = many_jobs.Setting(
    devices=20, jobs=(6, 12), service_s=0.1, warm_up_s=2.0, window_s=4.0, server_window_s=2.0
)
QUICK_SCOPE = one_scope.Setting(queued=(10, 100), beside=100, samples=3)


def jobs(setting: many_jobs.Setting) -> None:
    """The sweep of the number of jobs."""
    with server() as (valkey, folder), many_jobs.devices(valkey, folder, setting):
        idle = many_jobs.idle(valkey, setting)
        points = [many_jobs.measure(valkey, folder, count, setting) for count in setting.jobs]
    print(f"# {setting}")
    cores = idle.redis_cpu_s / idle.seconds
    figure(f"redis_cores_{setting.devices}_idle_devices", cores, "cores", "", None)
    for point in points:
        tell(point, cores)
    flat("controller_cpu_per_candidate", points, lambda p: p.controller_cpu_s / p.candidates)
    flat("redis_memory_per_candidate", points[-2:], lambda p: p.dataset_bytes / p.candidates)
    flat("redis_cpu_per_candidate", points[-2:], lambda p: net_cpu(p, cores) / p.candidates)
    flat("boundary_p50", points, lambda p: statistics.median(p.probe_ms))
    for name in ("close", "claim", "snapshot", "put", "grab"):
        flat(f"server_time_of_{name}", points, partial(server_time, name))


def server_time(name: str, point: many_jobs.Point) -> float:
    """Median milliseconds of a script."""
    return median(served(point.server_ms) if name == "grab" else point.server_ms.get(name, []))


def net_cpu(point: many_jobs.Point, idle_cores: float) -> float:
    """Seconds of Redis beyond what idle devices cost."""
    return point.redis_cpu_s - idle_cores * point.seconds


def tell(point: many_jobs.Point, idle_cores: float) -> None:
    """One line for each figure of one number of jobs."""
    n, name = point.candidates, f"{point.jobs}_jobs"
    if not n or not point.close_ms:
        raise RuntimeError(f"{point.jobs} jobs wrote {n} candidates and ended {len(point.close_ms)} iterations")
    offered = point.jobs * CANDIDATES_PER_S * point.seconds
    print(f"# {name}: N = {n} candidates, {n / offered:.0%} of what was to come")
    print(f"#   {point.requests} requests, {point.results} results, {len(point.close_ms)} boundaries")
    print(f"#   {point.seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    figure(f"controller_cpu_per_candidate_{name}", 1000 * point.controller_cpu_s / n, "ms", "", None)
    figure(f"controller_cores_{name}", point.controller_cpu_s / point.seconds, "cores", "", None)
    figure(f"redis_cores_{name}", point.redis_cpu_s / point.seconds, "cores", "", None)
    figure(f"redis_cpu_per_candidate_{name}", 1000 * net_cpu(point, idle_cores) / n, "ms", "", None)
    figure(f"redis_memory_per_candidate_{name}", point.dataset_bytes / n / 1024, "KiB", "", None)
    figure(f"scheduler_cpu_per_boundary_{name}", 1000 * point.scheduler_cpu_s / len(point.close_ms), "ms", "", None)
    for where, times in (("", point.probe_ms), ("in_the_controllers_", point.close_ms)):
        figure(f"boundary_p50_{where}{name}", statistics.median(times), "ms", "", None)
        figure(f"boundary_p99_{where}{name}", quantile(times, 0.99), "ms", "", None)
    for script in sorted(point.server_ms):
        figure(f"server_time_of_{script}_{name}", server_time(script, point), "ms", "", None)


def flat(name: str, points: Sequence[many_jobs.Point], value: Callable[[many_jobs.Point], float]) -> None:
    """The most jobs over the fewest."""
    first, last = points[0], points[-1]
    growth = value(last) / value(first) if value(first) else math.nan
    figure(f"{name}_{last.jobs}_over_{first.jobs}_jobs", growth, "x", f"<= {FLAT:g}", growth <= FLAT)


def scope(setting: one_scope.Setting) -> None:
    """The sweep of one scope's queue."""
    with server() as (valkey, _):
        found = one_scope.measure(valkey, setting)
    print(f"# {setting}")
    for count, times in found.items():
        figure(f"boundary_of_{count}_queued_p50", statistics.median(times), "ms", "", None)
        figure(f"boundary_of_{count}_queued_p99", quantile(times, 0.99), "ms", "", None)
    few, many = setting.queued[-2:]
    growth = statistics.median(found[many]) / statistics.median(found[few])
    exponent = math.log(growth) / math.log(many / few)
    figure(f"boundary_exponent_{few}_to_{many}_queued", exponent, "", f"<= {EXPONENT:g}", exponent <= EXPONENT)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="What grows with what.")
    parser.add_argument("--quick", action="store_true", help="few of everything: shows that it runs")
    quick = parser.parse_args().quick
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    begun = time.monotonic()
    print(f"# {machine()}, load {os.getloadavg()[0]:.1f}")
    scope(QUICK_SCOPE if quick else one_scope.Setting())
    jobs(QUICK_JOBS if quick else many_jobs.Setting())
    print(f"# took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
