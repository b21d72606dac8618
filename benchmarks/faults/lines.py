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
    "R1p": whole_jobs.point_case,
    "R3": whole_jobs.valkey_case,
    "R4": whole_jobs.postgres_case,
    "R5": whole_jobs.zombie_case,
    "R9": whole_jobs.drain_case,
}
# line, kind, (cases, faults a case) in full, the same in short
PLAN: list[tuple[str, str, tuple[int, int], tuple[int, int]]] = [
    *(("R1", kind, (10, 10), (1, 6)) for kind in KINDS),
    *(("R1p", kind, (3, 1), (1, 1)) for kind in whole_jobs.POINTS),
    ("R3", "killed", (10, 5), (1, 4)),
    ("R3", "wiped", (10, 2), (1, 2)),
    ("R4", "killed", (10, 5), (1, 5)),
    ("R5", "iteration", (10, 2), (1, 1)),
    ("R5", "transaction", (5, 1), (1, 1)),
    ("R5", "device", (3, 5), (1, 2)),
    ("R9", "device", (6, 5), (1, 4)),
    ("R9", "iteration", (4, 5), (1, 2)),
]


def cases(seed: int, *, short: bool) -> list[Case]:
    """All cases, in the order in which they run."""
    found: list[Case] = []
    for line, kind, full, small in PLAN:
        number, faults = small if short else full
        for _ in range(number):
            found.append(Case(line, sum(case.line == line for case in found), seed, kind, faults))
    return found


def report(results: list[Result]) -> None:
    """The figures, each with its N."""
    for lines, tell in (
        (("R1", "R1p"), _kills),
        (("R3",), _valkey),
        (("R4",), _postgres),
        (("R5",), _zombies),
        (("R1",), _tokens),
        (("R9",), _drains),
    ):
        if mine := [result for result in results if result.line in lines]:
            tell(mine, merged(mine))


def _zero(name: str, value: int, unit: str) -> None:
    figure(name, value, unit, "= 0", value == 0)


def _told(results: list[Result], sums: dict[str, int], what: str) -> None:
    """N, and what the audit found beside the line's own bar."""
    number = sum(result.faults for result in results)
    print(f"# {results[0].line}: N = {number} {what}, {sums['jobs']} jobs, {sums['outcomes']} outcomes, "
          f"{sums['unfollowed']} validated kernels of dead attempts not profiled")  # fmt: skip


def _kills(results: list[Result], sums: dict[str, int]) -> None:
    _told(results, sums, "kills")
    _zero("R1_outcomes_lost", sums["lost"] + sums["stuck"], "outcomes")
    _zero("R1_leaks", sums["leaks"], "cases")
    _zero("R2_outcomes_doubled", sums["doubled"], "rows")
    figure("R2_executed_twice", sums["twice"] / max(1, sums["executed"]), "share", "printed", None)


def _valkey(results: list[Result], sums: dict[str, int]) -> None:
    _told(results, sums, "restarts and wipes of Valkey")
    _zero("R3_jobs_without_end", sums["stuck"], "jobs")
    _zero("R3_lost_or_doubled", sums["lost"] + sums["doubled"], "outcomes")


def _postgres(results: list[Result], sums: dict[str, int]) -> None:
    _told(results, sums, "restarts of Postgres")
    for name in ("lost", "doubled", "stuck"):
        _zero(f"R4_{name}", sums[name], "outcomes")


def _zombies(results: list[Result], sums: dict[str, int]) -> None:
    _told(results, sums, f"sleeps with {sums['zombies']} writers")
    _zero("R5_stale_writes", sums["stale_writes"], "writes")
    _zero("R5_lost_or_doubled", sums["lost"] + sums["doubled"] + sums["stuck"], "outcomes")


def _tokens(results: list[Result], _: dict[str, int]) -> None:
    """R8, from the kills of iteration workers."""
    mine = [result for result in results if result.kind == "iteration"]
    if not mine:
        return
    sums = merged(mine)
    hits, each = max(1, sums["interrupted"]), sums["tokens_needed"] / max(1, sums["iterations"])
    again = (sums["tokens_served"] - sums["tokens_needed"]) / hits
    number = sum(result.faults for result in mine)
    print(f"# R8: N = {number} kills, {sums['interrupted']} interrupted jobs, {sums['reruns']} iterations begun again")
    figure("R8_tokens_paid_again", again / each, "iterations", "<= 1", again <= each)
    figure("R8_tokens_paid_again_per_hit", again, "tokens", "printed", None)


def _drains(results: list[Result], sums: dict[str, int]) -> None:
    _told(results, sums, "drains")
    _zero("R9_lost", sums["lost"] + sums["doubled"] + sums["stuck"], "outcomes")
    _zero("R9_run_twice", sums["twice"] + sums["reruns"], "requests and iterations")
    figure("R9_drain_max", max(result for one in results for result in one.samples), "s", "printed", None)
