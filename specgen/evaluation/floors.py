"""The least time in which a device can move a problem's bytes and do the arithmetic that it cannot be without.

Pure numbers: what is moved and computed is counted by :mod:`specgen.evaluation.tracer`, what a device can do is
measured (:mod:`specgen.evaluation.machines`, :mod:`specgen.evaluation.ceilings`). Not here: refusing, which leaves
room for what was measured too low (:mod:`specgen.evaluation.integrity`).

The reference's own arithmetic is no floor: ``diag(a) @ b`` needs a 4096th of it. Only what a problem states by a
module-level ``NEEDED_FLOPS`` counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specgen.evaluation.verdict import Verdict
from specgen.types import Status

# Dense rates of NVIDIA's data sheets (sparsity, which they quote for tensor cores, halved), SXM forms, in GB/s and
# GFLOP/s: "H200 Tensor Core GPU", "H100 Tensor Core GPU", "A100 80GB". What is measured lies 10 to 25 % below.
_FP32, _TF32, _BF16 = "fp32", "tf32", "bf16"
_SPLIT_PRODUCTS = 3  # bfloat16 products that replace one of fp32 with an error near 1e-5 of the output's scale
_HALF_PASSES = 1e-3  # tolerances from here on accept bfloat16 inputs


@dataclass(frozen=True)
class Peaks:
    """What a data sheet promises at most: GB/s, and GFLOP/s by the precision of the products."""

    device: str
    gb_s: float
    gflop_s: dict[str, float]


DATASHEETS = (
    Peaks("H200", 4800.0, {_FP32: 67_000.0, _TF32: 494_700.0, _BF16: 989_500.0}),
    Peaks("H100", 3350.0, {_FP32: 67_000.0, _TF32: 494_700.0, _BF16: 989_500.0}),
    Peaks("A100", 2039.0, {_FP32: 19_500.0, _TF32: 156_000.0, _BF16: 312_000.0}),
)


@dataclass(frozen=True)
class Floor:
    """Milliseconds: the larger of both parts is the floor."""

    memory_ms: float
    arithmetic_ms: float

    @property
    def ms(self) -> float:
        """No kernel is faster."""
        return max(self.memory_ms, self.arithmetic_ms)

    @property
    def bound(self) -> Literal["memory", "arithmetic"]:
        """Which part it is."""
        return "arithmetic" if self.arithmetic_ms > self.memory_ms else "memory"


def floor(moved_bytes: float, flops: float, gb_s: float, gflop_s: float) -> Floor:
    """Bytes moved once at a bandwidth, operations done once at a peak. Raises ValueError for rates that are none."""
    if not gb_s > 0 or not gflop_s > 0:
        raise ValueError(f"a floor needs positive rates, got {gb_s} GB/s and {gflop_s} GFLOP/s")
    return Floor(memory_ms=moved_bytes / (gb_s * 1e6), arithmetic_ms=flops / (gflop_s * 1e6))


def needed_flops(problem: object) -> float:
    """``NEEDED_FLOPS`` of a problem's module, 0 where it states none. Raises Verdict where that is no such number."""
    stated = getattr(problem, "NEEDED_FLOPS", 0)
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0 <= stated < float("inf"):
        text = f"the problem's NEEDED_FLOPS is no number of operations: {stated!r}"
        raise Verdict(Status.REFERENCE_ERROR, text[:300])
    return float(stated)


def datasheet(device: str) -> Peaks | None:
    """The data sheet of a device by its name, such as ``NVIDIA H200``; None where it is not known."""
    return next((peaks for peaks in DATASHEETS if peaks.device.lower() in device.lower()), None)


def usable_gflop_s(bf16: float, fp32: float, tolerance: float) -> float:
    """The fastest arithmetic that can meet a tolerance: bfloat16 products, or three of them for one of fp32."""
    return max(fp32, bf16 if tolerance >= _HALF_PASSES else bf16 / _SPLIT_PRODUCTS)
