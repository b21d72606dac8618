"""``python -m benchmarks.timing [--cpu | --gpu]``: can a measured time be believed?

* Identical kernels: the reference as its own candidate must come out at 1.00; how far it is from that (bias, a median
  over windows), and how far repeated windows scatter (coefficient of variation), within one pair of processes and from
  one pair to the next; on a CPU once more with a neighbour that streams memory on another core.
* Order: reference and candidate take turns in going first; what going first is worth.
* Kernels of known duration through the same window: twice the work takes twice the time (a CPU), a given number of
  nanoseconds takes that long (a GPU); the CPU clock against the wall clock of undisturbed runs and against cycles
  where the machine counts them; a copy of known bytes against the data sheet.

Bars: 2 % bias decides nothing that a search decides (a better kernel is 5 % faster and more); 3 % scatter is what a
mean of 40 runs should stay under on a machine of its own. Takes some 3 minutes on two undisturbed cores.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from benchmarks import timing_kernels
from benchmarks.figures import figure, machine
from benchmarks.timing_lab import Pair, busy, windows
from specgen.evaluation.build import ensure_support
from specgen.evaluation.environment import cpu_model
from specgen.evaluation.floors import datasheet
from specgen.evaluation.machines import copy_gb_s
from specgen.evaluation.nvml import driver_version
from specgen.evaluation.perf_events import PerfCounters
from specgen.evaluation.problems import load_problem
from specgen.evaluation.sandbox import LARGE_PAGES
from specgen.evaluation.stopwatch import CpuStopwatch
from specgen.evaluation.timing import Window

BIAS_PCT, SCATTER_PCT, CALIBRATION_PCT = 2.0, 3.0, 2.0
LAUNCH_MS = 0.005  # between the first event and a kernel's first instruction, and between its last and the second
IDENTICAL = {"cpu": ("T1", "T4", "T14", "T17"), "cuda": ("T2", "T4", "T16", "T17")}
CHAIN = (200_000, 400_000, 2_000_000, 4_000_000)
SPIN_NS = (10_000, 100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True)
class Sample:
    """Means of one window, in ms."""

    candidate: float
    reference: float
    first: float  # candidate over reference where the candidate went first
    second: float

    @property
    def speedup(self) -> float:
        """As an evaluation gives it."""
        return self.reference / self.candidate


def sample(window: Window) -> Sample:
    """The warm-ups are even in number: of the recorded runs those at even places had the candidate first."""
    turns = [
        statistics.fmean(window.candidate_ms[at::2]) / statistics.fmean(window.reference_ms[at::2]) for at in (0, 1)
    ]
    return Sample(statistics.fmean(window.candidate_ms), statistics.fmean(window.reference_ms), turns[0], turns[1])


def scatter_pct(values: list[float]) -> float:
    """Coefficient of variation."""
    return 100 * statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def identical(backend: str, core: int, pairs: int, repeats: int, neighbour: int | None) -> bool:
    """The reference as its own candidate; prints a line a problem, then the figures. True if the bars hold."""
    name = "with_neighbour_" if neighbour is not None else ""
    found: dict[str, list[list[Sample]]] = {}
    for task in IDENTICAL[backend]:
        pair = Pair.identical(load_problem(task, "cuda" if backend == "cuda" else "cpu"))
        with busy(neighbour, _streamer()) if neighbour is not None else nullcontext():
            found[task] = [[sample(window) for window in windows(pair, core, repeats)] for _ in range(pairs)]
        _print_task(task, found[task])
    everything = [one for groups in found.values() for group in groups for one in group]
    bias = max(abs(100 * (statistics.median(_speedups(groups)) - 1)) for groups in found.values())
    within = statistics.median(scatter_pct([one.speedup for one in group]) for g in found.values() for group in g)
    between = statistics.median(
        scatter_pct([statistics.fmean(one.speedup for one in group) for group in groups]) for groups in found.values()
    )
    order = 100 * (statistics.median(one.second / one.first for one in everything) - 1)
    barred = neighbour is None
    rows = [
        figure(f"timing_{name}identical_bias_max", bias, "%", f"<= {BIAS_PCT:g}", bias <= BIAS_PCT),
        figure(
            f"timing_{name}speedup_scatter_within", within, "%", f"<= {SCATTER_PCT:g}" if barred else "",
            within <= SCATTER_PCT if barred else None,
        ),
        figure(
            f"timing_{name}speedup_scatter_between", between, "%", f"<= {SCATTER_PCT:g}" if barred else "",
            between <= SCATTER_PCT if barred else None,
        ),
    ]  # fmt: skip
    figure(f"timing_{name}going_second_costs", order, "%", "", None)
    for side in ("candidate", "reference"):
        values = [scatter_pct([getattr(one, side) for one in group]) for g in found.values() for group in g]
        figure(f"timing_{name}{side}_scatter_within", statistics.median(values), "%", "", None)
    return all(row["holds"] is not False for row in rows)


def _speedups(groups: list[list[Sample]]) -> list[float]:
    return [one.speedup for group in groups for one in group]


def _print_task(task: str, groups: list[list[Sample]]) -> None:
    speedups = _speedups(groups)
    flat = [one for group in groups for one in group]
    print(
        f"{task:4} candidate {statistics.fmean(one.candidate for one in flat):8.4f} ms,"
        f" reference {statistics.fmean(one.reference for one in flat):8.4f} ms; speedup median"
        f" {statistics.median(speedups):.4f}, from {min(speedups):.4f} to {max(speedups):.4f}",
        flush=True,
    )


def _streamer() -> Callable[[], object]:
    """Work for a neighbour: copies of 64 MiB, which leave neither cache nor memory alone."""
    source = bytearray(64 << 20)
    return lambda: bytes(source)


def chain(core: int, support: str) -> bool:
    """Twice the operations, twice the time: of candidates in windows, and of the stopwatch by itself; and the CPU clock
    against others. Of the shortest runs: what neighbours do to a core only ever adds. True if the bars hold."""
    shortest = {}
    for count in (0, *CHAIN):
        pair = Pair("chain", timing_kernels.problem("cpu", count), timing_kernels.candidate("cpu"), support)
        times = windows(pair, core, 1)[0].candidate_ms
        shortest[count] = min(times)
        print(f"{count:8} dependent operations: {min(times):.4f} ms, scatter {scatter_pct(times):.2f} %", flush=True)
    figure("timing_of_an_empty_call", 1e3 * shortest[0], "us", "", None)
    for count in CHAIN[::2]:
        ratio = (shortest[2 * count] - shortest[0]) / (shortest[count] - shortest[0])
        figure(f"timing_in_a_window_twice_{count}", ratio, "x", "", None)
    return clocks(core)


def clocks(core: int) -> bool:
    """The stopwatch alone: linear, as fast as the wall clock where nobody disturbs, and beside cycles if counted."""
    os.sched_setaffinity(0, {core})
    known, counters = _plain_chain(), PerfCounters(os.getpid())
    rows = []
    for count in CHAIN[::2]:
        once, twice = (min(cpu for cpu, _ in _both_clocks(known, n)) for n in (count, 2 * count))
        print(f"stopwatch alone, {count} operations: {once / 1e6:.4f} ms, twice as many {twice / once:.4f} of that")
        rows.append(_within(f"timing_twice_the_work_error_{once / 1e6:.1f}ms".replace(".", "_"), twice / once / 2))
    with counters.counting():
        pairs = _both_clocks(known, CHAIN[0])
    cycles = counters.per_run(len(pairs))["cycles"]
    counters.close()
    # A disturbance only ever adds wall time: the tenth with the least of it were undisturbed.
    calm = statistics.fmean(sorted(wall / cpu for cpu, wall in pairs)[: len(pairs) // 10])
    rows.append(_within("timing_cpu_clock_against_wall", calm))
    if cycles is None:
        print(f"no cycle counter on this machine ({counters.missing.get('cycles', 'not scheduled')})")
    else:
        spent = statistics.fmean(cpu for cpu, _ in pairs)
        print(f"{cycles / spent:.3f} GHz by the cycle counter, {cycles / CHAIN[0]:.3f} cycles an operation")
    return all(rows)


def _within(name: str, ratio: float) -> bool:
    """Print how far a ratio is from one, against the bar of calibration."""
    error = 100 * abs(ratio - 1)
    return bool(figure(name, error, "%", f"<= {CALIBRATION_PCT:g}", error <= CALIBRATION_PCT)["holds"])


def _both_clocks(known: Callable[[int], object], count: int, runs: int = 400) -> list[tuple[int, int]]:
    """Nanoseconds of each run: by the stopwatch, and by the wall clock inside of it."""
    watch, found = CpuStopwatch(), []

    def timed() -> int:
        start = time.perf_counter_ns()
        known(count)
        return time.perf_counter_ns() - start

    for _ in range(runs):
        wall, spent = watch.time(timed)
        found.append((spent, wall))
    return found


def _plain_chain() -> Callable[[int], object]:
    source = """
