"""Names, entry points and module:Class; what cannot be loaded says why."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from specgen.errors import SettingsError
from specgen.search import names, registry, resolve
from specgen.search.alphaevolve import AlphaEvolve, Evolution
from specgen.search.best_of_n import BestOfN
from specgen.search.kernelagent import Beam, KernelAgent
from specgen.search.refine import Refine
from tests.search.own import FromTheBest, NeedsArguments


def test_built_in_names() -> None:
    assert {"best_of_n", "refine"} <= set(names())
    assert isinstance(resolve("refine"), Refine)
    assert isinstance(resolve("best_of_n"), BestOfN)
    assert resolve("refine") is not resolve("refine")  # state is a job's own


def test_module_and_class() -> None:
    assert isinstance(resolve("tests.search.own:FromTheBest"), FromTheBest)


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("from_the_best", "tests.search.own:FromTheBest", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    assert isinstance(resolve("from_the_best"), FromTheBest)
    assert "from_the_best" in names()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("refin", r"no search algorithm is called 'refin'"),
        ("", "no search algorithm is called ''"),
        ("no_such_module:X", "No module named"),
        ("tests.search.own:Absent", "Absent"),
        (":X", "cannot be loaded"),
        ("tests.search.own:NOT_CALLABLE", "is not a class"),
        ("tests.search.own:Incomplete", "lacks compose, update, load"),
        ("tests.search.own:NeedsArguments", "beam"),
    ],
)
def test_what_cannot_be_used_is_a_settings_error(name: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        resolve(name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError) as caught:
        resolve("alphago")
    assert all(name in caught.value.hint for name in names())


def test_options_of_an_algorithm() -> None:
    evolve = resolve("alphaevolve(islands=3, diffs=True)")
    assert isinstance(evolve, AlphaEvolve)
    assert evolve.numbers == Evolution(islands=3, diffs=True)
    agent = resolve("kernelagent(kernels=4)")
    assert isinstance(agent, KernelAgent)
    assert agent.shape == Beam(kernels=4)
    refine = resolve(" refine( window = 2 )")
    assert isinstance(refine, Refine)
    assert refine.window == 2
    assert isinstance(resolve("tests.search.own:NeedsArguments(beam=3)"), NeedsArguments)


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("alphaevolve(isles=3)", "unexpected keyword argument 'isles'", "options: islands, bins"),
        ("refine(windows=3)", "unexpected keyword argument 'windows'", "options: window"),
        ("best_of_n(n=3)", "takes no arguments", ""),
        ("alphaevolve(3)", "options have names", "alphaevolve(islands=3, diffs=True)"),
        ("alphaevolve(islands=)", "cannot be read", "alphaevolve(islands=3, diffs=True)"),
        ("alphaevolve(islands=open('x'))", "cannot be read", "alphaevolve(islands=3, diffs=True)"),
        ("nothing(a=1)", "no search algorithm is called 'nothing'", "refine"),
    ],
)
def test_options_that_are_none(name: str, says: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(name)
    assert says in caught.value.message
    assert hint in caught.value.hint
