"""The benchmarks of queues and scale run and print figures; what they compute is right where it can be known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.queue.starvation import jain, max_min, starvation

ROOT = Path(__file__).parents[1]


def figures(*command: str) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ("many", {"enqueue_to_start_2_workers_p99_over_stock", "switch_2_workers_p99", "abort_2_workers_p99"}),
        ("depth", {"put_pop_profile_20_jobs_p99", "put_pop_lost"}),
        ("fairness", {"longest_starvation_fair_laf", "jain_paper"}),
    ],
)
def test_the_queues_figures(section, named):
    found = figures("benchmarks.queue", "--quick", "--only", section)

    assert named <= set(found)
    assert all(row["value"] >= 0 for row in found.values())
    if section == "depth":
        assert found["put_pop_lost"]["value"] == found["put_pop_doubled"]["value"] == 0


def test_the_longest_time_without_service_counts_only_while_something_waits():
    assert starvation([(0.0, 1), (1.0, -1), (9.0, 1), (9.5, -1)]) == 1.0
    assert starvation([(0.0, 1), (0.0, 1), (1.0, -1), (5.0, -1)]) == 4.0
    assert starvation([(0.0, 1), (3.0, 0), (9.0, 1), (9.5, -1)]) == 3.0  # dropped at a boundary


def test_shares_are_max_min_fair():
    assert max_min({"a": 1, "b": 10, "c": 10, "idle": 0}, 9) == {"a": 1, "b": 4, "c": 4}
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0]) == pytest.approx(1 / 3)
