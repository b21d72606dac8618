"""One subject by one route, in a process of its own: it may crash, hang or leave a device unusable.

``python -m benchmarks.build_worker '<json job>'``. What was built and every outcome so far lie in the job's output file
at any time, so that an end without a word loses nothing. Not here: which subjects, comparing, limits for the build.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.build_cases import Value
from benchmarks.build_subjects import Corpus, Subject, find
from specgen.evaluation.build import install

_CHUNK = 1 << 25  # bytes
_WHOLE = 1 << 20  # elements up to which a tensor is kept whole
_TIMED_S = 2.0  # at most, for the comparison of speeds
_TIMED_RUNS = 200


@dataclass(frozen=True)
class Job:
    """``speed``: the kernel's time by both routes, from the caches that two earlier jobs filled."""

    corpus: Corpus
    name: str
    route: Literal["auto", "stock", "speed"]
    support: str
    directory: str  # of the pair: caches, written files, results
    run_limit_s: int  # for all calls together; past it the process dies of SIGALRM

    @property
    def output(self) -> Path:
        """Where the results are kept."""
        return Path(self.directory) / f"{self.route}.pt"

    def cache(self, route: str) -> Path:
        """The build cache of a route."""
        return Path(self.directory) / f"cache-{route}"


@dataclass
class Report:
    """``error`` is the exception of a failed build or import, as (type, message)."""

    route: str = ""
    fallback: str = ""
    error: tuple[str, str] | None = None
    wall_s: float = 0.0  # of the builds, loading included
    cpu_s: float = 0.0  # of the compilers
    speed_ratio: float | None = None  # façade's time over stock's
    finished: bool = False


def main(text: str) -> None:
    job = Job(**json.loads(text))
    torch.set_num_threads(1)
    subject = find(job.corpus, job.name)
    report = Report()
    outcomes: list[Value] = []
    if job.route == "speed":
        signal.alarm(job.run_limit_s)
        report.speed_ratio = _speed_ratio(job, subject)
    else:
        made = _build(job, subject, report)
        _save(job, report, outcomes)
        if made is not None:
            with _device_alone(job):
                signal.alarm(job.run_limit_s)  # its default action ends the process, wherever it is
                for call in subject.calls:
                    outcomes.append(_outcome(call, made))
                    _save(job, report, outcomes)
    report.finished = True
    _save(job, report, outcomes)


def _build(job: Job, subject: Subject, report: Report) -> Any:
    route: Any = job.route
    log = install(job.cache(route), mode=route, support=Path(job.support), timeout_s=1200)
    before = _compilers_s()
    try:
        made = subject.build(Path(job.directory))
    except Exception as error:
        made = None
        report.error = type(error).__name__, str(getattr(error, "message", error))
    report.cpu_s, report.wall_s = _compilers_s() - before, log.seconds
    report.route = log.route
    report.fallback = "; ".join(build.fallback for build in log.builds if build.fallback)
    return made


def _outcome(call: Callable[[Any], Value], made: Any) -> Value:
    try:
        result = call(made)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return portable(result)
    except torch.OutOfMemoryError as error:  # its words count this moment's bytes and processes
        return type(error).__name__, ". ".join(str(error).split(". ")[:2])
    except Exception as error:
        return type(error).__name__, str(error).split("\nException raised from")[0]


def portable(value: Value) -> Value:
    """On the CPU; of a large tensor every element in a sum of its bits, and a sample."""
    if isinstance(value, torch.Tensor):
        if value.numel() <= _WHOLE:
            return value.detach().cpu()
        flat = value.detach().contiguous().view(-1)
        sample = flat[:: flat.numel() // 65536].cpu()
        return ["large", list(value.shape), str(value.dtype), sample, _sum_of_bytes(flat.view(torch.uint8))]
    if isinstance(value, list | tuple):
        return type(value)(portable(part) for part in value)
    return value


def _sum_of_bytes(data: torch.Tensor) -> int:
    """Each byte times a weight of its place: any change of one shows."""
    total = 0
    for start in range(0, data.numel(), _CHUNK):
        part = data[start : start + _CHUNK].to(torch.int64)
        total += (start % 8191 + 1) * int((part * (torch.arange(part.numel(), device=part.device) % 8191 + 1)).sum())
    return total


def _speed_ratio(job: Job, subject: Subject) -> float:
    """Median time of one call by the façade over stock's: interleaved, each route first half of the time."""
    made = []
    for route in ("auto", "stock"):
        log = install(job.cache(route), mode=route, support=Path(job.support))
        made.append(subject.build(Path(job.directory)))
        if log.route != "cached":
            raise RuntimeError(f"{job.name} is not in the cache of {route}")
    call = subject.calls[subject.speed or 0]
    times: tuple[list[float], list[float]] = ([], [])
    with _device_alone(job):
        for turn in (0, 1) * 5:  # warm
            _timed(call, made[turn])
        end = time.perf_counter() + _TIMED_S
        for index in range(_TIMED_RUNS):
            for turn in (0, 1) if index % 2 else (1, 0):
                times[turn].append(_timed(call, made[turn]))
            if index >= 10 and time.perf_counter() > end:
                break
    return statistics.median(times[0]) / statistics.median(times[1])


def _timed(call: Callable[[Any], Value], made: Any) -> float:
    """Seconds of one call: by events where there is a device, else by the clock."""
    if not torch.cuda.is_available():
        started = time.perf_counter()
        call(made)
        return time.perf_counter() - started
    event: Any = torch.cuda.Event
    start, stop = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call(made)
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1000


class _device_alone:
    """Several pairs build at once; a device runs one at a time."""

    def __init__(self, job: Job) -> None:
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")  # the context takes a second, and needs nobody to wait
        self.file = (Path(job.directory).parent / "device.lock").open("a")

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _compilers_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _save(job: Job, report: Report, outcomes: list[Value]) -> None:
    draft = job.output.with_suffix(".draft")
    torch.save({"report": asdict(report), "outcomes": outcomes}, draft)
    os.replace(draft, job.output)


if __name__ == "__main__":
    main(sys.argv[1])
