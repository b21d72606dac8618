"""cudaforge: a Coder and a Judge (the baseline of §8; CudaForge's loop).

The Judge looks at the current kernel, valid or not, and answers in JSON: what is wrong, or what bounds it. The Coder,
which is the iteration's main generation, gets the kernel with that advice. The parent is always the latest kernel,
never an older, faster one. Where the Judge gives nothing usable the iteration goes on without its advice.
"""

from __future__ import annotations

import random

from specgen.search.base import Context, History, IterationResult, Step, known, object_of
from specgen.types import Json, Prompt

CORRECTION = object_of("critical_issue", "why_it_matters", "minimal_fix_hint")
OPTIMISATION = object_of("bottleneck", "optimisation_method", "modification_plan")


class CudaForge:
    """State: the latest kernel."""

    def __init__(self) -> None:
        self.current = ""  # candidate id

    def select(self, history: History, rng: random.Random) -> Step:  # noqa: ARG002
        """Correct it or optimise it; from scratch while there is none."""
        if self.current not in history:
            return Step("seed")
        return Step("optimise" if history.get(self.current).valid else "correct", (self.current,))

    async def compose(self, step: Step, context: Context) -> Prompt:
        """Judge first, then the Coder's prompt."""
        variables: dict[str, object] = {}
        if step.parents:
            entry = context.history.get(step.parents[0])
            schema = OPTIMISATION if step.kind == "optimise" else CORRECTION
            template = f"cudaforge/judge_{step.kind}.md.j2"
            advice = await context.ask("judge", f"judge/{entry.candidate_id}", template, schema, entry=entry)
            variables = {"entry": entry, "advice": advice}
        text = context.render(f"cudaforge/{step.kind}.md.j2", **variables)
        return Prompt(context.render("shared/system.md.j2"), text)

    def update(self, result: IterationResult, history: History) -> None:  # noqa: ARG002
        """k*, else the failure, becomes the current kernel."""
        if (focus := result.focus()) is not None:
            self.current = focus.candidate_id

    def dump(self) -> Json:
        """An id."""
        return {"version": 1, "current": self.current}

    def load(self, state: Json) -> None:
        """The same, back."""
        self.current = str(known(state, 1, current="")["current"])
