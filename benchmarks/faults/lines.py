"""The scorecard's lines: how many cases each has, who runs them, and the figures that come of them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.faults import requests, whole_jobs
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
    "R6": requests.recovery_case,
    "R7": requests.hang_case,
    "R9": whole_jobs.drain_case,
    "R10": requests.poison_case,
}
# line, kind, (cases, faults a case) in full, the same in short
PLAN: list[tuple[str, str, tuple[int, int], tuple[int, int]]] = [
    *(("R1", kind, (10, 10), (1, 6)) for kind in KINDS),
    *(("R1p", kind, (10, 1), (1, 1)) for kind in whole_jobs.POINTS),
    ("R3", "killed", (10, 5), (1, 4)),
    ("R3", "wiped", (10, 2), (1, 2)),
    ("R4", "killed", (10, 5), (1, 5)),
    ("R5", "iteration", (10, 2), (1, 1)),
    ("R5", "transaction", (5, 1), (1, 1)),
    ("R5", "device", (3, 5), (1, 2)),
    ("R6", "gone", (5, 10), (1, 4)),
    ("R6", "restarted", (5, 10), (1, 4)),
    ("R6", "pool process", (5, 10), (1, 4)),
    ("R7", "hang", (4, 50), (1, 12)),
    ("R9", "device", (6, 5), (1, 4)),
    ("R9", "iteration", (4, 5), (1, 2)),
    ("R10", "message", (2, 5), (1, 2)),
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
        (("R6",), _recovery),
        (("R7",), _hangs),
        (("R1",), _tokens),
        (("R9",), _drains),
        (("R10",), _poison),
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
    _zero("R1_valid_kernels_unfollowed", sums["unfollowed"], "candidates")
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
    again, each = sums["tokens_served"] - sums["tokens_needed"], sums["tokens_needed"] / max(1, sums["iterations"])
    share = again / max(1, sums["reruns"]) / each
    number = sum(result.faults for result in mine)
    print(f"# R8: N = {number} kills, {sums['reruns']} iterations begun again, {each:.0f} tokens an iteration")
    figure("R8_paid_again_per_interruption", share, "iterations", "<= 1", share <= 1)
    figure("R8_paid_again_per_kill", again / number, "tokens, all jobs", "printed", None)


def _drains(results: list[Result], sums: dict[str, int]) -> None:
    _told(results, sums, "drains")
    _zero("R9_lost", sums["lost"] + sums["doubled"] + sums["stuck"], "outcomes")
    _zero("R9_run_twice", sums["twice"] + sums["reruns"], "requests and iterations")
    figure("R9_drain_max", max(result for one in results for result in one.samples), "s", "printed", None)


def _quantile(samples: list[float], share: float) -> float:
    """Nearest rank; infinite where nothing was measured."""
    ordered = sorted(samples) or [float("inf")]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _recovery(results: list[Result], _: dict[str, int]) -> None:
    samples = [one for result in results for one in result.samples]
    print(f"# R6: N = {sum(result.faults for result in results)} deaths, {len(samples)} recoveries, timeout 5 s")
    p95 = _quantile(samples, 0.95)
    figure("R6_recovery_p95", p95, "s", "<= 10", p95 <= 10)
    for kind in ("gone", "restarted", "pool process"):
        mine = [one for result in results for one in result.samples if result.kind == kind]
        figure(f"R6_recovery_{kind.replace(' ', '_')}_p50", _quantile(mine, 0.5), "s", "printed", None)


def _hangs(results: list[Result], sums: dict[str, int]) -> None:
    samples = [one for result in results for one in result.samples]
    print(f"# R7: N = {sum(result.faults for result in results)} evaluations that hang, {len(samples)} ended as such")
    p99 = _quantile(samples, 0.99)
    figure("R7_overrun_p99", p99, "s", "<= 2", p99 <= 2)
    _zero("R7_processes_left", sums["left"], "processes")


def _poison(results: list[Result], sums: dict[str, int]) -> None:
    number = sum(result.faults for result in results)
    print(f"# R10: N = {number} messages that kill their worker")
    figure("R10_quarantined_after_3", sums["after_three"] / number, "share", "= 1", sums["after_three"] == number)
    figure("R10_job_told", sums["told"] / number, "share", "= 1", sums["told"] == number)
