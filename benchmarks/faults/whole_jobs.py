"""R1–R5, R8: faults while whole jobs run, from prompt to stored outcome, and the audit once they have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.faults.audit import Findings, audit
from benchmarks.faults.cases import Case, Result
from benchmarks.faults.kills import strike
from benchmarks.faults.system import System
from specgen.client import problem
from specgen.types import JobSpec

JOBS = 6  # at a time
ITERATIONS = 3
END_S = 240.0  # a job must end so long after the last fault: a wiped Redis is made up for within two minutes
SPACING_S = {"iteration": (2.0, 5.0), "scheduler": (1.0, 3.0)}  # between two faults; else 0.3 to 1.5


class Jobs:
    """Some jobs at a time, new ones for those that end, until no more are wanted."""

    def __init__(self, system: System, seed: int) -> None:
        self.system, self.seed = system, seed
        self.ids: list[str] = []
        self._spec = JobSpec(problem=problem("T4"), model="specgen-synthetic", iterations=ITERATIONS)

    def top_up(self) -> None:
        """As many as belong."""
        while len(self.running()) < JOBS:
            spec = self._spec.model_copy(update={"seed": self.seed * 1000 + len(self.ids)})
            self.ids.append(self.system.client.submit(spec))

    def running(self) -> list[str]:
        """Those that have not ended."""
        return [name for name in self.ids if not self.system.client.job(name).state.terminal]


def faults(system: System, case: Case, result: Result, inject: Callable[[], str | None]) -> Jobs:
    """Inject until the case has as many as it wants, with jobs running all the time; then wait for them."""
    jobs, rng, begun = Jobs(system, case.index), case.rng, time.monotonic()
    low, high = SPACING_S.get(case.kind, (0.3, 1.5))
    tries = 0
    while result.faults < case.faults and tries < 100 * case.faults:
        jobs.top_up()
        system.sleep(rng.uniform(low, high) if tries == 0 or result.schedule else 0.1)
        tries += 1
        at = time.monotonic() - begun
        if (told := inject()) is not None:
            result.faults += 1
            result.schedule.append(f"{at:.2f} s: {told}")
    if not system.wait(lambda: not jobs.running(), END_S, 0.3):
        result.notes.append(f"not ended {END_S:g} s after the last fault: {jobs.running()}")
    return jobs


def record(result: Result, found: Findings) -> None:
    """The audit's counts."""
    counts = asdict(found)
    result.notes += counts.pop("notes")
    for name, number in counts.items():
        result.counts[name] = result.count(name) + number


def kill_case(system: System, case: Case) -> Result:
    """R1, R2, R8: SIGKILL at random moments."""
    result, rng = Result(case.key, case.line, case.kind), case.rng
    jobs = faults(system, case, result, lambda: strike(system, case.kind, rng))
    record(result, audit(system, jobs.ids))
    return result
