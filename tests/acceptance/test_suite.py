"""Several problems in one run: picks, a TOML of jobs, a broken one left out and listed, the table at the end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from specgen.cli.suite import Wanted, chosen
from specgen.errors import SettingsError
from specgen.report.scores import Score, fast_p, geometric_mean
from tests.acceptance.test_bad_input import GOOD, refused, specgen


def names(suite: str, pick: str = "") -> list[str]:
    return [item.problem for item in chosen(suite, pick, "cpu")]


@pytest.mark.parametrize(
    ("pick", "numbers"),
    [
        ("", range(1, 21)),
        ("10…12", (10, 11, 12)),
        ("10..12", (10, 11, 12)),
        ("10-12", (10, 11, 12)),
        ("10 – 11, 4", (4, 10, 11)),
        ("1,4,4", (1, 4)),
    ],
)
def test_picks(pick: str, numbers: tuple[int, ...]) -> None:
    assert names("paper", pick) == [f"T{number}" for number in numbers]


@pytest.mark.parametrize(("suite", "pick", "words"), [
    ("paper", "ten", "'ten' is no number or range"),
    ("paper", "40-50", "the suite has none of these"),
    ("level9", "", "no suite 'level9'"),
])  # fmt: skip
def test_picks_that_are_none(suite: str, pick: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        names(suite, pick)


def test_a_checkout_s_level_is_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = tmp_path / "KernelBench" / "level2"
    level.mkdir(parents=True)
    for number in (1, 2, 10):
        (level / f"{number}_Some_name_{number}.py").write_text(GOOD)
    monkeypatch.setenv("SPECGEN_KERNELBENCH", str(tmp_path))
    monkeypatch.setattr("specgen.cli.suite.get_settings", lambda: type("S", (), {"kernelbench": str(tmp_path)}))
    assert names("level2", "2…10") == ["L2/2", "L2/10"]
    assert [Path(name).name for name in names(str(level), "10")] == ["10_Some_name_10.py"]


TOML = """
[defaults]
iterations = 1
[[jobs]]
problem = "T4"
[[jobs]]
problem = "T1"
search = "best_of_n"
iterations = 3
"""


def test_a_toml_of_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(TOML)
    assert chosen(str(path), "", "cpu") == [
        Wanted("T4", {"iterations": 1}),
        Wanted("T1", {"iterations": 3, "search": "best_of_n"}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jobs = 1", "no [[jobs]]"),
        ("[[jobs]]\nproblem = 4", "job 1 names no problem"),
        ("[[jobs]]\nproblem = 'T4'\nspeed = 3", "job 1: unknown speed"),
        ("[job]\nproblem = 'T4'", "unknown job"),
        ("[[jobs]]\nproblem = T4", "line 2"),
    ],
)
def test_a_toml_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        chosen(str(path), "", "cpu")
    assert words in caught.value.message


def test_scores_are_kernelbench_s() -> None:
    scores = [Score(str(speedup), "done", "", speedup) for speedup in (4.0, 1.0, 0.5, None)]
    assert [fast_p(scores, p) for p in (0.5, 1.0, 2.0)] == [0.5, 0.25, 0.25]
    assert geometric_mean(scores) == pytest.approx(math.pow(4.0 * 1.0 * 0.5, 1 / 3))
    assert geometric_mean(scores, above=1.0) == pytest.approx(4.0)
    assert geometric_mean([]) is None


def test_bad_input_starts_nothing(tmp_path: Path) -> None:
    refused(specgen(tmp_path, "run"), "a problem or a --suite is needed")
    refused(specgen(tmp_path, "run", "T4", "--suite", "paper"), "one of them")
    (tmp_path / "jobs.toml").write_text("[[jobs]]\nproblem = 'T4'\niterations = -1\n")
    refused(specgen(tmp_path, "run", "--suite", "jobs.toml", "--synthetic", "60"), "job of T4: iterations")
    assert {path.name for path in tmp_path.iterdir()} == {"jobs.toml"}


def test_a_suite_runs_side_by_side_and_leaves_the_broken_one_out(tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "1_broken.py").write_text(GOOD.replace("torch.relu(x)", "missing(x)"))
    (folder / "2_relu.py").write_text(GOOD)
    (tmp_path / "jobs.toml").write_text(
        "[defaults]\niterations = 1\nmax_tokens = 400\n"
        + "".join(f"[[jobs]]\nproblem = '{name}'\n" for name in ("problems/1_broken.py", "problems/2_relu.py", "T4"))
    )
    done = specgen(tmp_path, "run", "--suite", "jobs.toml", "--synthetic", "200")
    told = done.stdout
    assert done.returncode == 2, (told, done.stderr)  # one problem was left out
    assert "left out: problems/1_broken.py: " in told
    assert "2_relu: done, " in told
    assert "T4: done, " in told
    assert " of 3 problems have a correct kernel; fast_0.5 0." in told
    assert "Traceback" not in told + done.stderr
