"""When a job is over, and in which words: its budgets, its target, a plateau, a model that keeps failing."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from specgen.controller.budgets import Budget, Spent, plateau
from specgen.store import IterationRecord, JobRecord, Store
from specgen.types import IterationReason, JobState
from workers.journal import stored

MODEL_FAILURES = 3  # iterations in a row whose model failed: the job fails


async def spent_so_far(store: Store, job: JobRecord) -> Spent:
    """What the store knows of; its clock runs on from now."""
    tokens = await stored(store.tokens, job.id)
    best = await stored(store.best, job.id)
    cost = await stored(store.cost, job.id)
    return Spent(tokens.total, job.active_s, cost or 0.0, best.speedup if best else 0.0, time.monotonic())


@dataclass
class Conclusion:
    """``spent``: when this attempt began. ``told``: which budget ended an iteration, as it was seen then."""

    store: Store
    job: JobRecord
    spent: Spent
    told: str = ""

    async def reached(self, done: tuple[IterationRecord, ...]) -> tuple[JobState, str] | None:
        """Whether the job is over, given its iterations."""
        spec, reasons = self.job.spec, [record.reason for record in done if record.closed]
        if len(reasons) >= MODEL_FAILURES and set(reasons[-MODEL_FAILURES:]) == {IterationReason.MODEL_FAILED}:
            return JobState.FAILED, f"the model failed in {MODEL_FAILURES} iterations in a row"
        if len(reasons) >= spec.iterations:
            if set(reasons) == {IterationReason.NO_CODE}:
                return JobState.DONE, "iteration budget reached: the model never produced code"
            return JobState.DONE, f"iteration budget reached: {await self._best()}"
        if self.told or IterationReason.BUDGET in reasons[-1:] or Budget.of(spec).reached(self.spent):
            return JobState.DONE, await self.over_budget()
        if spec.plateau is not None:
            best = await stored(self.store.best, self.job.id)
            if told := plateau(spec.plateau, len(reasons), best.iteration if best else None):
                return JobState.DONE, f"{told}: {await self._best()}"
        return None

    async def over_budget(self) -> str:
        """Which budget, as it stands in the store now, and what the job came to."""
        now = await spent_so_far(self.store, self.job)
        spent = replace(now, seconds=self.spent.seconds, began=self.spent.began)
        told = Budget.of(self.job.spec).reached(spent) or self.told or "budget reached"
        return f"{told}: {await self._best()}"

    async def _best(self) -> str:
        best = await stored(self.store.best, self.job.id)
        return f"best {best.speedup:.3f}x" if best else "no valid kernel"
