"""A checkout in KernelBench's layout (files of our own): listing, finding, loading, and what a file needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specgen.cli import problems as _commands  # noqa: F401  adds them to the app
from specgen.cli.main import app
from specgen.errors import ProblemError, SettingsError
from specgen.evaluation.kernelbench import Checkout, checkout, needs
from specgen.evaluation.problems import load_problem
from specgen.evaluation.register import register
from specgen.settings import get_settings

PLAIN = """
import math
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, a):
        return a * math.pi

def get_inputs():
    return [torch.rand(16, 16)]

def get_init_inputs():
    return []
"""
PRETRAINED = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

class Model(torch.nn.Module):
    def __init__(self, name, config):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(name, config=config)

model_name = "someone/some-model"
config = AutoConfig.from_pretrained(model_name)

def get_inputs():
    return [torch.zeros(1, 8).long()]

def get_init_inputs():
    return [model_name, config]
"""
FILES = {
    "level1/2_Square_matrix.py": PLAIN,
    "level1/10_conv_2D.py": PLAIN,
    "level1/11_conv_3D__padded_.py": PLAIN,
    "level1/notes.py": "no problem of the benchmark",
    "level2/2_Conv_ReLU.py": PLAIN,
    "level3/7_Mamba.py": PLAIN.replace("import math", "import math\nfrom a_package_nobody_has.parts import thing"),
    "level4/1_some-model_bs1.py": PRETRAINED,
}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    root = tmp_path / "bench"
    for name, text in FILES.items():
        path = root / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_problems_are_listed_by_level_and_number(bench: Path) -> None:
    for root in (bench, bench / "KernelBench"):
        names = [entry.name for entry in Checkout(root).entries()]
        assert names == ["L1/2", "L1/10", "L1/11", "L2/2", "L3/7", "L4/1"]
    assert Checkout(bench).find("L1/11").title == "conv 3D  padded"


def test_a_list_is_filtered(bench: Path) -> None:
    def names(level: int | None = None, match: str = "") -> list[str]:
        return [entry.name for entry in Checkout(bench).entries(level, match)]

    assert names(1, "CONV") == ["L1/10", "L1/11"]
    assert names(match="conv") == ["L1/10", "L1/11", "L2/2"]
    assert names(match="l1/2") == ["L1/2"]
    assert names(4) == ["L4/1"]
    assert names(2, "nothing") == []
    assert [entry.name for entry in Checkout(bench).entries(number=2)] == ["L1/2", "L2/2"]
    assert [entry.name for entry in Checkout(bench).entries(1, number=11)] == ["L1/11"]


@pytest.mark.parametrize(
    "name",
    ["L1/10", "l1/10", "level1/10", "level1/10_conv_2D.py", "level1/10_conv_2D", "10_conv_2D.py", "10_conv_2D"],
)
def test_a_problem_has_several_names(bench: Path, name: str) -> None:
    found = load_problem(name, checkout=bench)
    assert (found.name, found.source, found.tolerance) == ("L1/10", PLAIN, 1e-4)
    assert found.origin.endswith("level1/10_conv_2D.py")


def test_names_that_fit_none_or_several_are_refused(bench: Path) -> None:
    with pytest.raises(ProblemError, match="no problem 'L1/3'"):
        load_problem("L1/3", checkout=bench)
    with pytest.raises(ProblemError, match="no problem '2'"):
        load_problem("2", checkout=bench)
    (bench / "KernelBench/level2/10_conv_2D.py").write_text(PLAIN)
    with pytest.raises(ProblemError, match="names 2 problems"):
        load_problem("10_conv_2D.py", checkout=bench)
    with pytest.raises(ProblemError, match="no KernelBench levels"):
        Checkout(bench / "KernelBench" / "level1")


def test_without_a_checkout_the_hint_says_how_to_name_one() -> None:
    for empty in ("", None):
        with pytest.raises(ProblemError) as caught:
            checkout(empty)
        assert "SPECGEN_KERNELBENCH" in caught.value.hint


