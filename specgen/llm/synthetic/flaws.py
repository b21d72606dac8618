"""Mistakes: how a correct candidate file becomes one that does not compile, raises, faults or computes something else.

Each is an edit of the text that real models' mistakes resemble. None hides from the evaluation and none aims at it.
"""

from __future__ import annotations

import random
from enum import StrEnum

from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.rates import Rates
from specgen.llm.synthetic.tasks import AnyTask, Edit
from specgen.types import normalise_source


class Flaw(StrEnum):
    """What is wrong with a kernel. The first three groups are Figure 3's compiler, runtime and numerical errors."""

    NONE = "none"
    COMPILE = "compile"
    RAISES = "raises"
    FAULT = "fault"
    NUMERIC = "numeric"
    NO_CODE = "no_code"
    NO_MODELNEW = "no_modelnew"


def draw(valid: float, rates: Rates, rng: random.Random, *, layout: bool = False) -> Flaw:
    """No flaw with probability ``valid``, else one by the shares of Figure 3's kinds. ``layout``: of a problem whose
    operands' layout is easily taken wrongly."""
    fine, kind, fault, other = rng.random() < valid, rng.random(), rng.random(), rng.random()
    moved = rates.layout_shift if layout else 0.0
    if fine:
        return Flaw.NONE
    if kind < rates.compile_share - moved:
        return Flaw.COMPILE
    kind -= rates.compile_share - moved
    if kind < rates.runtime_share:
        return Flaw.FAULT if fault < rates.fault_share else Flaw.RAISES
    if kind - rates.runtime_share < rates.numeric_share + moved:
        return Flaw.NUMERIC
    return Flaw.NO_CODE if other < 0.7 else Flaw.NO_MODELNEW


def edits(task: AnyTask, flaw: Flaw) -> tuple[Edit, ...]:
    """The edits that make ``flaw`` in this task's files; any one of them does."""
    return {
        Flaw.COMPILE: task.slips.compile,
        Flaw.RAISES: task.slips.raises,
        Flaw.FAULT: task.slips.fault,
        Flaw.NUMERIC: task.wrong,
        Flaw.NO_MODELNEW: (Edit("class ModelNew(", "class Model("),),
    }.get(flaw, ())


def recognise(source: str, task: AnyTask, design: Design) -> tuple[Flaw, str] | None:
    """What is wrong with a kernel of that design, and the mistaken text; None where it is neither the correct file nor
    one with a known mistake."""
    right, given = task.render(design), normalise_source(source)
    if normalise_source(right) == given:
        return Flaw.NONE, ""
    for flaw in Flaw:
        for edit in edits(task, flaw):
            if edit.find in right and normalise_source(right.replace(edit.find, edit.replace)) == given:
                return flaw, edit.replace
    return None


def spoil(source: str, task: AnyTask, flaw: Flaw, rng: random.Random) -> str:
    """The file with one mistake of the kind; unchanged where the flaw is none, or not one of the file's."""
    possible = [edit for edit in edits(task, flaw) if edit.find in source]
    if not possible:
        return source
    edit = rng.choice(possible)
    return source.replace(edit.find, edit.replace)
