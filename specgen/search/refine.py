"""refine: the last kernel and one piece of feedback on it (§3: iterative refinement as KernelBench does it).

The feedback is exactly one of: the compile log, the runtime error, the mismatch with its numbers, the time with the
profile. `window` says how many of the latest kernels a prompt shows; the paper's setting is 1.
"""

from __future__ import annotations

import random

from specgen.search.base import Context, Evaluated, History, IterationResult, Step, known
from specgen.types import Json, Prompt, Status

ANSWERS = (Status.NO_CODE.value, Status.NO_MODELNEW.value)


class Refine:
    """State: the candidates that the latest iterations were about, and a main failure that left no candidate."""

    def __init__(self, window: int = 1) -> None:
        self.window = window
        self.turns: list[str] = []  # candidate ids, oldest first, at most `window`
        self.note = ""  # what was wrong with the last answer itself: no_code, no_modelnew

    def select(self, history: History, rng: random.Random) -> Step:  # noqa: ARG002
        """From the latest kernel, valid or not; from scratch while there is none."""
        parents = tuple(turn for turn in self.turns if turn in history)
        return Step("refine" if parents else "seed", parents, {"note": self.note})

    async def compose(self, step: Step, context: Context) -> Prompt:
        """The problem, then the kernels of the window with their feedback, the latest last."""
        turns = [context.history.get(parent) for parent in step.parents]
        variables: dict[str, object] = {"note": step.args.get("note", "")}
        if turns:
            variables |= {"earlier": turns[:-1], "latest": turns[-1]}
        text = context.render(f"refine/{step.kind}.md.j2", **variables)
        return Prompt(context.render("shared/system.md.j2"), text)

    def update(self, result: IterationResult, history: History) -> None:  # noqa: ARG002
        """Go on from k*; where nothing was valid, from the failure; where there is not even code, from the same."""
        focus: Evaluated | None = result.focus()
        told = result.chosen is None and result.main_failure in ANSWERS  # a broken stream is not the LLM's fault
        self.note = result.main_failure if told else ""
        if focus is not None:
            turns = [turn for turn in self.turns if turn != focus.candidate_id]
            self.turns = [*turns, focus.candidate_id][-self.window :]

    def dump(self) -> Json:
        """Ids only: the history holds the rest."""
        return {"version": 1, "turns": list(self.turns), "note": self.note}

    def load(self, state: Json) -> None:
        """The same, back."""
        fields = known(state, 1, turns=[], note="")
        turns = fields["turns"]
        self.turns = [str(turn) for turn in turns] if isinstance(turns, list) else []
        self.note = str(fields["note"])
