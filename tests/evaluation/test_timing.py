"""The clock: a known amount of work takes a known time, on both sides of a window. Margins are wide: see
``python -m benchmarks.timing`` for figures."""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.timing_lab import Pair, windows
from specgen.evaluation.stopwatch import CpuStopwatch, stopwatch
from specgen.types import ProblemSpec
from tests.evaluation.conftest import CORE

CHAIN = """
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
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(6):
            x = torch.sin(x)
        return x

def get_inputs():
    return [torch.rand(200, 200)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    place = tmp_path_factory.mktemp("chain")
    (place / "chain.c").write_text(CHAIN)
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(place / "chain.so"), str(place / "chain.c")]
    subprocess.run(command, check=True, timeout=60)
    known = ctypes.CDLL(str(place / "chain.so")).known
    known.argtypes = [ctypes.c_int64]
    return known  # type: ignore[no-any-return]


def shortest_ms(call: Callable[[], object], runs: int = 15) -> float:
    watch = CpuStopwatch()
    return min(watch.time(call)[1] for _ in range(runs)) / 1e6


def test_twice_the_work_takes_twice_the_time(chain: Callable[[int], int]) -> None:
    once, twice, ten_times = (shortest_ms(lambda n=n: chain(n)) for n in (500_000, 1_000_000, 5_000_000))
    assert twice / once == pytest.approx(2, rel=0.25)
    assert ten_times / once == pytest.approx(10, rel=0.25)


def test_the_clock_is_no_slower_than_the_wall(chain: Callable[[int], int]) -> None:
    watch, shares = CpuStopwatch(), []
    for _ in range(30):
        start = time.perf_counter_ns()
        _, spent = watch.time(lambda: chain(2_000_000))
        shares.append(spent / (time.perf_counter_ns() - start))
    assert max(shares) <= 1.01  # CPU time cannot exceed the wall time of one thread
    assert max(shares) >= 0.5  # and the least disturbed of them ran for most of it


def test_sleeping_is_no_time_of_a_cpu_device() -> None:
    _, spent = stopwatch("cpu").time(lambda: time.sleep(0.2))
    assert spent < 0.1e9


def test_freed_memory_is_kept(tmp_path: Path) -> None:
    """A forward finds the pages of the one before: no page faults in what is timed. A machine short of memory may take
    some back meanwhile, not each time."""
    script = tmp_path / "kept.py"
    script.write_text(
        "import resource, torch\n"
        "from specgen.evaluation.stopwatch import CpuStopwatch\n"
        "torch.set_num_threads(1)\n"
        "watch = CpuStopwatch()\n"
        "forward = lambda: [torch.ones(4 << 20), torch.ones(4 << 20)]\n"  # two blocks of 16 MiB, at the heap's top
        "for _ in range(3): watch.time(forward)\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "marks = [(faults(), watch.time(forward))[0] for _ in range(6)]\n"
        "print(min(after - before for before, after in zip(marks, marks[1:])))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=100,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip
    assert int(done.stdout) < 1000  # 32 MiB are 8192 pages


def test_the_reference_as_its_own_candidate_is_as_fast_as_the_reference() -> None:
    pair = Pair.identical(ProblemSpec(name="sines", source=PROBLEM, tolerance=1e-4))
    found = windows(pair, CORE, 2, warmups=4, runs=20)
    ratios = [a / b for window in found for a, b in zip(window.reference_ms, window.candidate_ms, strict=True)]
    assert len(ratios) == 40
    assert statistics.median(ratios) == pytest.approx(1, rel=0.25)
