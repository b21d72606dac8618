"""cudaforge, kernelagent and alphaevolve do as their papers mean, and never ask a role twice for one thing."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter

import pytest

from specgen.search import WAIT, Evaluated, Step, rng_for
from specgen.search.alphaevolve import AlphaEvolve, Evolution, difference
from specgen.search.base import SearchAlgorithm
from specgen.search.cudaforge import CudaForge
from specgen.search.kernelagent import Beam, KernelAgent
from specgen.types import Origin, Status
from tests.search.conftest import Desk, closed, evaluated


def turn(search: SearchAlgorithm, desk: Desk, *entries: Evaluated, iteration: int = 1) -> tuple[Step, str]:
    """One iteration: select, compose, these outcomes, update. The fastest of them is k*."""
    step = search.select(desk.history, rng_for(0, iteration))
    assert isinstance(step, Step)
    text = asyncio.run(search.compose(step, desk)).user
    for entry in entries:
        desk.history.add(entry)
    valid = [entry for entry in entries if entry.valid]
    chosen = max(valid, key=lambda entry: entry.speedup or 0.0, default=None)
    search.update(closed(*entries, chosen=chosen, step=step), desk.history)
    return step, text


# ------------------------------------------------------------------------------------------------ cudaforge


def test_cudaforge_corrects_then_optimises_the_latest_kernel() -> None:
    search, desk = CudaForge(), Desk()
    failed = evaluated("broken = 1", Status.COMPILE_ERROR, origin=Origin.MAIN, error="candidate.py:1: error: no")
    fast, slow = evaluated("fast = 1", speedup=3.0), evaluated("slow = 1", speedup=1.1)
    assert turn(search, desk, failed)[0].kind == "seed"

    step, text = turn(search, desk, fast)
    assert (step.kind, step.parents) == ("correct", (failed.candidate_id,))
    assert f"critical issue: critical_issue of judge/{failed.candidate_id}" in text
    assert "candidate.py:1: error: no" in text

    step, text = turn(search, desk, slow)
    assert (step.kind, step.parents) == ("optimise", (fast.candidate_id,))
    assert "modification plan:" in text
    assert "speedup: 3.000x" in text
    assert "### Profile" not in text  # the Judge reads the profile, the Coder its advice
    assert "### Profile" in desk.asked[f"judge/{fast.candidate_id}"]

    step, _ = turn(search, desk)
    assert step.parents == (slow.candidate_id,)  # the latest, not the fastest


def test_cudaforge_goes_on_without_a_judge() -> None:
    search, desk = CudaForge(), Desk(silent=True)
    turn(search, desk, evaluated("k = 1"))
    _, text = turn(search, desk)
    assert "## Diagnosis" not in text
    assert "Find what bounds this kernel" in text


# ------------------------------------------------------------------------------------------------ kernelagent


def test_kernelagent_seeds_then_takes_each_kernel_and_bottleneck() -> None:
    search, desk = KernelAgent(Beam(kernels=2, bottlenecks=2)), Desk()
    kinds = [turn(search, desk, evaluated(f"k{n} = 1", speedup=1.0 + n))[0].kind for n in range(4)]
    assert kinds == ["seed"] * 4
    beam = [evaluated(f"k{n} = 1").candidate_id for n in (3, 2)]
    steps = [turn(search, desk, evaluated(f"w{n} = 1", Status.HANG)) for n in range(1)]
    assert steps[0][0].parents == (beam[0],)
    assert steps[0][0].args["bottleneck"] == 0
    remaining = [(step.kind, step.parents[0], step.args["bottleneck"]) for step in search.queue]
    assert remaining[0][0] == "repair"
    assert remaining[1:] == [("optimise", beam[0], 1), ("optimise", beam[1], 0), ("optimise", beam[1], 1)]


def test_kernelagent_asks_for_a_kernels_bottlenecks_once_and_uses_each() -> None:
    search, desk = KernelAgent(), Desk()
    for n in range(4):
        turn(search, desk, evaluated(f"k{n} = 1", speedup=1.0 + n))
    texts = [turn(search, desk, evaluated("k0 = 1", speedup=1.0))[1] for _ in range(4)]
    assert len([key for key in desk.asked if key.startswith("diagnose/")]) == 2
    found = [re.findall(r"bottleneck: bottleneck of diagnose/\w+#(\d)", text) for text in texts]
    assert found == [["0"], ["1"], ["0"], ["1"]]


def test_kernelagent_uses_a_bottleneck_once_that_was_named_twice() -> None:
    search, desk = KernelAgent(Beam(kernels=1, bottlenecks=2)), Desk()
    for n in range(2):
        turn(search, desk, evaluated("k = 1", speedup=1.0 + n))
    name = evaluated("k = 1").candidate_id
    one = {"bottleneck": "Memory", "cause": "a", "evidence": "b", "fix": "c"}
    desk.replies[f"diagnose/{name}"] = [one, {**one, "bottleneck": "memory ", "fix": "d"}]
    first, second = (turn(search, desk)[1] for _ in range(2))
    assert "bottleneck: Memory" in first
    assert "## The bottleneck to remove" not in second


def test_the_judge_reads_the_roofline_class() -> None:
    search, desk = KernelAgent(Beam(kernels=1, bottlenecks=1)), Desk()
    turn(search, desk, evaluated("k = 1", speedup=1.0))
    turn(search, desk)
    (asked,) = desk.asked.values()
    assert "by the roofline it is bound by memory" in asked


def test_kernelagent_repairs_three_times_and_then_lets_go() -> None:
    search, desk = KernelAgent(Beam(kernels=1, bottlenecks=1)), Desk()
    turn(search, desk, evaluated("good = 1", speedup=2.0))
    kinds = [turn(search, desk, evaluated(f"w{n} = 1", Status.WRONG_VALUE))[0].kind for n in range(5)]
    assert kinds == ["optimise", "repair", "repair", "repair", "optimise"]


def test_kernelagent_keeps_the_fastest_of_different_code() -> None:
    search, desk = KernelAgent(Beam(kernels=2, bottlenecks=1)), Desk()
    turn(search, desk, evaluated("a = 1", speedup=2.0))
    turn(search, desk, evaluated("a = 1", speedup=2.0), evaluated("b = 1", speedup=1.0))
    assert search.beam == [evaluated(name).candidate_id for name in ("a = 1", "b = 1")]
    turn(search, desk, evaluated("c = 1", speedup=1.5), evaluated("d = 1", speedup=3.0))
    assert search.beam == [evaluated(name).candidate_id for name in ("d = 1", "a = 1")]


def test_kernelagent_learns_lessons_from_finished_attempts() -> None:
    search, desk = KernelAgent(Beam(kernels=1, bottlenecks=1)), Desk()
    _, first = turn(search, desk, evaluated("a = 1", speedup=2.0))
    assert "Lessons" not in first
    for n in range(12):
        turn(search, desk, evaluated(f"b{n} = 1", speedup=2.5 + n))
    assert len(search.attempts) == 10
    step, text = turn(search, desk)
    assert len(step.args["lessons"]) == 5  # type: ignore[arg-type]
    assert text.count("- lesson: lesson of reflect/") == 5
    assert "## After: 3.500x" in "".join(desk.asked.values())


def test_kernelagent_waits_for_its_round_where_several_lanes_run() -> None:
    search, desk = KernelAgent(Beam(kernels=1, bottlenecks=2)), Desk()
    steps = [search.select(desk.history, rng_for(0, n)) for n in range(3)]
    assert steps[2] is WAIT
    assert isinstance(steps[0], Step)
    search.update(closed(step=steps[0]), desk.history)
    assert search.select(desk.history, rng_for(0, 3)) is WAIT
    search.update(closed(step=steps[0]), desk.history)
    assert isinstance(search.select(desk.history, rng_for(0, 4)), Step)


# ------------------------------------------------------------------------------------------------ alphaevolve


def source(number: int) -> str:
    """Different words for different numbers."""
    return "\n".join(f"word_{number}_{line} = {line}" for line in range(number % 7 + 1)) * (number % 3 + 1)


def test_alphaevolve_islands_take_turns_and_start_from_what_there_is() -> None:
    search, desk = AlphaEvolve(Evolution(islands=3)), Desk()
    steps = [turn(search, desk, evaluated(source(n), speedup=1.0 + n), iteration=n)[0] for n in range(6)]
    assert [step.args["island"] for step in steps] == [0, 1, 2, 0, 1, 2]
    assert steps[0].kind == "seed"
    assert {step.kind for step in steps[1:]} == {"evolve"}


def test_alphaevolve_parents_come_in_the_promised_shares() -> None:
    search, desk = AlphaEvolve(Evolution(islands=1, archive=1)), Desk()
    for n in range(12):
        turn(search, desk, evaluated(source(n), speedup=1.0 + n), iteration=n)
    best = desk.history.best()
    assert best is not None
    members = set(search.grids[0].values())
    assert search.archive == [best.candidate_id]
    drawn: Counter[str] = Counter()
    for n in range(3000):
        step = search.select(desk.history, rng_for(5, n))
        drawn[step.parents[0]] += 1
        names = step.args["inspirations"]
        assert isinstance(names, list)
        assert len(names) == 2
        assert step.parents[0] not in names
    weight = {name: desk.history.get(name).speedup or 0.0 for name in members}
    expected = 0.7 + 0.2 / len(members) + 0.1 * weight[best.candidate_id] / sum(weight.values())
    assert drawn[best.candidate_id] / 3000 == pytest.approx(expected, abs=0.03)
    assert set(drawn) == members


def test_alphaevolve_a_cell_keeps_its_fastest_and_a_failure_scores_nothing() -> None:
    search, desk = AlphaEvolve(Evolution(islands=1)), Desk()
    failed = evaluated("word = 1", Status.RUNTIME_ERROR, error="IndexError")
    turn(search, desk, failed)
    _, text = turn(search, desk, evaluated("word = 1 ", speedup=0.5))
    assert "IndexError" in text  # the failed parent's log is shown
    assert list(search.grids[0].values()) == [evaluated("word = 1 ").candidate_id]
    turn(search, desk, evaluated("word =  1", speedup=0.4))
    assert list(search.grids[0].values()) == [evaluated("word = 1 ").candidate_id]


def test_alphaevolve_migrates_the_best_to_its_neighbours() -> None:
    search, desk = AlphaEvolve(Evolution(islands=4, migration_every=2)), Desk()
    for n in range(4):
        turn(search, desk, evaluated(source(n), speedup=1.0 + n), iteration=n)
    assert [len(grid) for grid in search.grids] == [1, 1, 1, 1]
    turn(search, desk, evaluated(source(10), speedup=9.0), iteration=5)  # island 0's second generation
    best = evaluated(source(10)).candidate_id
    assert [best in grid.values() for grid in search.grids] == [True, True, False, True]


def test_alphaevolve_keeps_its_population_limit() -> None:
    search, desk = AlphaEvolve(Evolution(islands=2, population=3)), Desk()
    for n in range(12):
        turn(search, desk, evaluated(source(n), speedup=1.0 + n), iteration=n)
    assert len({name for grid in search.grids for name in grid.values()}) <= 3
    assert json.loads(json.dumps(search.dump())) == search.dump()


def test_alphaevolve_may_ask_for_edits() -> None:
    search, desk = AlphaEvolve(Evolution(islands=1, diffs=True)), Desk()
    step, text = turn(search, desk, evaluated("word = 1", speedup=1.0))
    assert "SEARCH" not in text
    step, text = turn(search, desk, evaluated("word = 2", speedup=2.0))
    assert step.args["edits"] is True
    assert "<<<<<<< SEARCH" in text
    assert "edits" not in turn(AlphaEvolve(), desk)[0].args


def test_difference() -> None:
    assert difference("a b", "b a") == 0.0
    assert difference("a", "b") == 1.0
    assert difference("", "") == 0.0
    assert difference("a b c", "a b d") == pytest.approx(0.5)