#include <stdint.h>
uint64_t known(int64_t count) {
  uint64_t value = 1;
  for (int64_t i = 0; i < count; ++i) {
    value = value * 6364136223846793005ull + 1442695040888963407ull;
    asm volatile("" : "+r"(value));
  }
  return value;
}
"""
    place = Path(tempfile.mkdtemp(prefix="specgen-timing-"))
    (place / "known.c").write_text(source)
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-o", str(place / "known.so"), str(place / "known.c")], check=True
    )
    function = ctypes.CDLL(str(place / "known.so")).known
    function.argtypes = [ctypes.c_int64]
    return cast("Callable[[int], object]", function)


def spin(support: str) -> bool:
    """Kernels that last a given time by the GPU's own clock. True if the bars hold."""
    rows = []
    for ns in SPIN_NS:
        pair = Pair("spin", timing_kernels.problem("cuda", ns), timing_kernels.candidate("cuda"), support)
        times = windows(pair, 0, 1)[0].candidate_ms
        asked, got = ns / 1e6, statistics.median(times)
        print(f"asked {asked:.3f} ms, measured {got:.4f} ms, scatter {scatter_pct(times):.2f} %", flush=True)
        allowed = max(CALIBRATION_PCT / 100 * asked, LAUNCH_MS)
        name = f"timing_known_duration_error_{ns // 1000}us"
        bar = f"<= {1e3 * allowed:g}"
        rows.append(figure(name, 1e3 * abs(got - asked), "us", bar, abs(got - asked) <= allowed))
    return all(row["holds"] for row in rows)


