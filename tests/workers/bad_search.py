"""A user's search algorithms, each with one fault."""

from __future__ import annotations

import random
from typing import Any

from specgen.search import History, IterationResult, Step
from specgen.search.best_of_n import BestOfN


class InSelect(BestOfN):
    def select(self, history: History, rng: random.Random) -> Step:
        raise ValueError("select is broken")


class Nothing(BestOfN):
    def select(self, history: History, rng: random.Random) -> Any:
        return None


class InCompose(BestOfN):
    async def compose(self, step: Step, context: Any) -> Any:
        return context.history.get("absent")


class NoPrompt(BestOfN):
    async def compose(self, step: Step, context: Any) -> Any:
        return "Write a kernel."


class InUpdate(BestOfN):
    def update(self, result: IterationResult, history: History) -> None:
        raise RuntimeError("update is broken")


class NoJson(BestOfN):
    def dump(self) -> Any:
        return {"seen": {1, 2}}


def criterion(speedup: float, history: object) -> bool:
    raise ZeroDivisionError("the criterion is broken")
