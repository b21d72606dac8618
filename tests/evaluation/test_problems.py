"""Problems: names, paths, static checks, and the built-in ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specgen.errors import ProblemError
from specgen.evaluation.problems import Backend, builtin_names, builtins, load_problem
from specgen.evaluation.reference import Reference
from specgen.evaluation.register import examine
from specgen.evaluation.tensors import leaves
from specgen.evaluation.tracer import trace
from specgen.types import ProblemSpec

GOOD = """
import torch
class Model(torch.nn.Module):
    def forward(self, a):
        return FORWARD
def get_inputs():
    return [torch.rand(64, 64)]
def get_init_inputs():
    return []
"""


def test_builtin_problems_exist_in_both_sizes() -> None:
    names = ("E1", *(f"T{number}" for number in range(1, 21)))
    assert builtin_names() == builtin_names("cuda") == names
    assert load_problem("T4").tolerance == 1e-2
    assert "4096" in load_problem("T4", "cuda").source


def test_a_users_file_has_kernelbenchs_tolerance(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD.replace("FORWARD", "a * 2"))
    problem = load_problem(str(file))
    assert (problem.name, problem.tolerance) == ("mine", 1e-4)
    assert load_problem(str(file), tolerance=0.5).tolerance == 0.5


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("class Model(", "not valid Python"),
        (GOOD.replace("class Model(", "class Other("), "no class Model"),
        (GOOD.replace("def get_inputs", "def inputs"), "get_inputs"),
        (GOOD.replace("def get_init_inputs", "def init"), "get_init_inputs"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(ProblemError, match=word):
        load_problem(str(file))


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ProblemError) as caught:
        load_problem("T99")
    assert "T12" in caught.value.hint


def test_loading_a_problem_imports_no_torch() -> None:
    code = "import sys, specgen.evaluation.cell, specgen.evaluation.problems as p, specgen.evaluation.register\n"
    code += "p.load_problem('T4'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("forward", ["a.nothing", "a @ torch.rand(3, 3)", "'text'.missing"])
def test_a_reference_that_raises_cannot_be_registered(forward: str) -> None:
    with pytest.raises(ProblemError):
        examine(ProblemSpec(name="bad", source=GOOD.replace("FORWARD", forward)))


# KernelBench's sizes: elements of inputs, parameters and buffers, 4 bytes each, and the output's shape
GPU_SIZES = {
    "T1": (32768 * 32768 + 32768, []),
    "T2": (16 * 1024 * 2048 + 2048 * 768, [16, 1024, 768]),
    "T3": (8 * 256 * 512 * 256 + 256 * 768, [8, 256, 512, 768]),
    "T4": (4096 + 4096**2, [4096, 4096]),
    "T5": (2 * 4096**2, [4096, 4096]),
    "T6": (2 * 4096**2, [4096, 4096]),
    "T7": (2 * 4096**2, [4096, 4096]),
    "T8": (8192 * (2048 + 4096), [2048, 4096]),
    "T9": (8192 * (2048 + 4096), [2048, 4096]),
    "T10": (8192 * (2048 + 4096), [2048, 4096]),
    "T11": (8192 * (1024 + 8192 + 1), [1024, 8192]),
    "T12": (8192 * (1024 + 8192), [1024, 1]),
    "T13": (8192 * (1024 + 8192 + 6) + 2, [1024, 8192]),
    "T14": (64**2 * 128**2 + 128 * (64 * 9 + 5) + 2, [64, 128, 126, 126]),
    "T15": (32768 * (128 + 32768 + 1), [128, 1]),
    "T16": (8 * 128 * 128**2 + 64 * (8 * 9 + 5) + 2, [128, 64, 126, 126]),
    "T17": (8192 * (1024 + 8192 + 1), [1024, 8192]),
    "T18": (8192 * (1024 + 8192 + 1), [1024, 8192]),
    "T19": (16384 * (128 + 2 * 16384 + 8192 + 2) + 8192, [128, 8192]),
    "T20": (16 * 1024 * 768 + 3 * 768 * 769 + 1024**2 // 4, [16, 1024, 768]),  # the mask: one byte each
}


def test_gpu_sizes_are_kernelbenchs() -> None:
    assert {*GPU_SIZES, "E1"} == set(builtin_names("cuda"))
    for name, (elements, shape) in GPU_SIZES.items():
        found = trace(load_problem(name, "cuda"))
        assert found.outputs == (f"float32 {shape}",), name
        assert found.read_bytes == found.input_bytes + found.parameter_bytes == 4 * elements, name


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_problem_runs_and_repeats(name: str) -> None:
    problem = load_problem(name)
    reference, other = Reference(problem), Reference(problem)
    inputs = reference.inputs(7)
    outputs = reference.forward(inputs, 3)
    assert all(torch.equal(a, b) for a, b in zip(leaves(inputs), leaves(other.inputs(7)), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(leaves(outputs), leaves(other.forward(inputs, 3)), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(leaves(inputs), leaves(other.inputs(8)), strict=True))
    assert all(leaf.isfinite().all() and leaf.dtype == torch.float32 for leaf in leaves(outputs))
    assert trace(problem).flops < 4e9  # well under a second on one core


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_built_in_problems_describe_themselves(backend: Backend) -> None:
    for item in builtins():
        problem = load_problem(item.name, backend)
        text = ast.get_docstring(ast.parse(problem.source)) or ""
        assert text.startswith(f"{item.name}, {item.task.split(':')[0]}"), item.name
        assert text.splitlines()[0].endswith(" CPU size." if backend == "cpu" else " GPU size."), item.name
        shape = text.rpartition("-> ")[2].rstrip(".")
        assert trace(problem).outputs == (f"float32 {'[]' if shape == 'a number' else shape}",), item.name


def test_the_command_exits_with_2_and_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specgen.evaluation.register", "nowhere.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