def copy() -> bool:
    """A copy of 2 GiB against the data sheet: never above it, and not far below."""
    name = torch.cuda.get_device_name()
    sheet, measured = datasheet(name), copy_gb_s("cuda", 2 << 30)
    print(f"{name}: a copy moves {measured:.0f} GB/s")
    if sheet is None:
        figure("timing_copy_of_datasheet", 0, "share", "", None)
        return True
    share = measured / sheet.gb_s
    return bool(figure("timing_copy_of_datasheet", share, "share", "0.8 to 1", 0.8 <= share <= 1)["holds"])


def run(options: argparse.Namespace) -> bool:
    cores = sorted(os.sched_getaffinity(0))
    parts = options.only or ("identical", "neighbour", "known", "copy")
    support = str(ensure_support(options.cache)) if "known" in parts else ""
    backend = "cuda" if options.gpu else "cpu"
    held = True
    if "identical" in parts:
        held &= identical(backend, cores[0], options.pairs, options.windows, None)
    if "neighbour" in parts and backend == "cpu" and len(cores) > 1:
        held &= identical(backend, cores[0], options.pairs, options.windows, cores[1])
    if "known" in parts:
        held &= spin(support) if options.gpu else chain(cores[0], support)
    if "copy" in parts and options.gpu:
        held &= copy()
    return held


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timing", description=__doc__.partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="this machine's first core (default)")
    parser.add_argument("--gpu", action="store_true", help="this machine's first GPU")
    parser.add_argument("--pairs", type=int, default=4, metavar="N", help="fresh pairs of processes a problem")
    parser.add_argument("--windows", type=int, default=3, metavar="N", help="windows in each pair")
    parser.add_argument("--only", nargs="*", choices=("identical", "neighbour", "known", "copy"), help="only these")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "specgen-build-bench")
    options = parser.parse_args()
    if options.gpu and not Path("/proc/driver/nvidia/version").exists():
        parser.error("no NVIDIA GPU here; --cpu measures this machine's first core")
    if not LARGE_PAGES.items() <= os.environ.items():  # a cell's processes are started with them
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.timing", *sys.argv[1:]], os.environ | LARGE_PAGES)
    on = f"driver {driver_version()}" if options.gpu else cpu_model()
    print(f"{machine()}, torch {torch.__version__}, {on}, load {os.getloadavg()[0]:.1f}")
    return 0 if run(options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
