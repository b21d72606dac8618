"""What the build benchmark builds: cases with calls of their own, and whole candidate files run on their problem.

A subject is found again by its name in the process that builds it. Not here: building and comparing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch.utils import cpp_extension

from benchmarks.build_cases import Case, Raises, Value
from benchmarks.build_cuda_cases import CUDA_CASES
from benchmarks.build_error_cases import ERROR_CASES
from benchmarks.build_extra_cases import EVERY_CASE
from specgen.evaluation.problems import load_problem
from specgen.llm.synthetic import gpu_stock
from specgen.llm.synthetic.flaws import Flaw, edits
from specgen.llm.synthetic.tasks import TASKS, Task
from specgen.types import Status

Corpus = Literal["cpu", "gpu", "candidates", "errors"]
_SEED = 7
_FILES = 24  # of each of the synthetic model's CPU tasks


@dataclass(frozen=True)
class Subject:
    """``build`` raises BuildFailed; its result goes to each of ``calls``. ``route``: the one expected."""

    name: str
    text: str  # what identifies it: sources and flags
    build: Callable[[Path], Any]
    calls: tuple[Callable[[Any], Value], ...]
    route: Literal["facade", "stock"] = "facade"
    exact: bool = True
    speed: int | None = None  # the call whose time is compared between the routes

    @property
    def sha256(self) -> str:
        """Of ``text``."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def subjects(corpus: Corpus) -> list[Subject]:
    """All of a corpus, in a fixed order. ``candidates``: rendered CPU candidates, for the audit."""
    if corpus == "cpu":
        return [_of_case(case) for case in EVERY_CASE]
    if corpus == "errors":
        return [_of_case(case) for case in ERROR_CASES]
    if corpus == "gpu":
        return [*map(_of_case, CUDA_CASES), *map(_of_kernel, [*gpu_stock.correct(), *gpu_stock.WRONG])]
    return list(_rendered())


def find(corpus: Corpus, name: str) -> Subject:
    """By its name. Raises KeyError."""
    every: list[Subject] = [*subjects(corpus), *(subjects("candidates") if corpus == "cpu" else ())]
    return {subject.name: subject for subject in every}[name]


# What is timed to see that a kernel is as fast by either route: the last call of these cases that returns.
_TIMED = ("tiled_matmul", "fused_rows", "cuda_float4", "cuda_tiled_matmul", "cuda_fast_math", "cuda_half2")


def _of_case(case: Case) -> Subject:
    def build(directory: Path) -> ModuleType:
        if case.files:
            loaded: ModuleType = cpp_extension.load(**case.file_arguments(directory))
        else:
            loaded = cpp_extension.load_inline(**case.arguments())  # type: ignore[no-untyped-call]
        return loaded

    text = repr((case.arguments(), sorted(case.files.items())))
    returning = [index for index, call in enumerate(case.calls) if not isinstance(call.expect, Raises)]
    speed = returning[-1] if case.name in _TIMED else None
    return Subject(case.name, text, build, tuple(call.run for call in case.calls), case.route, case.exact, speed)


def _of_kernel(kernel: gpu_stock.Kernel) -> Subject:
    """A CUDA candidate of the stock, on its own problem at GPU size."""
    route: Literal["facade", "stock"] = "stock" if kernel.status is Status.COMPILE_ERROR else "facade"
    timed = kernel.status is Status.VALID
    return _of_file(
        kernel.name, kernel.source, kernel.task, "cuda", route, exact="atomic" not in kernel.source, timed=timed
    )


def _rendered() -> Iterator[Subject]:
    """Of the CPU tasks in turn: the best design, each mistake in it that compiles, and random designs."""
    rows = [list(_rendered_of(task)) for task in TASKS]
    for turn in zip_longest(*rows):
        yield from (subject for subject in turn if subject is not None)


def _rendered_of(task: Task) -> Iterator[Subject]:
    best = task.render(task.space.extreme(best=True))
    files = {best: "best"}
    for flaw in (Flaw.RAISES, Flaw.NUMERIC, Flaw.FAULT):
        files |= {best.replace(edit.find, edit.replace): flaw for edit in edits(task, flaw) if edit.find in best}
    rng = random.Random(f"{_SEED} {task.name}")
    while len(files) < _FILES:
        files.setdefault(task.render(task.space.sample(rng, careful=False)), "design")
    for number, (text, kind) in enumerate(files.items()):
        yield _of_file(f"{task.name}_{kind}_{number}", text, task.name, "cpu", "facade", timed=kind == "best")


def _of_file(
    name: str,
    text: str,
    problem: str,
    backend: Literal["cpu", "cuda"],
    route: Literal["facade", "stock"],
    *,
    exact: bool = True,
    timed: bool = False,
) -> Subject:
    def build(directory: Path) -> _Candidate:
        return _Candidate(_executed(text, str(directory / "candidate.py")), problem, backend)

    def call(made: _Candidate) -> Value:
        with torch.no_grad():
            return made.forward()

    return Subject(name, text, build, (call,), route, exact, 0 if timed else None)


@dataclass
class _Candidate:
    """A candidate's module; its model and its inputs are made when it runs, alone on the device."""

    module: ModuleType
    problem: str
    backend: Literal["cpu", "cuda"]
    ready: tuple[Any, list[Any]] | None = None

    def forward(self) -> Value:
        """As KernelBench runs it, inputs made on the device."""
        if self.ready is None:
            reference = _executed(load_problem(self.problem, self.backend).source, "problem.py")
            with torch.device(self.backend):
                torch.manual_seed(42)
                arguments = reference.get_init_inputs()
                torch.manual_seed(42)
                model = self.module.ModelNew(*arguments)
                self.ready = model, reference.get_inputs()
        model, inputs = self.ready
        return model(*inputs)


def _executed(text: str, file: str) -> ModuleType:
    module = ModuleType(Path(file).stem)
    exec(compile(text, file, "exec"), module.__dict__)
    return module
