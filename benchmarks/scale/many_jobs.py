"""Sweep of the number of jobs, at one load per job and one number of devices."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis

from benchmarks.queue.step_load import NoControl
from benchmarks.queue.system import processes, wait
from benchmarks.scale.server_time import ServerTime
from specgen.runtime.valkey import Valkey
from specgen.scheduler.elastic import ElasticScheduler
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.pool import CLOSED_S

DEVICE_PROCESSES = 2
BATCH = 1000
QUEUED, PROBE_S = 5, 0.1  # of the probe
SCRIPTS = ("open", "put", "grab", "start", "done", "claim", "release", "snapshot", "close", "heartbeat")


@dataclass(frozen=True)
class Setting:
    """How much of it."""

    devices: int = 1000
    jobs: tuple[int, ...] = (10, 50, 200)
    service_s: float = 0.5
    warm_up_s: float = 5.0
    window_s: float = 20.0
    server_window_s: float = 8.0
    seed: int = 1


@dataclass
class Point:
    """What one number of jobs cost."""

    jobs: int
    seconds: float
    candidates: int = 0
    requests: int = 0
    results: int = 0
    controller_cpu_s: float = 0.0
    redis_cpu_s: float = 0.0
    scheduler_cpu_s: float = 0.0
    dataset_bytes: int = 0
    close_ms: list[float] = field(default_factory=list)  # in the controllers
    probe_ms: list[float] = field(default_factory=list)  # elsewhere
    server_ms: dict[str, list[float]] = field(default_factory=dict)


class Scheduler:
    """The real one, in a thread whose CPU time is read."""

    def __init__(self, valkey: Valkey) -> None:
        self._client = redis.Redis.from_url(valkey.url, decode_responses=True)
        self._elastic, self._stop = ElasticScheduler(self._client, Keys(), NoControl()), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.cpu_s = 0.0

    def __enter__(self) -> Scheduler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._elastic.step()
            self.cpu_s = time.thread_time()
        self._elastic.resign()


@contextmanager
def devices(valkey: Valkey, folder: Path, setting: Setting) -> Iterator[None]:
    """All of them, present."""
    each = -(-setting.devices // DEVICE_PROCESSES)
    commands = [
        ["benchmarks.scale.devices", str(first), str(min(each, setting.devices - first)), str(setting.service_s),
         str(valkey.socket)]
        for first in range(0, setting.devices, each)
    ]  # fmt: skip
    log = folder / "devices.log"
    with redis.Redis.from_url(valkey.url) as client, processes(commands, log) as started:
        wait(lambda: client.zcard(Keys().devices) == setting.devices, f"{setting.devices} devices")
        yield
        if any(process.poll() is not None for process in started):
            raise RuntimeError(f"devices ended: {log.read_text()[-500:]}")
    for line in log.read_text().splitlines():
        if line.startswith("{") and (failed := json.loads(line)["failed"]):
            raise RuntimeError(f"devices failed: {failed}")


def idle(valkey: Valkey, setting: Setting) -> Point:
    """The devices and the probe alone."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client, Scheduler(valkey):
        time.sleep(setting.warm_up_s)
        before = _cpu(client)
        _probe(client, setting.window_s / 2, 0)
        cpu_s = _cpu(client) - before
        return Point(0, setting.window_s / 2, redis_cpu_s=cpu_s)


def measure(valkey: Valkey, folder: Path, jobs: int, setting: Setting) -> Point:
    """One number of jobs. Starts from the same Redis, but for the devices."""
    with (
        redis.Redis.from_url(valkey.url, decode_responses=True) as client,
        Scheduler(valkey) as scheduler,
        _controllers(folder, jobs, setting.seed) as controllers,
    ):
        _window(controllers)  # once it answers, all jobs run
        time.sleep(setting.warm_up_s)
        dataset = _dataset(client)
        _window(controllers)
        redis_cpu_s, scheduler_cpu_s = _cpu(client), scheduler.cpu_s
        probed = _probe(client, setting.window_s, jobs)
        redis_cpu_s, scheduler_cpu_s = _cpu(client) - redis_cpu_s, scheduler.cpu_s - scheduler_cpu_s
        found = _window(controllers)
        dataset = _dataset(client) - dataset
        log = ServerTime(client, SCRIPTS)
        log.start()
        time.sleep(setting.server_window_s)
        return Point(
            jobs=jobs,
            seconds=found["seconds"],
            candidates=found["candidates"],
            requests=found["requests"],
            results=found["results"],
            controller_cpu_s=found["cpu_s"],
            redis_cpu_s=redis_cpu_s,
            scheduler_cpu_s=scheduler_cpu_s,
            dataset_bytes=dataset,
            close_ms=found["close_ms"],
            probe_ms=probed,
            server_ms=log.stop(),
        )


@contextmanager
def _controllers(folder: Path, jobs: int, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.scale.controllers", str(jobs), str(seed)]
    with (folder / "controllers.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield process
        finally:
            process.terminate()  # it holds nothing
            process.wait(30)


def _window(controllers: subprocess.Popen[str]) -> dict[str, Any]:
    assert controllers.stdin is not None
    assert controllers.stdout is not None
    controllers.stdin.write("\n")
    controllers.stdin.flush()
    if not (line := controllers.stdout.readline()):
        raise RuntimeError("the controllers ended")
    return cast("dict[str, Any]", json.loads(line))


def _cpu(client: redis.Redis) -> float:
    found = cast("dict[str, float]", client.info("cpu"))
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


def _dataset(client: redis.Redis) -> int:
    """Bytes of all keys."""
    total, keys = 0, cast("list[str]", list(client.scan_iter(count=1000)))
    for first in range(0, len(keys), BATCH):
        pipe = client.pipeline(transaction=False)
        for key in keys[first : first + BATCH]:
            pipe.memory_usage(key)
        total += sum(size or 0 for size in pipe.execute())
    return total


def _probe(client: redis.Redis, seconds: float, number: int) -> list[float]:
    """Boundaries of a scope with a few requests queued, one after another, as a job elsewhere sees them, ms."""
    close, put, keys = client.register_script(script("close")), client.register_script(script("put")), Keys()
    found: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        scope = f"probe{number}/{len(found)}"
        for _ in range(QUEUED):
            tag = uuid.uuid4().hex
            put(args=keys.args("profile", tag, "{}", scope, "0", tag, "nobody", 0))
        begun = time.perf_counter()
        close(args=keys.args(scope, CLOSED_S, 1))
        found.append((time.perf_counter() - begun) * 1000)
        time.sleep(PROBE_S)
    return found
