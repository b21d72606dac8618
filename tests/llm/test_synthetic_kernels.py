"""The synthetic model's kernels are real: they compile and compute what the reference computes.

Each design's C++ is compiled by plain g++ without torch's headers (a second each instead of twenty-five): the function
that does the work takes pointers, so it is called directly on torch's memory. What torch adds around it, argument
checks and the output's allocation, is in one test per task through ``load_inline``, as the evaluator builds it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from specgen.llm.synthetic.cxx import compiler_flags
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.flaws import Flaw, edits
from specgen.llm.synthetic.tasks import TASKS, Task
from tests.llm.material import PROBLEMS

tasks = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])

# How the working function is reached from C, and from there with tensors of odd sizes.
WRAPPERS = {
    "T1": "void call(const float* p, const float* t, float* o, int64_t n, int64_t m) { *o = hinge(p, t, n, m, m); }",
    "T4": "void call(const float* a, const float* b, float* o, int64_t n, int64_t m) { diag_scale(a, b, o, n, m); }",
    "T12": "void call(const float* x, const float* w, float* o, int64_t b, int64_t i, int64_t h)"
    "{ gemm_sum(x, w, o, b, i, h, 1.5); }",
    "E1": "void call(const float* x, const float* s, const float* b, const float* r, float* o, int64_t n, int64_t m)"
    "{ chain(x, s, b, r, o, n, m, 2.0f); }",
}


def covering(task: Task) -> list[Design]:
    """Designs that hold every option, and every algorithm with every vectorisation, in random combinations."""
    rng = random.Random(11)
    missing = set().union(*(traits(task.space.sample(rng, careful=False)) for _ in range(2000)))
    chosen: list[Design] = []
    while missing:
        trials = [task.space.sample(rng, careful=False) for _ in range(100)]
        chosen.append(max(trials, key=lambda design: len(missing & traits(design))))
        missing -= traits(chosen[-1])
    return chosen


def traits(design: Design) -> set[tuple[str, ...]]:
    return {*design.choices, (design["algo"], design["simd"], "together")}


def worker_of(cpp: str) -> str:
    """All that comes before the function that takes tensors."""
    return cpp[: cpp.index("torch::Tensor run(")]


def compiled(task: Task, design: Design, folder: Path) -> Callable[..., None]:
    worker = worker_of(task.cpp(design)).replace("#include <torch/extension.h>", "")
    source, library = folder / "k.cpp", folder / f"k{random.Random(str(design)).getrandbits(40)}.so"
    source.write_text(f'{worker}\nextern "C" {WRAPPERS[task.name]}\n')
    flags = [*compiler_flags(design), "-std=c++17", "-shared", "-fPIC"]
    built = subprocess.run(
        ["g++", *flags, str(source), "-o", str(library)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, f"{design}\n{built.stderr[:3000]}"
    function = ctypes.CDLL(str(library)).call
    function.restype = None
    return lambda *arguments: function(*[_argument(a) for a in arguments])


def _argument(value: Any) -> Any:
    return ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_int64(value)


def problem(task: Task) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"problem_{task.name}", PROBLEMS / f"{task.name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trial(task: Task, call: Callable[..., None], n: int, m: int) -> float:
    """The largest error at the output's scale, on signed inputs of size n by m."""
    model = problem(task).Model(*{"T12": (m, 70, 1.5), "E1": (2.0,)}.get(task.name, ()))
    x = torch.randn(n, m)
    sizes: tuple[int, ...] = (n, m)
    if task.name == "T1":
        inputs = [x, torch.randint(0, 2, (m,)).float() * 2 - 1]
        out = torch.zeros(())
    elif task.name == "T4":
        inputs = [torch.randn(n), x]
        out = torch.zeros(n, m)
    elif task.name == "T12":
        inputs = [x]
        out, sizes = torch.zeros(n, 1), (n, m, 70)
    else:
        inputs = [x, torch.randn(m), torch.randn(m), torch.randn(n, m)]
        out = torch.zeros(n, m)
    expected = model(*inputs).detach()
    weights = [parameter.detach() for parameter in model.parameters()]
    if getattr(call, "dense", False):  # T4's poorer algorithms take the diagonal as a matrix
        inputs[0] = torch.diag(inputs[0]).contiguous()
    call(*inputs, *weights, out, *sizes)
    return float((out - expected).abs().max() / expected.abs().max().clamp_min(1e-6))


