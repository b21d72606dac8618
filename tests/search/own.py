"""A user's own search algorithm; and classes that are none."""

from __future__ import annotations

import random

from specgen.search import STOP, Context, History, IterationResult, Step, Verdict
from specgen.types import Json, Prompt


class FromTheBest:
    """Always from the fastest kernel so far; gives up after three iterations without a faster one."""

    def __init__(self) -> None:
        self.stale = 0
        self.best = 0.0

    def select(self, history: History, rng: random.Random) -> Step | Verdict:
        if self.stale >= 3:
            return STOP
        best = history.best()
        return Step("refine", (best.candidate_id,)) if best else Step("seed")

    async def compose(self, step: Step, context: Context) -> Prompt:
        variables: dict[str, object] = {"note": ""}
        if step.parents:
            variables |= {"latest": context.history.get(step.parents[0]), "earlier": []}
        return Prompt(context.render("shared/system.md.j2"), context.render(f"refine/{step.kind}.md.j2", **variables))

    def update(self, result: IterationResult, history: History) -> None:
        now = max(history.speedups())
        self.stale = 0 if now > self.best else self.stale + 1
        self.best = now

    def dump(self) -> Json:
        return {"stale": self.stale, "best": self.best}

    def load(self, state: Json) -> None:
        if isinstance(state, dict):
            self.stale, self.best = int(str(state["stale"])), float(str(state["best"]))


class Incomplete:
    def select(self) -> None: ...

    def dump(self) -> None: ...


class NeedsArguments(FromTheBest):
    def __init__(self, beam: int) -> None: ...


NOT_CALLABLE = 3
