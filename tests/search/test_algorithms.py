"""What each algorithm does with an outcome, and that a resumed search is the same search."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgen.search import STOP, Evaluated, History, SearchAlgorithm, Step, names, resolve, rng_for
from specgen.search.refine import Refine
from specgen.types import Json, Origin, Status
from tests.search.conftest import Desk, closed, evaluated

NAMES = (*names(), "tests.search.own:FromTheBest")


def test_refine_starts_from_scratch_then_from_k_star() -> None:
    search, history = Refine(), History()
    assert search.select(history, rng_for(0, 1)).kind == "seed"
    slow, fast = evaluated("a", speedup=1.0), evaluated("b", speedup=2.0)
    for entry in (fast, slow):
        history.add(entry)
    search.update(closed(fast, slow, chosen=slow), history)
    step = search.select(history, rng_for(0, 2))
    assert (step.kind, step.parents) == ("refine", (slow.candidate_id,))  # k*, not the global best


def test_refine_goes_on_from_a_failure() -> None:
    search, failed = Refine(), evaluated("m", Status.WRONG_VALUE, origin=Origin.MAIN)
    history = History([failed])
    search.update(closed(failed), history)
    assert search.select(history, rng_for(0, 2)).parents == (failed.candidate_id,)


def test_refine_keeps_its_kernel_where_the_main_gave_no_code() -> None:
    search, good = Refine(), evaluated("a")
    history = History([good])
    search.update(closed(good, chosen=good), history)
    search.update(closed(main_failure="no_code"), history)
    step = search.select(history, rng_for(0, 3))
    assert (step.parents, step.args) == ((good.candidate_id,), {"note": "no_code"})
    prompt = asyncio.run(search.compose(step, Desk(history)))
    assert "gave no kernel" in prompt.user
    search.update(closed(good, chosen=good), history)
    assert search.select(history, rng_for(0, 4)).args == {"note": ""}


def test_a_broken_stream_is_not_told_to_the_llm() -> None:
    search, history = Refine(), History()
    search.update(closed(main_failure="the model server broke off"), history)
    step = search.select(history, rng_for(0, 2))
    assert (step.kind, step.args) == ("seed", {"note": ""})
    search.update(closed(main_failure="no_modelnew"), history)
    prompt = asyncio.run(search.compose(search.select(history, rng_for(0, 3)), Desk(history)))
    assert "(no_modelnew)" in prompt.user


def test_refine_shows_as_many_kernels_as_its_window() -> None:
    search, history = Refine(window=3), History()
    entries = [evaluated(f"kernel_{n}", speedup=1.0 + n) for n in range(5)]
    for entry in entries:
        history.add(entry)
        search.update(closed(entry, chosen=entry), history)
    search.update(closed(entries[3], chosen=entries[3]), history)  # the same again moves to the end
    step = search.select(history, rng_for(0, 6))
    assert [history.get(parent).source for parent in step.parents] == ["kernel_2", "kernel_4", "kernel_3"]
    text = asyncio.run(search.compose(step, Desk(history))).user
    places = [text.index(f"kernel_{n}") for n in (3, 4, 2)]
    assert places == sorted(places)  # the latest first: it is the one to improve
    assert "kernel_1" not in text


def test_best_of_n_never_changes_its_prompt() -> None:
    search, desk = resolve("best_of_n"), Desk()
    prompts = set()
    for iteration in range(3):
        step = search.select(desk.history, rng_for(0, iteration))
        assert isinstance(step, Step)
        prompts.add(asyncio.run(search.compose(step, desk)))
        entry = evaluated(f"k{iteration}")
        desk.history.add(entry)
        search.update(closed(entry, chosen=entry), desk.history)
    assert len(prompts) == 1


def test_a_users_own_algorithm_may_stop() -> None:
    search, history = resolve("tests.search.own:FromTheBest"), History()
    for _ in range(3):
        search.update(closed(), history)
    assert search.select(history, rng_for(0, 4)) is STOP


outcomes = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([s for s in Status if s.kind == "candidate"]), st.booleans()),
    max_size=4,
)


def play(name: str, rounds: list[list[tuple[int, Status, bool]]], resume_at: frozenset[int]) -> list[object]:
    """Prompts and states of a search; at the rounds of ``resume_at`` it goes on in a fresh object."""
    search, desk, seen = resolve(name), Desk(), []
    for iteration, round_ in enumerate(rounds):
        if iteration in resume_at:
            search = _resumed(name, search.dump())
        step = search.select(desk.history, rng_for(7, iteration))
        if not isinstance(step, Step):
            return [*seen, step]
        if iteration in resume_at:  # killed again after select: the stored step and state are taken up
            search, step = _resumed(name, search.dump()), Step.load(json.loads(json.dumps(step.dump())))
        before = search.dump()
        seen.append((step, asyncio.run(search.compose(step, desk)), asyncio.run(search.compose(step, desk))))
        assert search.dump() == before  # compose must not change state
        entries = [
            evaluated(f"k{n}", status, origin=Origin.MAIN if main else Origin.FORK) for n, status, main in round_
        ]
        entries = [_known(desk.history, entry) for entry in entries]
        valid = [entry for entry in entries if entry.valid]
        result = closed(
            *entries, chosen=valid[-1] if valid else None, main_failure="" if entries else "no_code", step=step
        )
        search.update(result, desk.history)
        seen.append(search.dump())
    return seen


def _known(history: History, entry: Evaluated) -> Evaluated:
    history.add(entry)
    return history.get(entry.candidate_id)


def _resumed(name: str, state: Json) -> SearchAlgorithm:
    fresh = resolve(name)
    fresh.load(json.loads(json.dumps(state)))
    return fresh


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(rounds=st.lists(outcomes, min_size=1, max_size=7), resume_at=st.frozensets(st.integers(0, 6)))
def test_a_search_resumed_anywhere_is_the_same_search(
    name: str, rounds: list[list[tuple[int, Status, bool]]], resume_at: frozenset[int]
) -> None:
    assert play(name, rounds, resume_at) == play(name, rounds, frozenset())
