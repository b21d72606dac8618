"""What a design of the synthetic model would take on one core: a roofline of its memory traffic and its arithmetic.

A model, not a measurement. Its numbers are a core's of about 2020 (12 GB/s, 2.5 GHz) and the sizes of the shipped CPU
problems; nothing is read from `Option.quality`, by which the synthetic model chooses, so that what it believes and
what is fast agree in the main and not everywhere (it prefers ordinary stores where streaming saves a third).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from specgen.llm.synthetic.design import Design

BYTES_PER_US = 12e3
CYCLES_PER_US = 2.5e3
_LANES = {"scalar": 1.0, "omp": 7.0, "avx2": 8.0, "avx512": 14.0}  # AVX-512 lowers the clock
_CALL_US = 8.0


@dataclass(frozen=True)
class Work:
    """Of one call: bytes that pass the memory bus, and elements with the cycles of a scalar one."""

    bytes: float
    elements: float
    cycles: float
    chained: bool = False  # each depends on the one before, but for independent accumulators


def microseconds(task: str, design: Design) -> float:
    """Time of one call of a kernel of that design. Raises KeyError for a task that is not `MODELLED`."""
    return _CALL_US + sum(_time(work, design) for work in _WORK[task](design))


def speedup(task: str, design: Design) -> float:
    """Over the reference run eagerly by the same model."""
    return REFERENCE_US[task] / microseconds(task, design)


def _time(work: Work, design: Design) -> float:
    memory = work.bytes / BYTES_PER_US * _strides(design)
    compute = work.elements * work.cycles / (_lanes(work, design) * _parallel(work, design)) / CYCLES_PER_US
    loops = work.elements / int(design["tile"]) * 6 / CYCLES_PER_US  # the start of each segment
    slow = 1.6 if design["flags"] == "o1" else 1.0 if design["flags"] == "o3" else 0.97
    return math.hypot(memory, (compute + loops) * slow)  # they overlap, not perfectly


def _strides(design: Design) -> float:
    """Walking down columns in narrow tiles defeats the prefetcher and the TLB; wide ones hardly."""
    return 1.0 if design["order"] in ("rows", "hidden", "batch") else 1.0 + 2.5 * 16 / int(design["tile"])


def _lanes(work: Work, design: Design) -> float:
    lanes = _LANES[design["simd"]]
    if work.chained and "acc" in design and design["acc"] == "double" and design["simd"] in ("scalar", "omp"):
        lanes /= 1.5  # conversions; intrinsics add up in floats anyway
    return lanes


def _parallel(work: Work, design: Design) -> float:
    """Share of the peak: a chain of additions waits for itself, more chains than registers spill."""
    unroll = int(design["unroll"]) if design["simd"] in ("avx2", "avx512") else 4 if design["flags"] == "fast" else 1
    spill = 0.85 if unroll == 8 and design["simd"] == "avx2" else 1.0
    return spill * (min(1.0, 0.25 * unroll) if work.chained else 0.8 + 0.05 * min(unroll, 4))


def _hinge(design: Design) -> list[Work]:
    n = 1024 * 4096.0
    sums = Work(4 * n, n, 3, chained=True)
    extra = {
        "materialise": [Work(12 * n, n, 3), Work(4 * n, n, 1, chained=True)],
        "row_sums": [sums, Work(8e3, 1024, 2, chained=True)],
        "fused": [sums],
    }
    return extra[design["algo"]]


def _diagonal(design: Design) -> list[Work]:
    n = 1024.0 * 1024
    read_for_ownership = 0 if design["store"] == "stream" and design["simd"] in ("avx2", "avx512") else 4 * n
    zeros = 4 * n if design["alloc"] == "zeros" or design["algo"] != "row_scale" else 0
    once = Work(8 * n + read_for_ownership + zeros, n, 1)
    dense = Work(8 * n, n, 0.5)  # the diagonal matrix itself
    if design["algo"] == "row_scale":
        return [once]
    if design["algo"] == "skip_zeros":
        return [once, dense, Work(4 * n, n, 1.5)]
    block = min(128.0, float(design["tile"]))
    return [once, dense, Work(4 * n, n * block, 1)]


def _chain(design: Design) -> list[Work]:
    n = 1024 * 2048.0
    gelu = 22.0 if design["erf"] == "rational" else 45.0 * _LANES[design["simd"]] ** 0.85  # libm knows no vectors
    zeros = 4 * n if design["alloc"] == "zeros" else 0
    passes = {
        "fused": [Work(16 * n + zeros, n, gelu + 6)],
        "two_passes": [Work(12 * n + zeros, n, gelu + 3), Work(12 * n, n, 3)],
        "three_passes": [Work(12 * n + zeros, n, 3), Work(8 * n, n, gelu), Work(12 * n, n, 3)],
    }
    return passes[design["algo"]]


def _gemm_sum(design: Design) -> list[Work]:
    batch, inner, hidden = 256.0, 1024.0, 1024.0
    products = batch * inner * hidden
    reuse = 32.0 if design["order"] == "batch" else 16.0  # of a weight row once it is in a cache
    gemm = Work(4 * products / reuse, products, 1, chained=True)
    if design["algo"] == "column_sum":
        added = Work(4 * inner * hidden, inner * hidden, 1)
        return [added, Work(4 * batch * inner, batch * inner, 1, chained=True)]
    return [gemm] if design["algo"] == "fused_rows" else [gemm, Work(12 * batch * hidden, batch * hidden, 2)]


_WORK: dict[str, Callable[[Design], list[Work]]] = {
    "T1": _hinge,
    "T4": _diagonal,
    "E1": _chain,
    "T12": _gemm_sum,
}
MODELLED = tuple(_WORK)

# Eager PyTorch on the same core: each operator's passes over memory, products at 24 multiply-adds a cycle.
REFERENCE_US = {
    "T1": 1024 * 4096 * 4 * 8 / BYTES_PER_US,  # product, difference, clamp, mean
    "T4": 1024**3 / 24 / CYCLES_PER_US + 1024**2 * 4 * 4 / BYTES_PER_US,
    "E1": 1024 * 2048 * 4 * 13 / BYTES_PER_US + 1024 * 2048 * 3 / CYCLES_PER_US,  # five operators, and erf
    "T12": 256 * 1024 * 1024 / 24 / CYCLES_PER_US + 256 * 1024 * 4 * 5 / BYTES_PER_US,
}
