"""A job's budgets of tokens and of wall clock: when they are spent, also in the middle of an iteration.

The budget of iterations is the outer loop's (`workers.iteration`). Tokens are prompt and completion tokens of mains,
forks and side calls; wall clock is the time in iterations over all attempts, so that pauses do not count.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from specgen.controller.loop import Iteration
from specgen.types import JobSpec

LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class Budget:
    """What a job may use; None: as much as it likes."""

    tokens: int | None
    seconds: float | None

    @classmethod
    def of(cls, spec: JobSpec) -> Budget:
        """The job's."""
        return cls(spec.token_budget, spec.time_budget_s)

    def reached(self, tokens: int, seconds: float) -> str:
        """Which budget is spent, in words; empty while none is."""
        if self.tokens is not None and tokens >= self.tokens:
            return f"token budget reached ({tokens} of {self.tokens} tokens)"
        if self.seconds is not None and seconds >= self.seconds:
            return f"time budget reached ({seconds:.0f} of {self.seconds:g} s)"
        return ""


@dataclass(frozen=True)
class Spent:
    """What a job had used when an attempt began at ``began`` (monotonic seconds)."""

    tokens: int
    seconds: float
    began: float

    def seconds_now(self) -> float:
        """Wall clock in iterations up to now."""
        return self.seconds + time.monotonic() - self.began


async def keep(budget: Budget, spent: Spent, iteration: Iteration) -> str:
    """Watch the iteration; where a budget is spent end it at a boundary, and return which. Else until cancelled."""
    while not (told := budget.reached(spent.tokens + iteration.tokens, spent.seconds_now())):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY_S)
    iteration.end_for_budget()
    return told
