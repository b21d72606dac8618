"""The profile as a table: one row per metric with its unit and what it tells. The same block in every prompt.

Metrics that this machine does not have are left out, and so is what tells of the measurement rather than of the
kernel. Names of hardware counters are those of :mod:`specgen.evaluation.ncu` and of Linux perf; an unknown one is
shown under its own name.
"""

from __future__ import annotations

from typing import NamedTuple

from specgen.evaluation.ncu import METRICS
from specgen.types import Profile


class Row(NamedTuple):
    """A line of the table."""

    label: str
    value: str
    unit: str
    meaning: str


COUNTERS: dict[str, tuple[str, str, str]] = {
    metric.name: (metric.label, metric.unit, metric.meaning) for metric in METRICS
} | {
    "cycles": ("CPU cycles", "", "per run"),
    "instructions": ("instructions", "", "per run; with cycles: how well the core is fed"),
    "ipc": ("instructions per cycle", "", "4 and more is good, under 1 waits for memory"),
    "cache_misses": ("last-level cache misses", "", "per run; each waits for memory"),
    "branch_misses": ("mispredicted branches", "", "per run"),
    "page_faults": ("page faults", "", "per run; each takes memory that was not held yet"),
    "rss_peak_mb": ("memory held at most", "MB", "by the process, PyTorch included"),
    "minor_faults": ("page faults in all", "", "since the process started"),
    "share_of_time_pct": ("share of the kernels' time", "%", "under ncu"),
    "kernels": ("different kernels", "", "in one forward"),
    "launches": ("launches", "", "in one forward; each costs a few us"),
}  # counter -> (label, unit, meaning)

OF_THE_JUDGE = frozenset(
    {
        "rss_mb", "involuntary_switches", "message_cost_ms", "wall_mean_ms", "clock_gap_ms", "asleep_ms",
        "outside_cpu_ms", "fetch_ms", "fetch_rehearsed_ms", "fetch_allowed_ms",
        "sm_clock_mhz", "sm_clock_min_mhz", "memory_clock_mhz", "temperature_c", "power_w", "slowed_share",
    }
)  # fmt: skip

ROOFLINE = {
    "memory": "near the ceiling of memory traffic: move fewer bytes, move each once",
    "compute": "near the ceiling of arithmetic: fewer or wider instructions",
    "latency": "near neither ceiling: it waits (dependent or narrow instructions, cache misses, too few threads), "
    "or does more than is needed",
}


def number(value: float) -> str:
    """Four significant digits, no exponent for what people compare."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def profile_rows(profile: Profile) -> list[Row]:
    """Times first, then bandwidth and arithmetic against the device's ceilings, then counters."""
    kernel, reference = profile.candidate, profile.reference
    rows = [
        Row("kernel time", number(kernel.mean_ms), "ms", f"mean of {kernel.runs} runs, std {number(kernel.std_ms)}"),
        Row("kernel time, fastest run", number(kernel.min_ms), "ms", "what noise leaves"),
        Row("reference time", number(reference.mean_ms), "ms", f"mean of {reference.runs} runs"),
    ]
    rows += _against("bandwidth", profile.achieved_gb_s, profile.ceiling_gb_s, "GB/s", "inputs and outputs moved once")
    rows += _against(
        "arithmetic", profile.achieved_gflop_s, profile.ceiling_gflop_s, "GFLOP/s", "the reference's operations"
    )
    if (roof := ROOFLINE.get(profile.roofline)) is not None:
        rows.append(Row("bound by", profile.roofline, "", roof))
    for name, value in profile.counters.items():
        if value is not None and name not in OF_THE_JUDGE:
            kernel_name, _, base = name.rpartition(": ")  # of one of several kernels
            label, unit, meaning = COUNTERS.get(base, (base, "", ""))
            rows.append(Row(f"{kernel_name}: {label}" if kernel_name else label, number(value), unit, meaning))
    return rows


def _against(label: str, achieved: float | None, ceiling: float | None, unit: str, meaning: str) -> list[Row]:
    if achieved is None:
        return []
    if not ceiling:
        return [Row(label, number(achieved), unit, meaning)]
    share = f"{100 * achieved / ceiling:.0f} % of {number(ceiling)} measured here"
    if achieved > 1.1 * ceiling:
        share = f"more than the {number(ceiling)} measured here: not all of it is done"
    return [Row(label, number(achieved), unit, f"{meaning}; {share}")]