@tasks
@pytest.mark.timeout(600)
def test_designs_compile_and_match_the_reference(task: Task, tmp_path: Path) -> None:
    torch.manual_seed(5)
    for design in covering(task):
        call = compiled(task, design, tmp_path)
        if task.name == "T4" and design["algo"] != "row_scale":
            call.dense = True  # type: ignore[attr-defined]
        for n, m in ((33, 100), (7, 1), (3, 2061), (129, 64)):
            assert trial(task, call, n, m) < 2e-5, (design, n, m)


@tasks
def test_wrong_kernels_are_wrong(task: Task, tmp_path: Path) -> None:
    """Each numerical mistake shows on random inputs; those that change the sizes read no further than the inputs."""
    torch.manual_seed(5)
    design = task.space.extreme(best=True)
    right = task.cpp(design)
    for edit in task.wrong:
        spoiled = right.replace(edit.find, edit.replace)
        if worker_of(spoiled) == worker_of(right):
            continue  # in the host function: see the test below
        wrong = Task(**{**vars(task), "cpp": lambda _design, text=spoiled: text})
        assert trial(task, compiled(wrong, design, tmp_path), 33, 100) > 2e-2, edit


@tasks
def test_compile_mistakes_do_not_compile(task: Task, tmp_path: Path) -> None:
    """Those in the working function; the host function's are ordinary C++ errors of the same kind."""
    design = task.space.extreme(best=True)
    right = task.cpp(design)
    tried = 0
    for edit in edits(task, Flaw.COMPILE):
        spoiled = right.replace(edit.find, edit.replace)
        if worker_of(spoiled) != worker_of(right):
            tried += 1
            wrong = Task(**{**vars(task), "cpp": lambda _design, text=spoiled: text})
            with pytest.raises(AssertionError, match="error:"):
                compiled(wrong, design, tmp_path)
    assert tried >= 2


CHECK = """
import importlib.util, json, sys
from pathlib import Path
import torch
from specgen.evaluation.build import ensure_support, install

def load(name, text):
    path = Path(sys.argv[2]) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def outcome(problem, text, number):
    arguments = problem.get_init_inputs()
    torch.manual_seed(42)
    reference = problem.Model(*arguments)
    inputs = problem.get_inputs()
    try:
        candidate = load(f"candidate{number}", text)
        torch.manual_seed(42)
        new = candidate.ModelNew(*arguments)
        got = new(*inputs)
    except Exception as exc:
        return "raises"
    expected = reference(*inputs)
    same = got.shape == expected.shape and got.dtype == expected.dtype
    scale = expected.abs().max().item()
    for name, tolerance in (("right", 1e-4), ("close", 1e-2)):
        if same and torch.allclose(got, expected, rtol=tolerance, atol=tolerance * scale):
            return name
    return "wrong"

install(Path(sys.argv[2]), mode="auto", support=ensure_support(Path(sys.argv[1])))
torch.set_grad_enabled(False)
job = json.load(sys.stdin)
problem = load("problem", job["problem"])
print(json.dumps([outcome(problem, text, number) for number, text in enumerate(job["candidates"])]))
"""


@tasks
@pytest.mark.timeout(600)
def test_whole_candidate_files_build_and_do_what_they_are_meant_to(task: Task, tmp_path: Path) -> None:
    """Through the evaluator's own build; its support library is made once per machine and kept."""
    right = task.render(task.space.extreme(best=True))
    meant = {right: "right"}
    for flaw, name in ((Flaw.RAISES, "raises"), (Flaw.NUMERIC, "wrong")):
        meant |= {right.replace(edit.find, edit.replace): name for edit in edits(task, flaw)}
    job = {"problem": (PROBLEMS / f"{task.name}.py").read_text(), "candidates": list(meant)}
    shared = Path(
        os.environ.get("SPECGEN_TEST_CACHE") or Path(tempfile.gettempdir()) / f"specgen-support-{os.getuid()}"
    )
    command = [sys.executable, "-c", CHECK, str(shared), str(tmp_path)]
    ran = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == list(meant.values())
