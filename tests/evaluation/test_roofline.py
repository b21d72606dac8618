"""What bounds a kernel, by counters or by what it reached of two ceilings."""

from __future__ import annotations

import pytest

from specgen.evaluation.roofline import bound, by_counters


@pytest.mark.parametrize(
    ("memory", "compute", "found"),
    [
        (0.86, 0.2, "memory"),
        (0.3, 0.7, "compute"),
        (0.7, 0.7, "memory"),
        (0.3, 0.4, "latency"),
        (0.59, None, "latency"),
        (0.9, 20.0, "memory"),  # arithmetic that the kernel does not do
        (0.2, 20.0, "latency"),
        (None, None, "unknown"),
        (None, 20.0, "unknown"),
    ],
)
def test_the_higher_share_binds_if_it_is_high(memory: float | None, compute: float | None, found: str) -> None:
    assert bound(memory, compute) == found


def test_counters_go_first_where_both_were_counted() -> None:
    assert by_counters({"memory_throughput_pct": 91.0, "compute_throughput_pct": 30.0}) == "memory"
    assert by_counters({"memory_throughput_pct": 12.0, "compute_throughput_pct": 30.0}) == "latency"
    assert by_counters({"memory_throughput_pct": None, "compute_throughput_pct": 30.0}) == "unknown"
    assert by_counters({}) == "unknown"
