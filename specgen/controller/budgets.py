"""A job's budgets (tokens, wall clock, cost) and its target: when they are reached, also in the middle of an iteration.

The budget of iterations and the plateau are the outer loop's (`workers.conclusion`). Tokens are prompt and completion
tokens of mains, forks and side calls; wall clock is the time in iterations over all attempts, so that pauses do not
count; cost is by the price of the LLM profile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specgen.settings import Price
from specgen.types import JobSpec, Usage

LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class Spent:
    """What a job has used. ``began``: monotonic seconds since which ``seconds`` run on."""

    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    best: float = 0.0  # its fastest kernel's speedup
    began: float | None = None

    def seconds_now(self) -> float:
        """Wall clock in iterations up to now."""
        return self.seconds + (0.0 if self.began is None else time.monotonic() - self.began)

    def and_of(self, usages: Sequence[Usage], best: float, price: Price | None) -> Spent:
        """With what was used, and found, since."""
        return replace(
            self,
            tokens=self.tokens + sum(usage.prompt_tokens + usage.completion_tokens for usage in usages),
            cost=self.cost + (sum(map(price.cost, usages)) if price else 0.0),
            best=max(self.best, best),
        )


@dataclass(frozen=True)
class Budget:
    """What a job may use, and the speedup at which it is content; None: as much as it likes."""

    tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    target: float | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Budget:
        """The job's."""
        return cls(spec.token_budget, spec.time_budget_s, spec.cost_budget, spec.target_speedup)

    def reached(self, spent: Spent) -> str:
        """What is reached, in words; empty while nothing is."""
        seconds = spent.seconds_now()
        if self.target is not None and spent.best >= self.target:
            return f"target speedup reached ({spent.best:.3f}x of {self.target:g}x)"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"token budget reached ({spent.tokens} of {self.tokens} tokens)"
        if self.seconds is not None and seconds >= self.seconds:
            return f"time budget reached ({seconds:.0f} of {self.seconds:g} s)"
        if self.cost is not None and spent.cost >= self.cost:
            return f"cost budget reached ({spent.cost:.4g} of {self.cost:g})"
        return ""


async def keep(budget: Budget, spent: Callable[[], Spent]) -> str:
    """Until something is reached: what, in words."""
    while not (told := budget.reached(spent())):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY_S)
    return told


def plateau(limit: int | None, closed: int, best_iteration: int | None) -> str:
    """Whether the last ``limit`` closed iterations gave no faster kernel, in words; empty where they did."""
    since = closed - 1 - (-1 if best_iteration is None else best_iteration)
    if limit is None or since < limit:
        return ""
    return f"plateau reached ({since} iterations without a faster kernel)"
