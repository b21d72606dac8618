"""The examples of docs/search.md, as a user would put them into files."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from specgen.controller import termination
from specgen.prompts import Renderer
from specgen.search import STOP, names, registry, resolve
from specgen.settings import ModelProfile
from specgen.types import Status
from tests.search.conftest import DEVICE, PROBLEM, evaluated
from tests.search.test_algorithms import play

TEXT = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")


def example(language: str, holds: str) -> str:
    """The one block of that language with those words."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if holds in text]
    return str(found)


@pytest.fixture(name="modules", autouse=True)
def write_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_search.py").write_text(example("python", "class FromTheBest"))
    (tmp_path / "my_criteria.py").write_text(example("python", "def clearly_better"))
    monkeypatch.syspath_prepend(tmp_path)


def test_the_search_algorithm() -> None:
    rounds = [[(n, Status.VALID, True)] for n in range(6)]
    played = play("my_search:FromTheBest", rounds, frozenset({1, 3}))
    assert played == play("tests.search.own:FromTheBest", rounds, frozenset())
    assert played[-1] is STOP


def test_the_criterion() -> None:
    criterion = termination.resolve("my_criteria:clearly_better")
    assert [criterion(speedup, (0.0, 2.0, 1.0)) for speedup in (2.05, 2.15)] == [False, True]


def test_the_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tomllib.loads(example("toml", "entry-points"))["project"]["entry-points"]
    points = EntryPoints(EntryPoint(name, value, group) for group in groups for name, value in groups[group].items())
    for module in (registry, termination):
        monkeypatch.setattr(module, "entry_points", lambda group: points.select(group=group))
    assert type(resolve("from_the_best")).__name__ == "FromTheBest"
    assert termination.resolve("clearly_better")(1.1, (0.0, 1.0))
    with pytest.raises(Exception, match="no termination criterion is called 'nonsense'") as caught:
        termination.resolve("nonsense")
    assert "clearly_better" in caught.value.hint  # type: ignore[attr-defined]


def test_the_prompt_directory(tmp_path: Path) -> None:
    (tmp_path / "refine").mkdir()
    (tmp_path / "refine" / "refine.md.j2").write_text(example("jinja", "latest.iteration"))
    renderer = Renderer(tmp_path)
    variables = {"problem": PROBLEM, "device": DEVICE, "note": "", "earlier": [evaluated("k = 0", Status.HANG)]}
    text = renderer.render("refine/refine.md.j2", **variables, latest=evaluated("k = 1", speedup=1.5)).text
    assert "It is 1.50 times as fast" in text
    assert "Before that: hang" in text
    failed = evaluated("k = 1", Status.COMPILE_ERROR, error="line 3: no")
    text = renderer.render("refine/refine.md.j2", **variables, latest=failed, trim=1).text
    assert "It fails (compile_error): line 3: no" in text
    assert "Before that" not in text


def test_the_roles() -> None:
    profile = tomllib.loads(example("toml", "roles.judge"))["llm"]["default"]
    judge = ModelProfile.model_validate(profile).roles["judge"]
    assert (judge.model, judge.effort) == ("a-small-model", "low")
    assert judge.price is not None


def test_all_that_is_built_in_is_described() -> None:
    for name in names():
        assert f"| `{name}`" in TEXT
    for options in re.findall(r"^\| `(\w+)` \| `(\w+=.*?)` \|$", TEXT, re.MULTILINE):
        resolve(f"{options[0]}({options[1]})")
