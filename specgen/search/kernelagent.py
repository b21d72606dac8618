"""kernelagent: a beam of kernels, several diagnosed bottlenecks each, repairs, and lessons (a baseline of §8).

A round takes every kernel of the beam and each of its M bottlenecks (a Judge names them, all different). A failed
attempt is repaired up to three times, each repair an iteration. A Reflector turns earlier attempts into lessons, which
all prompts of the round share. Kernels of equal code count once before the fastest N survive.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from specgen.search.base import WAIT, Context, History, IterationResult, Step, Verdict, distinct, known, object_of
from specgen.types import Json, Prompt

LESSON = object_of("lesson", "avoid", "try")
KEPT, SHOWN = 10, 5  # attempts to reflect on


@dataclass(frozen=True)
class Beam:
    """How wide the search is."""

    kernels: int = 2  # N
    bottlenecks: int = 2  # M
    repairs: int = 3


class KernelAgent:
    """State: the beam, what is left of the round, how many iterations are out, attempts to reflect on."""

    max_lanes = 4  # a round of N kernels with M bottlenecks each; the next round waits for all of it

    def __init__(self, beam: Beam | None = None) -> None:
        self.shape = beam or Beam()
        self.beam: list[str] = []
        self.queue: list[Step] = []
        self.out = 0
        self.attempts: list[tuple[str, str]] = []  # (parent, child), both valid

    def select(self, history: History, rng: random.Random) -> Step | Verdict:  # noqa: ARG002
        """The next of the round; a new round once all of the last one has closed."""
        if not self.queue:
            if self.out:
                return WAIT
            self.queue = self._round()
        self.out += 1
        return self.queue.pop(0)

    def _round(self) -> list[Step]:
        shared: dict[str, Json] = {"repairs": 0, "lessons": [list(pair) for pair in self.attempts[-SHOWN:]]}
        if not self.beam:
            return [Step("seed", (), shared) for _ in range(self.shape.kernels * self.shape.bottlenecks)]
        places = range(self.shape.bottlenecks)
        return [Step("optimise", (kernel,), {**shared, "bottleneck": n}) for kernel in self.beam for n in places]

    async def compose(self, step: Step, context: Context) -> Prompt:
        """Diagnosis and lessons are asked for once; the other steps of the round find them under their keys."""
        variables: dict[str, object] = {}
        if step.parents:
            variables["entry"] = context.history.get(step.parents[0])
        if step.kind == "optimise":
            variables |= {"bottleneck": await self._bottleneck(step, context), "lessons": await _lessons(step, context)}
        text = context.render(f"kernelagent/{step.kind}.md.j2", **variables)
        return Prompt(context.render("shared/system.md.j2"), text)

    async def _bottleneck(self, step: Step, context: Context) -> Json:
        entry, number = context.history.get(step.parents[0]), self.shape.bottlenecks
        schema: dict[str, Json] = {
            "type": "array",
            "items": object_of("bottleneck", "cause", "evidence", "fix"),
            "minItems": number,
            "uniqueItems": True,
        }
        key = f"diagnose/{entry.candidate_id}"
        found = await context.ask("judge", key, "kernelagent/diagnose.md.j2", schema, entry=entry, number=number)
        different: dict[str, Json] = {}  # a Judge may name one twice in other words
        for one in found if isinstance(found, list) else []:
            if isinstance(one, dict):
                different.setdefault(str(one["bottleneck"]).strip().lower(), one)
        place = int(str(step.args["bottleneck"]))
        return list(different.values())[place] if place < len(different) else None

    def update(self, result: IterationResult, history: History) -> None:
        """The beam takes what is faster; a failure comes back to be repaired."""
        self.out -= 1
        valid = [*self.beam, *(entry.candidate_id for entry in result.evaluated if entry.valid)]
        self.beam = distinct(valid, history)[: self.shape.kernels]
        focus, repairs = result.focus(), int(str(result.step.args.get("repairs", 0)))
        if focus is None:
            return
        if not focus.valid and repairs < self.shape.repairs:
            self.queue.insert(0, Step("repair", (focus.candidate_id,), {**result.step.args, "repairs": repairs + 1}))
        elif focus.valid and result.step.kind == "optimise" and result.step.parents[0] != focus.candidate_id:
            self.attempts = [*self.attempts, (result.step.parents[0], focus.candidate_id)][-KEPT:]

    def dump(self) -> Json:
        """Ids and steps."""
        return {
            "version": 1,
            "beam": list(self.beam),
            "queue": [step.dump() for step in self.queue],
            "out": self.out,
            "attempts": [list(pair) for pair in self.attempts],
        }

    def load(self, state: Json) -> None:
        """The same, back."""
        match known(state, 1, beam=[], queue=[], out=0, attempts=[]):
            case {"beam": list(beam), "queue": list(queue), "out": int(out), "attempts": list(attempts)}:
                self.beam, self.out = [str(name) for name in beam], out
                self.queue = [Step.load(step) for step in queue]
                self.attempts = _pairs(attempts)


async def _lessons(step: Step, context: Context) -> list[Json]:
    lessons = []
    for before, after in _pairs(step.args["lessons"]):
        entries = {"before": context.history.get(before), "after": context.history.get(after)}
        key = f"reflect/{before[:32]}/{after[:32]}"
        lessons.append(await context.ask("reflector", key, "kernelagent/reflect.md.j2", LESSON, **entries))
    return [lesson for lesson in lessons if lesson is not None]


def _pairs(data: Json) -> list[tuple[str, str]]:
    pairs = data if isinstance(data, list) else []
    return [(str(pair[0]), str(pair[1])) for pair in pairs if isinstance(pair, list)]
