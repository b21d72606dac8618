"""The profile as a table: one row per metric with its unit and what it tells. The same block in every prompt.

Metrics that this machine does not have are left out. Names of hardware counters are those of Nsight Compute and of
Linux perf; an unknown one is shown under its own name.
"""

from __future__ import annotations

from typing import NamedTuple

from specgen.types import Profile


class Row(NamedTuple):
    """A line of the table."""

    label: str
    value: str
    unit: str
    meaning: str


COUNTERS: dict[str, tuple[str, str, str]] = {
    "cycles": ("CPU cycles", "", "per run"),
    "instructions": ("instructions", "", "per run; with cycles: how well the core is fed"),
    "ipc": ("instructions per cycle", "", "4 and more is good, under 1 waits for memory"),
    "cache_misses": ("last-level cache misses", "", "per run; each waits for memory"),
    "cache-misses": ("last-level cache misses", "", "per run; each waits for memory"),
    "branch_misses": ("mispredicted branches", "", "per run"),
    "branch-misses": ("mispredicted branches", "", "per run"),
    "gpu__time_duration.sum": ("kernel duration under the profiler", "", "sum over launches; clocks differ"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("compute throughput", "% of peak", "speed of light"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": (
        "memory throughput",
        "% of peak",
        "speed of light",
    ),
    "sm__cycles_active.avg": ("SM active cycles", "", "mean over SMs"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("achieved occupancy", "%", "resident warps of the maximum"),
    "sm__inst_executed.sum": ("instructions executed", "", "all SMs"),
    "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active": ("fp32 pipe", "% of peak", "utilisation"),
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": ("tensor pipe", "% of peak", "utilisation"),
    "launch__occupancy_limit_blocks": ("occupancy limit: blocks", "blocks/SM", "the smallest limit binds"),
    "launch__occupancy_limit_registers": ("occupancy limit: registers", "blocks/SM", "the smallest limit binds"),
    "launch__occupancy_limit_shared_mem": ("occupancy limit: shared memory", "blocks/SM", "the smallest limit binds"),
    "launch__registers_per_thread": ("registers", "per thread", "many of them limit occupancy"),
    "launch__shared_mem_per_block": ("shared memory", "bytes/block", "static and dynamic"),
    "dram__bytes_read.sum": ("DRAM read", "bytes", "against the size of the inputs"),
    "dram__bytes_write.sum": ("DRAM written", "bytes", "against the size of the outputs"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("DRAM throughput", "% of peak", "near 100: memory bound"),
    "l1tex__t_sector_hit_rate.pct": ("L1 hit rate", "%", "reuse within a block"),
    "lts__t_sector_hit_rate.pct": ("L2 hit rate", "%", "reuse between blocks"),
    "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct": ("stall: global memory", "%", "of active warps"),
    "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct": ("stall: shared memory", "%", "of active warps"),
    "smsp__warp_issue_stalled_barrier_per_warp_active.pct": ("stall: barrier", "%", "of active warps"),
    "smsp__warp_issue_stalled_branch_resolving_per_warp_active.pct": ("stall: branches", "%", "of active warps"),
    "smsp__sass_average_branch_targets_threads_uniform.pct": ("uniform branches", "%", "100: no divergence"),
}  # counter -> (label, unit, meaning)

ROOFLINE = {
    "memory": "limited by memory traffic: move fewer bytes, move each once",
    "compute": "limited by arithmetic: fewer or wider instructions",
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
        if value is not None:
            label, unit, meaning = COUNTERS.get(name, (name, "", ""))
            rows.append(Row(label, number(value), unit, meaning))
    return rows


def _against(label: str, achieved: float | None, ceiling: float | None, unit: str, meaning: str) -> list[Row]:
    if achieved is None:
        return []
    if not ceiling:
        return [Row(label, number(achieved), unit, meaning)]
    share = f"{100 * achieved / ceiling:.0f} % of {number(ceiling)} measured here"
    return [Row(label, number(achieved), unit, f"{meaning}; {share}")]
