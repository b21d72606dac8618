"""Problems: names, paths, static checks, and one run of the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specgen.errors import ProblemError
from specgen.evaluation.problems import builtin_names, load_problem
from specgen.evaluation.register import register
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


def test_registering_runs_the_reference_once() -> None:
    found = register(load_problem("T12"))
    assert found.outputs == ["float32 [256, 1]"]
    assert found.reference_ms > 0
    assert found.distributions == 3
    assert found.strawmen == []


@pytest.mark.parametrize("forward", ["a.nothing", "a @ torch.rand(3, 3)", "'text'.missing"])
def test_a_reference_that_raises_cannot_be_registered(forward: str) -> None:
    with pytest.raises(ProblemError):
        register(ProblemSpec(name="bad", source=GOOD.replace("FORWARD", forward)))


def test_a_tolerance_that_accepts_zeros_is_warned_of() -> None:
    small = GOOD.replace("FORWARD", "a * 1e-9")
    fine = register(ProblemSpec(name="fine", source=small, tolerance=1e-2))
    assert fine.strawmen == []  # the scaled distributions refuse them
    constant = GOOD.replace("FORWARD", "torch.zeros_like(a) + 0 * a")
    straw = register(ProblemSpec(name="straw", source=constant, tolerance=1e-2))
    assert "zeros" in straw.strawmen
    assert straw.warnings


def test_the_command_exits_with_2_and_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specgen.evaluation.register", "nowhere.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
