"""What bounds a kernel: memory, arithmetic, or neither (latency). One rule for every device.

A GPU's counters say how busy both sides were; without them, what was achieved of the two measured ceilings stands for
it. Where neither reaches 60 % (NVIDIA's rule for its speed-of-light sections) the kernel waits, or does more than the
reference's bytes and operations. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

BUSY = 0.6

Bound = Literal["memory", "compute", "latency", "unknown"]


def bound(memory: float | None, compute: float | None) -> Bound:
    """From shares of two ceilings in [0, 1]; None where there is none. Above 1 (a kernel that does less than the
    reference: T4's diagonal) an arithmetic share says nothing."""
    if compute is not None and compute > 1.1:
        compute = None
    known = [share for share in (memory, compute) if share is not None]
    if not known:
        return "unknown"
    if max(known) < BUSY:
        return "latency"
    return "memory" if (memory or 0.0) >= (compute or 0.0) else "compute"


def by_counters(counters: Mapping[str, float | None]) -> Bound:
    """From ncu's two speeds of light; unknown where they were not counted."""
    memory, compute = counters.get("memory_throughput_pct"), counters.get("compute_throughput_pct")
    if memory is None or compute is None:
        return "unknown"
    return bound(memory / 100, compute / 100)