def test_a_setting_names_the_checkout(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGEN_KERNELBENCH", str(bench))
    get_settings.cache_clear()
    try:
        assert load_problem("L2/2", "cuda").backend == "cuda"
    finally:
        monkeypatch.undo()
        get_settings.cache_clear()


def test_built_in_names_and_paths_go_first(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_problem("T4", checkout=bench).origin == ""
    monkeypatch.chdir(bench / "KernelBench")
    assert load_problem("level1/2_Square_matrix.py").name == "2_Square_matrix"


def test_the_commit_is_recorded(bench: Path) -> None:
    assert Checkout(bench).commit == ""
    assert load_problem("L1/2", checkout=bench).origin == "KernelBench without a commit level1/2_Square_matrix.py"
    git(bench, "init", "-q")
    git(bench, "commit", "-q", "--allow-empty", "-m", "somebody else's repository")
    assert Checkout(bench).commit == ""  # the levels lie in it, but are not part of it
    git(bench, "add", ".")
    git(bench, "commit", "-q", "-m", "levels")
    head = git(bench, "rev-parse", "HEAD")
    found = Checkout(bench)
    assert found.origin(found.find("L1/2")) == f"KernelBench {head} level1/2_Square_matrix.py"
    (bench / "KernelBench/level1/2_Square_matrix.py").write_text(PLAIN + "# changed\n")
    assert Checkout(bench).commit == f"{head}+"


def test_what_a_file_needs_is_read_from_its_text() -> None:
    assert needs(PLAIN).text == ""
    found = needs(PRETRAINED)
    assert found.text == "packages transformers; downloads someone/some-model"
    assert found.objects == ("config",)
    assert needs(PRETRAINED.replace("return [model_name, config]", "return [model_name]")).objects == ()
    assert needs(PRETRAINED.replace("from transformers import", "from math import")).objects == ()
    named = needs(PRETRAINED.replace('model_name = "someone/some-model"', "from names import model_name"))
    assert named.downloads == ("a pretrained model",)
    assert needs("not Python (").text == ""


def test_a_problem_that_lacks_a_package_says_so(bench: Path) -> None:
    with pytest.raises(ProblemError) as caught:
        register(load_problem("L3/7", checkout=bench))
    assert "a_package_nobody_has" in caught.value.message
    assert "pip install" in caught.value.hint


def test_init_inputs_that_cannot_cross_are_told_before_anything_is_downloaded(bench: Path) -> None:
    with pytest.raises(ProblemError) as caught:
        register(load_problem("L4/1", checkout=bench))
    assert "get_init_inputs() gives config, an object of transformers" in caught.value.message
    assert "someone/some-model comes from huggingface.co" in caught.value.hint
    hidden = PLAIN.replace("return []", "return [math.floor]").replace(
        "    def forward", "    def __init__(self, f):\n        super().__init__()\n\n    def forward"
    )
    (bench / "KernelBench/level1/3_Hidden.py").write_text(hidden)
    with pytest.raises(ProblemError, match=r"get_init_inputs\(\): a builtin_function_or_method cannot be passed"):
        register(load_problem("L1/3", checkout=bench))


def test_the_command_lists_a_checkout(bench: Path) -> None:
    run = CliRunner()
    shown = run.invoke(app, ["problems", "--kernelbench", str(bench)])
    assert shown.exit_code == 0
    assert "no (config)" in shown.output
    every = json.loads(run.invoke(app, ["problems", "--kernelbench", str(bench), "--json"]).output)
    assert {row["name"]: row["needs"] for row in every}["L4/1"].endswith("downloads someone/some-model")
    third = run.invoke(app, ["problems", "--kernelbench", str(bench), "--level", "1", "--number", "11", "--json"])
    assert [(row["name"], row["judged"]) for row in json.loads(third.output)] == [("L1/11", "yes")]
    rows = json.loads(run.invoke(app, ["problems", "--kernelbench", str(bench), "--match", "conv", "--json"]).output)
    assert [row["name"] for row in rows] == ["L1/10", "L1/11", "L2/2"]
    nothing = run.invoke(app, ["problems", "--kernelbench", str(bench), "--match", "nothing"])
    assert isinstance(nothing.exception, ProblemError)
    assert nothing.exception.message == "no problem has match nothing"
    assert nothing.output == ""


def test_the_command_lists_what_is_built_in() -> None:
    rows = json.loads(CliRunner().invoke(app, ["problems", "--json"]).output)
    assert len(rows) == 21
    assert {"name": "T4", "kernelbench": "level1/12_Matmul_with_diagonal_matrices_.py"}.items() <= rows[4].items()
    assert all(row["task"] and row["tolerance"] == "0.01" and row["backends"] == "cpu, cuda" for row in rows)


def test_the_command_shows_one(bench: Path) -> None:
    arguments = ["problems", "show", "L1/10", "--kernelbench", str(bench)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "L1/10, cpu, tolerance 0.0001" in shown.output
    assert "strawman     zeros refused" in shown.output
    wrong = CliRunner().invoke(app, [*arguments, "--backend", "tpu"])
    assert isinstance(wrong.exception, SettingsError)


def test_the_command_imports_no_torch() -> None:
    code = "import sys, specgen.cli.problems; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
