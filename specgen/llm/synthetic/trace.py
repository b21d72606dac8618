"""Writing a reasoning trace: milestones (decisions, plans, code) at their places, and rambling in between.

Decisions fall between `Rates.first_decision_at` and `Rates.last_decision_at` of the trace, in the order in which they
build on each other; then come a partial draft, a complete kernel body and doubts, as in Figure 8.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from specgen.llm.server_types import CHARS_PER_TOKEN
from specgen.llm.synthetic import commitments
from specgen.llm.synthetic.design import Axis, Design
from specgen.llm.synthetic.feedback import Feedback
from specgen.llm.synthetic.rates import Rates
from specgen.llm.synthetic.tasks import AnyTask
from specgen.llm.synthetic.tasks.base import Subject
from specgen.llm.synthetic.words import Rambling

_ANNOUNCE = (
    "Let me write the kernel:",
    "Let me implement this now.",
    "Now I'll write the full kernel:",
    "OK, let me write this out:",
)
_PLAN = ("Here is the plan:", "Let me summarise the plan so far:", "So the plan is:")
_WITHDRAWN = (
    "Wait, no. That does not hold up: {remark}.",
    "Actually no, that was too quick, because {remark}.",
    "Hmm, on second thought I am not happy with that.",
)
_BECAUSE = (
    "The reason is that {remark}.",
    "That keeps the loop simple.",
    "It is the option with the least memory traffic.",
    "That should be good enough, and it is easy to get right.",
    "Everything else builds on that.",
)


@dataclass(frozen=True)
class Trace:
    """A reasoning trace and the design it ends with."""

    text: str
    design: Design


@dataclass(frozen=True)
class _Milestone:
    at: float  # share of the trace
    text: str


def length_chars(rates: Rates, rng: random.Random) -> int:
    """Lognormal around the mean (not the median), within a factor of three of it."""
    mu = math.log(rates.trace_tokens_mean) - rates.trace_sigma**2 / 2
    tokens = rng.lognormvariate(mu, rates.trace_sigma)
    bounded = min(max(tokens, rates.trace_tokens_mean / 3), rates.trace_tokens_mean * 3)
    return round(bounded * CHARS_PER_TOKEN)


def write(task: AnyTask, design: Design, feedback: Feedback, rates: Rates, rng: random.Random) -> Trace:
    """A trace that arrives at ``design``, or at one changed decision beside it."""
    milestones, final = _milestones(task, design, feedback, rates, rng)
    rambling = Rambling(task.subject, rng)
    chars = length_chars(rates, rng)
    parts: list[str] = []
    written = 0
    for milestone in milestones:
        while written < milestone.at * chars:
            parts.append(_filler(rambling, rates, rng))
            written += len(parts[-1]) + 2
        parts.append(milestone.text)
        written += len(milestone.text) + 2
    return Trace("\n\n".join(parts), final)


def _filler(rambling: Rambling, rates: Rates, rng: random.Random) -> str:
    """A paragraph, followed by a snippet or an announcement as often as real traces have them."""
    text = rambling.paragraph()
    fences, phrases = len(text) / rates.fence_every_chars, len(text) / rates.phrase_every_chars
    kind = rng.choices(("snippet", "phrase", "none"), (fences, phrases, max(0.0, 1 - fences - phrases)))[0]
    if kind == "snippet":
        return f"{text}\n\n{rambling.snippet()}"
    return f"{text} {rambling.phrase()}" if kind == "phrase" else text


def ramble(chars: int, rng: random.Random, subject: Subject) -> str:
    """Reasoning that comes to no decision, of about ``chars`` characters."""
    rambling = Rambling(subject, rng)
    parts: list[str] = []
    while sum(map(len, parts)) < chars:
        parts.append(rambling.paragraph())
    return "\n\n".join(parts)


def _milestones(
    task: AnyTask, design: Design, feedback: Feedback, rates: Rates, rng: random.Random
) -> tuple[list[_Milestone], Design]:
    space = task.space
    step = (rates.last_decision_at - rates.first_decision_at) / len(space.axes)
    marks = [_Milestone(0.0, _opening(task, feedback))]
    places = [rates.first_decision_at + step * (number + rng.uniform(0, 0.9)) for number in range(len(space.axes))]
    places[0] = rates.first_decision_at + step * rng.uniform(0, 0.3)
    taken = Design()
    for axis, place in zip(space.axes, places, strict=True):
        marks.append(_Milestone(place, _decision(task, axis, design[axis.name], rates, rng)))
        taken = taken.with_choice(axis.name, design[axis.name])
        if len(taken) == len(space.axes) // 2:
            marks.append(_Milestone(place + step * 0.05, f"{rng.choice(_PLAN)}\n{commitments.plan(space, taken)}"))
        if len(taken) == len(space.axes) - 2:
            marks.append(_Milestone(place + step * 0.05, _partial(task, taken)))
    body = f"{rng.choice(_ANNOUNCE)}\n\n```{task.tag}\n{task.excerpt(taken)}\n```"
    marks.append(_Milestone(rates.last_decision_at + 0.04, body))
    if rng.random() < rates.late_change:
        axis = rng.choice(space.axes[2:])
        value = axis.sample(rng, careful=True)
        marks.append(_Milestone(0.86, f"One more thing. {commitments.commit(axis, value, rng)}"))
        taken = taken.with_choice(axis.name, value)
    marks.append(_Milestone(1.0, "I have everything I need. Time to write the final answer."))
    return marks, taken


def _opening(task: AnyTask, feedback: Feedback) -> str:
    intro = f"We have to replace the reference for {task.title} with a custom {task.language} kernel."
    intro = f"{intro} {_sentence(task.remarks[0])}"
    if feedback.base is None:
        return intro
    if feedback.failed:
        return f"{intro} The previous kernel ended with {feedback.failed}, so the first thing is to find out why."
    speed = f" reached a speedup of {feedback.speedup:g}" if feedback.speedup else " was correct"
    return f"{intro} The previous kernel{speed}; the question is what still holds it back."


def _sentence(remark: str) -> str:
    return f"{remark[0].upper()}{remark[1:]}."


def _decision(task: AnyTask, axis: Axis, value: str, rates: Rates, rng: random.Random) -> str:
    remark = rng.choice(task.remarks)
    because = rng.choice(_BECAUSE).format(remark=remark)
    others = [option.value for option in axis.options if option.value != value]
    doubt = f"On the {axis.label}: should it be {axis[rng.choice(others)].phrase}?"
    first = ""
    if rng.random() < rates.reversal:
        first = f"{commitments.commit(axis, rng.choice(others), rng)} {rng.choice(_WITHDRAWN).format(remark=remark)} "
    return f"{doubt} {first}{commitments.commit(axis, value, rng)} {because}"


def _partial(task: AnyTask, taken: Design) -> str:
    return f"The skeleton so far:\n\n```{task.tag}\n{task.skeleton(taken)}\n```"
