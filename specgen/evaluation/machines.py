"""What the device under a problem can do: measured where it is present, else by data sheet.

A CPU is measured by the CPU clock of one thread, as runs are timed; a GPU by events. Not here: the judge's cached
ceilings (:mod:`specgen.evaluation.ceilings`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specgen.evaluation.ceilings import copy_gb_s
from specgen.evaluation.environment import cpu_model
from specgen.evaluation.floors import DATASHEETS, usable_gflop_s

_MOST_RUNS = 100
_GPU_COPY_BYTES = 2 << 30
_SIDE = {"cpu": (768, 256), "cuda": (8192, 8192)}  # of the products measured in fp32 and in bfloat16


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
    fp32, bf16 = (
        _products(backend, side, dtype)
        for side, dtype in zip(_SIDE[backend], (torch.float32, torch.bfloat16), strict=True)
    )
    device = torch.cuda.get_device_name() if backend == "cuda" else cpu_model()
    gb_s = _gpu_copy_gb_s() if backend == "cuda" else copy_gb_s(moved_bytes)
    return Limits(device, "measured here", gb_s, usable_gflop_s(bf16, fp32, tolerance))


def times_ms(call: Callable[[], object], backend: str, budget_s: float) -> list[float]:
    """Run times after one warm-up: at least one, as many as fit into the budget, at most 100."""
    call()
    found: list[float] = []
    end = time.monotonic() + budget_s
    while not found or (time.monotonic() < end and len(found) < _MOST_RUNS):
        found.append(_gpu_ms(call) if backend == "cuda" else _cpu_ms(call))
    return found


def _cpu_ms(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def _gpu_ms(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _gpu_copy_gb_s() -> float:
    source = torch.ones(_GPU_COPY_BYTES // 8, device="cuda")
    target = torch.empty_like(source)
    return _GPU_COPY_BYTES / min(times_ms(lambda: target.copy_(source), "cuda", 0.1)) / 1e6


def _products(backend: str, side: int, dtype: torch.dtype) -> float:
    a, b = (torch.rand(side, side, device=backend).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=backend, dtype=dtype)
    return float(2 * side**3 / min(times_ms(lambda: torch.mm(a, b, out=out), backend, 0.1)) / 1e6)
