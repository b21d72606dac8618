"""`specgen evaluate`: one candidate, one outcome, and an exit code that says which."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from specgen.cli import evaluate
from specgen.cli.main import report
from specgen.errors import SpecGenError
from specgen.types import EvaluationResult, Phase, Profile, Timing
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
        (("MINE", "--problem", "T4", "--sanitize", "all"), "has no tool 'all'"),
        (("MINE", "--problem", "T4", "--sanitize", "memcheck"), "looks at GPUs"),
        (("MINE", "--problem", "T4", "--backend", "cuda", "--device", "9999"), "no GPU 9999"),
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


def test_a_kernel_that_does_not_compile_is_json_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(candidates.t4(body="    return nonsense;"))
    done = specgen("evaluate", str(tmp_path / "mine.py"), "--problem", "T4", "--json", home=tmp_path)
    assert done.returncode == 1
    (result,) = map(json.loads, done.stdout.splitlines())
    assert (result["status"], result["phase"], result["speedup"]) == ("compile_error", "validate", None)
    assert "[candidate.py line 11]" in result["error"]
    assert done.stderr == ""


def test_the_documented_fields_are_those_of_a_result() -> None:
    """I expect the page's list of JSON fields to be complete, and to name nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    table = page[page.index("### `--json`") :]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    assert listed == set(EvaluationResult.model_fields)


RESULT = {"request_id": "r", "candidate_id": "c", "phase": Phase.PROFILE, "device": "cpu0"}
TIMING = Timing(mean_ms=1.0, std_ms=0.1, min_ms=0.9, median_ms=1.0, runs=40)
PROFILE = Profile(
    candidate=TIMING, reference=TIMING, achieved_gb_s=9.0, ceiling_gb_s=10.0, achieved_gflop_s=50.0,
    ceiling_gflop_s=10.0, roofline="latency",
    counters={"diag: compute_throughput_pct": 12.0, "clock_gap_ms": 3.0, "cycles": None},
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"status": "valid", "speedup": 2.0}, 0),
        ({"status": "profiler_unavailable", "speedup": 2.0}, 0),
        ({"status": "rejected", "rule": "library_only: 0"}, 1),
        ({"status": "hang", "error": "forward did not end"}, 1),
        ({"status": "reference_error", "error": "the problem's forward() raised"}, 2),
        ({"status": "infra_error", "error": "the judge failed"}, 3),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(fields: dict[str, object], code: int) -> None:
    result = EvaluationResult.model_validate(RESULT | fields)
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(pytest.raises((SpecGenError, typer.Exit))) if code else None
        evaluate.finish(result)
    if caught is None:
        assert code == 0
    elif isinstance(caught.value, typer.Exit):
        assert caught.value.exit_code == code
    else:
        assert isinstance(caught.value, SpecGenError)
        assert report(caught.value) == code


def test_a_terminal_shows_what_a_prompt_shows(capsys: pytest.CaptureFixture[str]) -> None:
    result = EvaluationResult.model_validate(
        RESULT | {"status": "valid", "speedup": 2.0, "profile": PROFILE, "environment": {"sanitizer": "nothing found"}}
    )
    evaluate.console.file = sys.stdout
    evaluate.show([result])
    shown = capsys.readouterr().out
    for words in ("2.000x", "bound by", "latency", "diag: compute throughput", "12 %", "more than the 10",
                  "nothing found"):  # fmt: skip
        assert words in shown
    assert "clock_gap" not in shown
