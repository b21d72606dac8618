"""`specgen evaluate`: one candidate, one outcome, and an exit code that says which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evaluation import candidates


def specgen(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, SPECGEN_HOME=str(home))
    if cache := os.environ.get("SPECGEN_TEST_CACHE"):
        env["SPECGEN_CACHE"] = cache
    return subprocess.run(
        [Path(sys.executable).parent / "specgen", *arguments], env=env, capture_output=True, text=True, timeout=170
    )


def test_a_valid_kernel_is_timed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(candidates.t4())
    done = specgen("evaluate", str(tmp_path / "mine.py"), "--problem", "T4", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    validated, profiled = map(json.loads, done.stdout.splitlines())
    assert (validated["status"], profiled["status"]) == ("valid", "valid")
    assert profiled["speedup"] > 1
    assert profiled["profile"]["candidate"]["runs"] == 40
    assert "memory" in profiled["environment"]["floor_ms"]


def test_a_kernel_that_is_none_exits_with_1_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nclass ModelNew(torch.nn.Module):\n    forward = lambda s, a, b: a[:, None] * b\n"
    )
    done = specgen("evaluate", str(tmp_path / "mine.py"), "--problem", "T4", home=tmp_path)
    assert done.returncode == 1
    assert "library_only" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.py", "--problem", "T4"), "cannot be read"),
        (("MINE", "--problem", "T99"), "no problem 'T99'"),
        (("MINE", "--problem", "T4", "--backend", "tpu"), "no backend is called 'tpu'"),
        (("MINE", "--problem", "T4", "--phase", "all"), "no phase is called 'all'"),
        (("MINE", "--problem", "T4", "--device", "9999"), "no CPU device 9999 here"),
    ],
)
def test_bad_input_is_told(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    given = [str(tmp_path / "mine.py") if word == "MINE" else word for word in arguments]
    done = specgen("evaluate", *given, home=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint:" in done.stderr
