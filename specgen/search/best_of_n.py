"""best_of_n: the same prompt every time, the fastest valid kernel wins. No feedback: the baseline of §2."""

from __future__ import annotations

import random

from specgen.search.base import Context, History, IterationResult, Step
from specgen.types import Json, Prompt


class BestOfN:
    """Has no state: iterations differ by their seeds only."""

    max_lanes = 64

    def select(self, history: History, rng: random.Random) -> Step:  # noqa: ARG002
        """Always the first prompt again."""
        return Step("seed")

    async def compose(self, step: Step, context: Context) -> Prompt:  # noqa: ARG002
        """The problem, and nothing of what was tried."""
        return Prompt(context.render("shared/system.md.j2"), context.render("best_of_n/seed.md.j2"))

    def update(self, result: IterationResult, history: History) -> None:
        """Nothing is learnt."""

    def dump(self) -> Json:
        """Nothing to keep."""
        return {}

    def load(self, state: Json) -> None:
        """Nothing to take up."""
