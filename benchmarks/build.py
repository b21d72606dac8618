"""``python -m benchmarks.build --cpu``: the façade against stock, same machine, same sources, same verdicts.

Each source of the corpus is built by both routes; CPU seconds are those of the compilers (the bar's unit, because a
shared machine does not change them much), and every result and message of the built modules is compared bit for bit.
One kernel is timed by either route. Takes about half a minute of CPU a source, nearly all of it stock's.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch.utils import cpp_extension

from benchmarks.build_cases import Case, outcome, same, tensor
from benchmarks.build_more_cases import ALL_CASES
from benchmarks.figures import figure, machine
from specgen.evaluation.build import BuildFailed, BuildLog, ensure_support, install

BAR = 15.0
SPEED_BAR = 1.05  # a kernel by either route: at most 5 % apart


@dataclass(frozen=True)
class Built:
    """One case by one route. ``module`` is None where it did not build; then ``error`` is the message."""

    module: ModuleType | None
    error: str
    cpu_s: float
    wall_s: float
    log: BuildLog


def build(case: Case, mode: Literal["auto", "stock"], support: Path) -> Built:
    cache = Path(tempfile.mkdtemp(prefix="bench-build-"))
    log = install(cache, mode=mode, support=support)
    load: Any = cpp_extension.load_inline
    before, started = _children_s(), time.perf_counter()
    module, error = None, ""
    try:
        module = load(**case.arguments())
    except BuildFailed as failed:
        error = failed.message
    return Built(module, error, _children_s() - before, time.perf_counter() - started, log)


def agree(case: Case, fast: Built, slow: Built) -> list[str]:
    """What differs between the routes: an empty list is the same verdict."""
    if fast.module is None or slow.module is None:
        here, there = (" ".join(_errors(built.error)) for built in (fast, slow))
        return [] if here == there else [f"{case.name}: {here!r} instead of {there!r}"]
    differing = []
    for index, call in enumerate(case.calls):
        got, official = (_comparable(outcome(call, module)) for module in (fast.module, slow.module))
        if not same(got, official, exactly=True):
            differing.append(f"{case.name}, call {index}: {got!r} instead of {official!r}")
    return differing


def speed_ratio(fast: ModuleType, slow: ModuleType) -> float:
    """Median time of one kernel by the façade over stock's: runs interleaved, each route first half of the time."""
    a, b = tensor(256, 256), tensor(256, 256, seed=1)
    times: dict[ModuleType, list[float]] = {fast: [], slow: []}
    for index in range(400):
        for module in (fast, slow) if index % 2 else (slow, fast):
            started = time.perf_counter()
            module.matmul(a, b)
            times[module].append(time.perf_counter() - started)
    return statistics.median(times[fast][20:]) / statistics.median(times[slow][20:])


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if "error:" in line]


def _comparable(value: Any) -> Any:
    """Without the backtrace that torch appends where its own wrapper does not translate the exception."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return value[0], value[1].split("\nException raised from")[0]
    return value


@dataclass
class Tally:
    """What the whole corpus gave."""

    cpu: list[float] = field(default_factory=list)  # stock over façade, CPU seconds
    wall: list[float] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    kernel: float | None = None

    def add(self, case: Case, fast: Built, slow: Built) -> None:
        """Compare one case's two builds and print its line."""
        build_log = fast.log.builds[0]
        self.differing += agree(case, fast, slow)
        if build_log.route != case.route:
            self.unexpected.append(f"{case.name}: {build_log.route} ({build_log.fallback})")
        if build_log.route == "facade":
            self.cpu.append(slow.cpu_s / fast.cpu_s)
            self.wall.append(slow.wall_s / fast.wall_s)
        if case.name == "tiled_matmul" and fast.module is not None and slow.module is not None:
            self.kernel = speed_ratio(fast.module, slow.module)
        print(
            f"{case.name:28} {build_log.route:7} {fast.cpu_s:6.2f} s CPU, stock {slow.cpu_s:6.2f} s;"
            f" wall {fast.wall_s:.2f} and {slow.wall_s:.2f} s",
            flush=True,
        )


def run_cpu(cases: list[Case], support: Path) -> bool:
    """Build and compare them all; prints a line a source, then the figures. True if every bar holds."""
    tally = Tally()
    for case in cases:
        tally.add(case, build(case, "auto", support), build(case, "stock", support))
    for line in [*tally.differing, *tally.unexpected]:
        print(line)
    rows = []
    if tally.cpu:
        median = statistics.median(tally.cpu)
        rows.append(figure("build_cpu_seconds_ratio_median", median, "x", f">= {BAR:g}", median >= BAR))
        figure("build_cpu_seconds_ratio_min", min(tally.cpu), "x", "", None)
        figure("build_wall_ratio_median", statistics.median(tally.wall), "x", "", None)
    compared = sum(len(case.calls) or 1 for case in cases)
    rows.append(figure("build_pairs_compared", len(cases), "sources", ">= 1", bool(cases)))
    share = 1 - len(tally.differing) / max(1, compared)
    rows.append(figure("build_same_verdicts", share, "share", "= 1", not tally.differing))
    share = 1 - len(tally.unexpected) / max(1, len(cases))
    rows.append(figure("build_expected_routes", share, "share", "= 1", not tally.unexpected))
    if tally.kernel is not None:
        holds = tally.kernel <= SPEED_BAR
        rows.append(figure("build_kernel_time_facade_over_stock", tally.kernel, "x", f"<= {SPEED_BAR:g}", holds))
    return all(row["holds"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.build", description=__doc__)
    parser.add_argument("--cpu", action="store_true", required=True, help="the CPU corpus")
    parser.add_argument("--limit", type=int, default=len(ALL_CASES), metavar="N", help="only the first N sources")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="only these sources")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "specgen-build-bench")
    options = parser.parse_args()
    cases = [case for case in ALL_CASES if not options.only or case.name in options.only][: options.limit]
    print(f"{machine()}, torch {torch.__version__}, {len(cases)} sources")
    return 0 if run_cpu(cases, ensure_support(options.cache)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
