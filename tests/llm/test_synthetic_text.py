"""Traces and decisions of the synthetic model: what a prefix says, and that nothing else is read into it."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgen.llm.synthetic import Rates, commitments, trace
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.feedback import Feedback, read_prompt
from specgen.llm.synthetic.tasks import TASKS, Task, identify
from specgen.llm.synthetic.words import Rambling
from tests.llm.material import messages, reference

RATES = Rates(trace_tokens_mean=4000)
tasks = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
seeds = st.integers(0, 10**9)


def written(task: Task, seed: int, rates: Rates = RATES) -> trace.Trace:
    rng = random.Random(seed)
    design = task.space.sample(rng, careful=True)
    return trace.write(task, design, Feedback(task), rates, rng)


@tasks
def test_every_shipped_problem_is_recognised(task: Task) -> None:
    assert identify(reference(task.name)) is task
    assert read_prompt(messages(task.name)[1]["content"]) == Feedback(task)


def test_an_unknown_problem_is_not_taken_for_a_known_one() -> None:
    softmax = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, dim=1)\n"
    assert identify(softmax) is None
    assert identify("") is None


@tasks
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_a_whole_trace_reads_as_the_design_it_ends_with(task: Task, seed: int) -> None:
    said = written(task, seed)
    assert commitments.read(task.space, said.text) == said.design


@tasks
def test_decisions_grow_with_the_prefix_from_none_to_all(task: Task) -> None:
    said = written(task, seed=4)
    shares = [len(commitments.read(task.space, said.text[: len(said.text) * k // 40])) for k in range(41)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(shares))
    assert shares[4] == 0
    assert shares[8] >= 1
    assert shares[30] == len(task.space.axes)


@tasks
def test_the_first_and_the_last_decision_stand_where_the_rates_put_them(task: Task) -> None:
    firsts, lasts = [], []
    for seed in range(20):
        text = written(task, seed).text
        counts = [len(commitments.read(task.space, text[: len(text) * k // 100])) for k in range(101)]
        firsts.append(next(k for k, count in enumerate(counts) if count))
        lasts.append(next(k for k, count in enumerate(counts) if count == len(task.space.axes)))
    assert 12 <= min(firsts) <= 20
    assert 55 <= statistics.mean(lasts) <= 75


@tasks
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_rambling_commits_nothing(task: Task, seed: int) -> None:
    rambling = Rambling(task.subject, random.Random(seed))
    text = "\n\n".join(f"{rambling.paragraph()} {rambling.phrase()}\n\n{rambling.snippet()}" for _ in range(50))
    assert commitments.read(task.space, text) == Design()


def test_the_latest_commitment_holds_and_questions_do_not() -> None:
    space = TASKS[1].space
    text = "I'll use a tile of 64 elements. Wait, no. TILE = 128. Should it be a tile of 16 elements?"
    assert commitments.read(space, text)["tile"] == "128"
    assert "tile" not in commitments.read(space, "If I'll use a tile of 64 elements, it would spill.")
    assert "tile" not in commitments.read(space, "TILE = 77.")


def test_lengths_scatter_around_the_mean() -> None:
    rng = random.Random(1)
    lengths = [trace.length_chars(Rates(), rng) / 4 for _ in range(4000)]
    mean = Rates().trace_tokens_mean
    assert statistics.mean(lengths) == pytest.approx(mean, rel=0.03)
    assert min(lengths) >= mean / 3 - 1
    assert statistics.pstdev(lengths) > 5_000


@tasks
@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_designs_survive_their_comment_moves_and_completion(task: Task, seed: int) -> None:
    rng = random.Random(seed)
    space = task.space
    design = space.sample(rng, careful=False)
    assert list(space.comments_in(f"x\n{space.comment(design)}\ny")) == [design]
    moved = space.move(design, rng, improve=0.5, sidestep=0.3)
    assert [name for name, _ in moved.choices] == [axis.name for axis in space.axes]
    assert sum(a != b for a, b in zip(design.choices, moved.choices, strict=True)) <= 2
    partial = Design(design.choices[:3])
    completed = space.complete(partial, moved, 1.0, rng)
    assert completed.choices == (*design.choices[:3], *moved.choices[3:])


def test_comments_that_are_no_designs_are_passed_over() -> None:
    space = TASKS[1].space
    text = "# design: task=T4 algo=row_scale\n# design: task=T1 x=y\n# design: task=T4 " + "=" * 50
    assert list(space.comments_in(text)) == []
