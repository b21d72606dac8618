"""What the device under a problem can do: measured where it is present, else by data sheet.

Everything is timed as runs are, by :mod:`specgen.evaluation.stopwatch`, and the best of many counts: a copy of the same
working set and hot on a CPU, of more than the cache holds on a GPU; products of matrices. Nothing on the device moves
bytes or multiplies much faster, which is what floors rest on. Not here: keeping what was measured
(:mod:`specgen.evaluation.ceilings`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specgen.evaluation.environment import cpu_model
from specgen.evaluation.floors import DATASHEETS, usable_gflop_s
from specgen.evaluation.stopwatch import stopwatch

_MOST_RUNS = 100
_SMALLEST, _LARGEST = 14, 27  # working sets of a CPU's copies, as powers of two: 16 KiB to 128 MiB
_GPU_COPY_BYTES = 2 << 30  # half of it is read, half is written
_SIDE = {"cpu": 768, "cuda": 8192}  # of the products
_COPY_S = {"cpu": 0.02, "cuda": 0.1}
_PRODUCTS_S = {"cpu": 0.06, "cuda": 0.3}


@dataclass(frozen=True)
class Limits:
    """Rates of one device at one working set and tolerance. ``source`` says where they come from."""

    device: str
    source: str
    gb_s: float
    gflop_s: float


def present(backend: str) -> bool:
    """Whether this machine can run problems of a backend."""
    return backend == "cpu" or torch.cuda.is_available()


def free_bytes(backend: str) -> int:
    """Memory that is free on the device now."""
    if backend == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    import psutil

    return int(psutil.virtual_memory().available)  # type: ignore[no-untyped-call]


def limits(backend: str, moved_bytes: int, tolerance: float) -> Limits:
    """The bandwidth of a copy of that size, and the fastest products that can meet the tolerance."""
    if not present(backend):
        sheet = DATASHEETS[0]
        gflop_s = usable_gflop_s(sheet.gflop_s["bf16"], sheet.gflop_s["fp32"], tolerance)
        return Limits(sheet.device, "NVIDIA's data sheet", sheet.gb_s, gflop_s)
    fp32, bf16 = products_gflop_s(backend), products_gflop_s(backend, torch.bfloat16)
    device = torch.cuda.get_device_name() if backend == "cuda" else cpu_model()
    gb_s = copy_gb_s(backend, moved_bytes)
    return Limits(device, "measured here", gb_s, usable_gflop_s(bf16, fp32, tolerance))


def times_ms(call: Callable[[], object], backend: str, budget_s: float) -> list[float]:
    """Run times after one warm-up: at least one, as many as fit into the budget, at most 100."""
    watch = stopwatch(backend)
    clock = time.monotonic if backend == "cuda" else time.process_time  # neighbours take no runs away
    call()
    found: list[float] = []
    end = clock() + budget_s
    while not found or (clock() < end and len(found) < _MOST_RUNS):
        found.append(watch.time(call)[1] / 1e6)
    return found


def size_class(nbytes: int) -> int:
    """Working sets of a CPU's copies that are measured once, as a power of two."""
    return min(_LARGEST, max(_SMALLEST, nbytes.bit_length()))


def copy_gb_s(backend: str, nbytes: int) -> float:
    """The bandwidth of a copy whose reads and writes together are about ``nbytes``, measured now (a GPU's best)."""
    moved = 1 << size_class(nbytes) if backend == "cpu" else _GPU_COPY_BYTES
    source = torch.ones(moved // 8, device=backend)  # float32: half of the working set
    target = torch.empty_like(source)
    return moved / min(times_ms(lambda: target.copy_(source), backend, _COPY_S[backend])) / 1e6


def products_gflop_s(backend: str, dtype: torch.dtype = torch.float32) -> float:
    """Matrix products, as torch does them by default, measured now."""
    side = _SIDE[backend]
    a, b = (torch.rand(side, side, device=backend).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return float(2 * side**3 / min(times_ms(lambda: torch.mm(a, b, out=out), backend, _PRODUCTS_S[backend])) / 1e6)
