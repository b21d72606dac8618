"""A GPU's clock against kernels of known duration and a copy of known bytes. Prints what it ran on."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import timing_kernels
from benchmarks.timing_lab import Pair, windows
from specgen.evaluation.floors import datasheet
from specgen.evaluation.problems import load_problem

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> str:
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("no NVIDIA GPU here")
    named = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    print(named)  # noqa: T201  what it ran on
    return named


@pytest.fixture(scope="module")
def support(cache_root: Path) -> str:
    from specgen.evaluation.build import ensure_support

    return str(ensure_support(cache_root))


@pytest.mark.parametrize("ns", [100_000, 1_000_000, 10_000_000])
def test_a_kernel_of_known_duration_is_measured_as_that(support: str, ns: int) -> None:
    pair = Pair("spin", timing_kernels.problem("cuda", ns), timing_kernels.candidate("cuda"), support)
    found = statistics.median(windows(pair, 0, 1, warmups=4, runs=20)[0].candidate_ms)
    print(f"asked {ns / 1e6} ms, measured {found:.4f} ms")  # noqa: T201
    assert found == pytest.approx(ns / 1e6, rel=0.1, abs=0.02)


def test_the_reference_as_its_own_candidate_is_as_fast_as_the_reference() -> None:
    found = windows(Pair.identical(load_problem("T17", "cuda")), 0, 1)[0]
    ratio = statistics.fmean(found.reference_ms) / statistics.fmean(found.candidate_ms)
    print(f"identical kernels: {ratio:.4f}")  # noqa: T201
    assert ratio == pytest.approx(1, rel=0.1)


def test_a_copy_is_no_faster_than_the_data_sheet(gpu: str) -> None:
    """In a process of its own: this one must stay free of CUDA for the fixtures that fork."""
    sheet = datasheet(gpu)
    if sheet is None:
        pytest.skip(f"no data sheet of this device: {gpu}")
    code = "from specgen.evaluation.machines import copy_gb_s; print(copy_gb_s('cuda', 2 << 30))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    print(f"a copy moves {float(done.stdout):.0f} of {sheet.gb_s:.0f} GB/s")  # noqa: T201
    assert 0.6 * sheet.gb_s <= float(done.stdout) <= sheet.gb_s
