"""What the synthetic model knows about a task. Data and pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from specgen.llm.synthetic.cxx import candidate_file, compiler_flags
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option


@dataclass(frozen=True)
class Edit:
    """A mistake: every occurrence of ``find`` in a correct file becomes ``replace``."""

    find: str
    replace: str


@dataclass(frozen=True)
class Subject:
    """What a trace can ramble about: decisions, the operands in prose, and true sentences about the problem."""

    axes: tuple[Axis, ...]
    operands: tuple[str, str]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """``cpp`` gives the C++ of a design; ``model`` is the Python class; ``wrong`` are mistakes that compile, run and
    give other numbers, each present in every design; ``marks`` identify the reference's source."""

    name: str
    title: str
    stem: str
    easy: bool
    marks: tuple[re.Pattern[str], ...]
    space: DesignSpace
    cpp: Callable[[Design], str]
    entry: str  # how the function that does the work begins
    model: str
    wrong: tuple[Edit, ...]
    operands: tuple[str, str]  # input and output in prose
    remarks: tuple[str, ...]  # true sentences about the problem, for its traces

    @property
    def subject(self) -> Subject:
        """For rambling."""
        return Subject(self.space.axes, self.operands, self.remarks)

    def render(self, design: Design) -> str:
        """The whole candidate file of a complete design; correct by intent."""
        return candidate_file(
            self.space.comment(design), self.cpp(design), compiler_flags(design), self.model, self.stem
        )


def order_axis(first: tuple[str, str, float], second: tuple[str, str, float]) -> Axis:
    """The loop order: (value, phrase, quality) of both ways."""
    return Axis("order", "loop order", (Option(*first), Option(*second)))


ACC = Axis(
    "acc",
    "accumulator",
    (Option("double", "a double accumulator", 0.5), Option("float", "a single-precision accumulator", 0.6)),
)
ALLOC = Axis(
    "alloc",
    "output allocation",
    (Option("zeros", "a zero-filled output", 0.3), Option("empty", "an uninitialised output", 0.8)),
)


def segments(start: str, end: str, body: str) -> str:
    """A loop over [start, end) in steps of TILE that gives ``lo`` and ``hi`` to ``body``."""
    return f"""for (int64_t lo = {start}; lo < {end}; lo += TILE) {{
    const int64_t hi = lo + TILE < {end} ? lo + TILE : {end};
    {body}
  }}"""
