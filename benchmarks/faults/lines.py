"""The scorecard's lines: how many cases each has, who runs them, and the figures that come of them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.faults import whole_jobs
from benchmarks.faults.cases import Case, Result, merged
from benchmarks.faults.kills import KINDS
from benchmarks.faults.system import System
from benchmarks.figures import figure

RUN: dict[str, Callable[[System, Case], Result]] = {
    "R1": whole_jobs.kill_case,
}


def cases(seed: int, *, short: bool) -> list[Case]:
    """All cases, in the order in which they run."""
    found: list[Case] = []

    def add(line: str, kind: str, number: int, faults: int) -> None:
        for _ in range(number):
            found.append(Case(line, sum(case.line == line for case in found), seed, kind, faults))

    for kind in KINDS:
        add("R1", kind, 1 if short else 10, 6 if short else 10)
    return found


def report(results: list[Result]) -> None:
    """The figures, each with its N."""
    kills = [result for result in results if result.line == "R1"]
    if kills:
        sums, number = merged(kills), sum(result.faults for result in kills)
        print(f"# R1, R2: N = {number} kills, {sums['jobs']} jobs, {sums['outcomes']} outcomes")
        figure("R1_outcomes_lost", sums["lost"] + sums["stuck"], "outcomes", "= 0", sums["lost"] + sums["stuck"] == 0)
        figure("R2_outcomes_doubled", sums["doubled"], "rows", "= 0", sums["doubled"] == 0)
        figure("R2_executed_twice", sums["twice"] / max(1, sums["executed"]), "share", "printed", None)
        figure("R1_unfollowed", sums["unfollowed"], "candidates", "printed", None)
        figure("R1_leaks", sums["leaks"], "cases", "= 0", sums["leaks"] == 0)
