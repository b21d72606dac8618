"""The values of the search interface."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.errors import SettingsError
from specgen.search import History, Step, resolve, rng_for
from specgen.search.base import distinct, known
from specgen.types import Origin, Status
from tests.search.conftest import closed, evaluated

scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8)


@given(st.text(min_size=1), st.lists(st.text()), st.dictionaries(st.text(), scalars | st.lists(scalars)))
def test_a_step_survives_json(kind: str, parents: list[str], args: dict[str, object]) -> None:
    step = Step(kind, tuple(parents), args)  # type: ignore[arg-type]
    assert Step.load(json.loads(json.dumps(step.dump()))) == step


@pytest.mark.parametrize("data", [None, [], {"kind": "seed"}, {"kind": 1, "parents": [], "args": {}}])
def test_what_is_no_step_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a step"):
        Step.load(data)  # type: ignore[arg-type]


def test_randomness_depends_on_seed_and_iteration_only() -> None:
    draws = {(seed, i): rng_for(seed, i).random() for seed in range(20) for i in range(20)}
    assert len(set(draws.values())) == 400
    assert rng_for(3, 11).random() == draws[3, 11]


def test_history_keeps_the_first_and_gives_h() -> None:
    slow, fast, failed = evaluated("a", speedup=1.2), evaluated("b", speedup=3.0), evaluated("c", Status.HANG)
    history = History([slow, failed, fast, evaluated("d", speedup=3.0)])
    history.add(evaluated("a", speedup=99.0))
    assert history.speedups() == (0.0, 1.2, 3.0, 3.0)
    assert history.best() == fast
    assert [entry.source for entry in history.valid()] == ["a", "b", "d"]
    assert failed.candidate_id in history
    assert len(history) == 4
    assert History().best() is None
    with pytest.raises(KeyError):
        history.get("absent")


def test_focus_is_k_star_then_the_mains_failure_then_the_furthest_fork() -> None:
    valid = evaluated("v")
    main = evaluated("m", Status.COMPILE_ERROR, origin=Origin.MAIN)
    near, nearer = evaluated("n", Status.LOAD_ERROR), evaluated("w", Status.WRONG_VALUE)
    latest = evaluated("l", Status.WRONG_VALUE)
    assert closed(main, valid, chosen=valid).focus() == valid
    assert closed(main, nearer).focus() == main
    assert closed(nearer, near).focus() == nearer
    assert closed(nearer, near, latest).focus() == latest
    assert closed().focus() is None


def test_every_candidate_status_has_a_place_in_the_order() -> None:
    ranks = [evaluated("x", s).furthest for s in Status if s.kind == "candidate"]
    assert sorted(ranks) == sorted(set(ranks))
    assert min(ranks) >= 0
    assert evaluated("x").furthest == max(ranks)


def test_a_state_of_another_algorithm_is_refused() -> None:
    assert known(None, 1, turns=[]) == {"turns": []}
    assert known({"turns": ["a"]}, 1, turns=[]) == {"turns": ["a"]}  # from before states had versions
    for state in ({"beam": []}, [], {"turns": [], "more": 1}):
        with pytest.raises(SettingsError, match="another search algorithm"):
            known(state, 1, turns=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["refine", "cudaforge", "kernelagent", "alphaevolve"])
def test_a_state_of_another_version_names_both(name: str) -> None:
    search = resolve(name)
    state = search.dump()
    assert isinstance(state, dict)
    with pytest.raises(SettingsError, match="the stored search state is version 7, and this SpecGen reads version 1"):
        search.load({**state, "version": 7})


def test_equal_code_counts_once_however_it_is_written() -> None:
    one = evaluated("x = n // 128\n# a comment\n#include <a.h>\n", speedup=1.0)
    same = evaluated("x  =  n // 128\n\n// another\n#include <a.h>\n", speedup=2.0)
    other = evaluated("x = n // 256\n#include <a.h>\n", speedup=1.5)
    history = History([one, same, other])
    names = [entry.candidate_id for entry in (one, same, other)]
    assert distinct(names, history) == [same.candidate_id, other.candidate_id]
