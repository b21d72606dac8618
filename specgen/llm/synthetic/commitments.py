"""Decisions in prose: how a trace states them, and how they are read back from any prefix of one (§4.2, Figure 8).

A fork is answered from the text of its prefix alone, so the server needs no memory of the main stream. A decision is a
commitment: an adopting phrase and a value in one sentence, or a constant bound in code or in a plan. Questions,
conditionals and rejected alternatives are not; the latest commitment of a kind holds.
"""

from __future__ import annotations

import random
import re

from specgen.llm.synthetic.design import Axis, Design, DesignSpace

_ADOPTING = (
    "I'll use {}.",
    "I'll go with {}.",
    "Let's use {}.",
    "OK, so I'm going with {}.",
    "Let me go with {} here.",
    "Decision: {}.",
    "We'll take {}.",
    "Settled, I'll use {}.",
)
_CONSTANT = ("I'll set {name} = {value}.", "{name} = {value}.", "So {name} = {value}, that is decided.")
_ADOPTS = re.compile(r"\b(?:I'll|Let's|We'll|I'm going|Let me) (?:use|go with|take|with)\b|\bDecision:|^[-*] ")
_VETO = re.compile(r"\?|\b(?:if|would|could|might|maybe|suppose|wouldn't|unless|whether)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")


def commit(axis: Axis, value: str, rng: random.Random) -> str:
    """A sentence that takes the decision."""
    if axis.constant and rng.random() < 0.5:
        return rng.choice(_CONSTANT).format(name=axis.constant, value=value)
    return rng.choice(_ADOPTING).format(axis[value].phrase)


def plan(space: DesignSpace, design: Design) -> str:
    """The decisions so far as a list."""
    lines = [f"- {axis.label}: {axis[design[axis.name]].phrase}" for axis in space.axes if axis.name in design]
    return "\n".join(lines)


def read(space: DesignSpace, trace: str) -> Design:
    """The decisions that hold at the end of ``trace``, in the space's order. Linear in its length."""
    bound = {axis.constant: axis for axis in space.axes if axis.constant}
    binding = re.compile(rf"\b({'|'.join(bound)}) = (\d+)\b") if bound else None
    held: dict[str, str] = {}
    for sentence in _SENTENCE_END.split(trace):
        if _VETO.search(sentence):
            continue
        if _ADOPTS.search(sentence):
            for axis in space.axes:
                for option in axis.options:
                    if option.phrase in sentence:
                        held[axis.name] = option.value
        if binding is not None and (found := binding.search(sentence)):
            axis = bound[found[1]]
            if found[2] in axis.values:
                held[axis.name] = found[2]
    return Design(tuple((axis.name, held[axis.name]) for axis in space.axes if axis.name in held))
