"""How a suite of problems went, by KernelBench's definitions: fast_p and geometric mean speedups.

fast_p is the share of all problems with a correct kernel faster than p times the reference. The geometric means are
over problems with a correct kernel, and over those whose kernel is faster than the reference. Problems without one
(also those that could not be run) count in fast_p's denominator and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

THRESHOLDS = (0.5, 0.8, 1.0, 1.5, 2.0, 5.0)


@dataclass(frozen=True)
class Score:
    """One problem's job. ``speedup``: of its best kernel, None where none is correct."""

    problem: str
    state: str
    reason: str
    speedup: float | None = None
    iterations: int = 0
    profiled: int = 0
    tokens: int = 0
    cost: float | None = None
    seconds: float = 0.0
    job_id: str = ""


def fast_p(scores: Sequence[Score], p: float) -> float:
    """Share in 0 … 1; 0 where there are no problems."""
    return sum((score.speedup or 0.0) > p for score in scores) / len(scores) if scores else 0.0


def geometric_mean(scores: Sequence[Score], *, above: float = 0.0) -> float | None:
    """Over the correct ones with a speedup above ``above``; None where there are none."""
    logs = [math.log(score.speedup) for score in scores if score.speedup is not None and score.speedup > above]
    return math.exp(sum(logs) / len(logs)) if logs else None


def suite_table(scores: Sequence[Score]) -> Table:
    """A row for each problem."""
    table = Table()
    for column in ("problem", "state", "best", "iterations", "profiles", "tokens", "cost", "seconds", "job"):
        table.add_column(column, justify="left" if column in ("problem", "state", "job") else "right")
    for score in scores:
        table.add_row(
            escape(score.problem),
            score.state,
            f"{score.speedup:.2f}x" if score.speedup is not None else "-",
            str(score.iterations),
            str(score.profiled),
            f"{score.tokens:,}",
            f"{score.cost:.4g}" if score.cost is not None else "-",
            f"{score.seconds:.0f}",
            score.job_id,
        )
    return table


def summary_lines(scores: Sequence[Score]) -> list[str]:
    """What stands below the table."""
    shares = "  ".join(f"fast_{p:g} {fast_p(scores, p):.2f}" for p in THRESHOLDS)
    correct = sum(score.speedup is not None for score in scores)
    means = [geometric_mean(scores), geometric_mean(scores, above=1.0)]
    correct_mean, faster_mean = (f"{mean:.3f}x" if mean is not None else "-" for mean in means)
    return [
        f"{correct} of {len(scores)} problems have a correct kernel; {shares}",
        f"geometric mean of the correct {correct_mean}, of the faster ones {faster_mean}",
    ]
