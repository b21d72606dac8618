"""What the synthetic model knows about a task. Data and pure functions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from specgen.llm.synthetic.cxx import candidate_file, compiler_flags
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option
from specgen.llm.synthetic.manner import CXX, Manner


@dataclass(frozen=True)
class Edit:
    """A mistake: every occurrence of ``find`` in a correct file becomes ``replace``."""

    find: str
    replace: str


@dataclass(frozen=True)
class Slips:
    """Mistakes of a language that any of its files can have: it does not compile, raises, faults."""

    compile: tuple[Edit, ...]
    raises: tuple[Edit, ...]
    fault: tuple[Edit, ...]


CXX_SLIPS = Slips(
    compile=(
        Edit("return out;\n", "return out\n"),
        Edit("out.data_ptr<float>()", "out.data_pointer<float>()"),
        Edit("constexpr int64_t TILE = ", "constexpr int64_t TILE_SIZE = "),
        Edit('functions=["run"]', 'functions=["run", "backward"]'),
        Edit("static inline float max_of(float a, float b) {", "static inline float max_of(float a, b) {"),
    ),
    raises=(
        Edit("return ext.run(", "return ext.forward("),
        Edit("torch::Tensor run(", "torch::Tensor run(int64_t, "),
        Edit("\n  auto out = ", '\n  TORCH_CHECK(TILE % 16 == 1, "the tile must be padded by one");\n  auto out = '),
    ),
    fault=(
        Edit("out.data_ptr<float>()", "std::vector<float>().data()"),
        Edit("out.data_ptr<float>()", "(out.data_ptr<float>() + (int64_t{1} << 40))"),
    ),
)


@dataclass(frozen=True)
class Subject:
    """What a trace can ramble about: decisions, the operands in prose, and true sentences about the problem."""

    axes: tuple[Axis, ...]
    operands: tuple[str, str]
    remarks: tuple[str, ...]
    manner: Manner = CXX


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

    layout: ClassVar[bool] = False  # its operands' layout is easily taken wrongly
    language: ClassVar[str] = "C++"
    tag: ClassVar[str] = "cpp"  # of its fences
    slips: ClassVar[Slips] = CXX_SLIPS

    @property
    def subject(self) -> Subject:
        """For rambling."""
        return Subject(self.space.axes, self.operands, self.remarks)

    def render(self, design: Design) -> str:
        """The whole candidate file of a complete design; correct by intent."""
        return candidate_file(
            self.space.comment(design), self.cpp(design), compiler_flags(design), self.model, self.stem
        )

    def complete(self, partial: Design, base: Design | None, keep: float, rng: random.Random) -> Design:
        """What a fork makes of the decisions that its prefix commits."""
        return self.space.complete(partial, base, keep, rng)

    def excerpt(self, design: Design) -> str:
        """The design without its helpers: the constants and the function that does the work."""
        cpp = self.cpp(design)
        body = cpp[cpp.index(self.entry) : cpp.index("torch::Tensor run(")].rstrip()
        return f"{self.declared(design)}\n\n{body}"

    def skeleton(self, taken: Design) -> str:
        """A draft of what is decided so far."""
        return f"{self.declared(taken)}\nfor (int64_t lo = 0; lo < m; lo += TILE) {{\n  // body\n}}"

    def declared(self, design: Design) -> str:
        """The decided numbers as C++ declarations; empty where there are none."""
        decided = [axis for axis in self.space.axes if axis.constant and axis.name in design]
        return "\n".join(f"constexpr int64_t {axis.constant} = {design[axis.name]};" for axis in decided)


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
