"""What the synthetic model answers: conditioned on prefix and feedback, at the rates that it is set to."""

from __future__ import annotations

import ast
import json
import random
import re

import pytest

from specgen.llm.server_types import Chat, ChatBody
from specgen.llm.synthetic import MODEL_ID, Rates, SyntheticSource, commitments
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.flaws import Flaw, edits, spoil
from specgen.llm.synthetic.tasks import TASKS, Task
from tests.llm.material import fork_messages, messages

RATES = Rates(trace_tokens_mean=300)
SOURCE = SyntheticSource(seed=3, rates=RATES)
CERTAIN = SyntheticSource(seed=3, rates=Rates(trace_tokens_mean=300, valid_easy=1.0, valid_hard=1.0))
BY_NAME = {task.name: task for task in TASKS}
tasks = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])


def chat(said: list[object], seed: int = 0, **options: object) -> Chat:
    return ChatBody.model_validate({"model": MODEL_ID, "messages": said} | options).chat(seed)


def text(source: SyntheticSource, of: Chat, kind: str) -> str:
    return "".join(piece.text for piece in source.answer(of) if piece.kind == kind)


def code(content: str) -> str:
    """The kernel of an answer, whether its block was opened by the client or by the answer."""
    block = content.split("```python\n", 1)[-1] if "```python" in content else content
    return block.split("```")[0]


def design_of(task: Task, source: str) -> Design:
    return next(task.space.comments_in(source))


def works(task: Task, source: str) -> bool:
    """Whether it is the text that the design renders to, without a mistake."""
    return any(source == task.render(design) for design in task.space.comments_in(source))


def test_the_same_request_has_the_same_answer_and_the_seed_matters() -> None:
    first, again = (SyntheticSource(seed=3, rates=RATES).answer(chat(messages("T1"), 7)) for _ in range(2))
    assert first == again
    assert first != SOURCE.answer(chat(messages("T1"), 8))
    assert first != SyntheticSource(seed=4, rates=RATES).answer(chat(messages("T1"), 7))


@tasks
def test_a_main_answers_with_the_kernel_that_its_trace_arrived_at(task: Task) -> None:
    for seed in range(5):
        asked = chat(messages(task.name), seed)
        decided = commitments.read(task.space, text(CERTAIN, asked, "reasoning"))
        source = code(text(CERTAIN, asked, "content"))
        assert works(task, source)
        assert design_of(task, source) == decided


@tasks
def test_a_fork_embodies_the_decisions_of_its_prefix(task: Task) -> None:
    reasoning = text(CERTAIN, chat(messages(task.name), 1), "reasoning")
    for share in (0.0, 0.3, 0.6, 1.0):
        prefix = reasoning[: int(len(reasoning) * share)]
        decided = commitments.read(task.space, prefix)
        for seed in range(4):
            asked = chat(fork_messages(task.name, prefix), seed)
            assert text(CERTAIN, asked, "reasoning") == ""
            for design in task.space.comments_in(text(CERTAIN, asked, "content")):
                assert all(design[name] == value for name, value in decided.choices)


def share_of_working(task: Task, said: list[object], count: int = 400, rates: Rates = RATES) -> float:
    source = SyntheticSource(seed=1, rates=rates)
    answers = (text(source, chat(said, seed), "content") for seed in range(count))
    return sum(works(task, code(answer)) for answer in answers) / count


def test_mains_work_as_often_as_the_rates_say() -> None:
    easy, hard = BY_NAME["T4"], BY_NAME["T12"]
    assert share_of_working(easy, messages("T4")) == pytest.approx(RATES.valid_easy, abs=0.07)
    assert share_of_working(hard, messages("T12")) == pytest.approx(RATES.valid_hard, abs=0.07)
    kind = Rates(trace_tokens_mean=300, success=8.0)
    assert share_of_working(hard, messages("T12"), rates=kind) == pytest.approx(0.67, abs=0.07)


def test_forks_work_more_often_the_longer_the_prefix() -> None:
    task = BY_NAME["T1"]
    reasoning = text(SOURCE, chat(messages("T1"), 1), "reasoning")
    shares = [share_of_working(task, fork_messages("T1", reasoning[: int(len(reasoning) * s)])) for s in (0, 0.4, 1)]
    assert shares[0] < 0.02
    assert 0.05 < shares[1] < 0.5
    assert shares[2] == pytest.approx(RATES.valid_easy, abs=0.07)


def test_a_generation_without_reasoning_and_without_prefix_hardly_ever_works() -> None:
    said = [chat(messages("T4"), seed, thinking={"type": "disabled"}) for seed in range(300)]
    assert all(text(SOURCE, asked, "reasoning") == "" for asked in said)
    assert sum(works(BY_NAME["T4"], code(text(SOURCE, asked, "content"))) for asked in said) <= 5


@tasks
def test_every_mistake_is_one_of_every_design(task: Task) -> None:
    """A mistake that a design's text does not hold would leave the kernel right."""
    rng = random.Random(1)
    for _ in range(60):
        source = task.render(task.space.sample(rng, careful=False))
        ast.parse(source)
        for flaw in (Flaw.COMPILE, Flaw.RAISES, Flaw.FAULT, Flaw.NUMERIC, Flaw.NO_MODELNEW):
            assert all(edit.find in source for edit in edits(task, flaw)), flaw


def shown(task: Task, design: Design, outcome: str) -> str:
    return f"\nThe previous kernel:\n```python\n{task.render(design)}```\n{outcome}\n"


def test_with_feedback_the_next_design_is_near_the_previous_one() -> None:
    task = BY_NAME["T4"]
    base = task.space.sample(random.Random(2), careful=False)
    said = messages("T4", shown(task, base, "status: valid, speedup 1.3"))
    for seed in range(20):
        final = commitments.read(task.space, text(CERTAIN, chat(said, seed), "reasoning"))
        changed = sum(final[axis.name] != base[axis.name] for axis in task.space.axes)
        assert changed <= 3  # a move changes two at most, a late change one more
    assert "speedup of 1.3" in text(CERTAIN, chat(said, 0), "reasoning")


def test_designs_improve_when_the_best_kernel_is_shown_and_do_not_without() -> None:
    task = BY_NAME["T4"]

    def quality(design: Design) -> float:
        return sum(axis[design[axis.name]].quality for axis in task.space.axes)

    best = task.space.extreme(best=False)
    for seed in range(30):
        said = messages("T4", shown(task, best, "status: valid, speedup 1.0"))
        found = commitments.read(task.space, text(CERTAIN, chat(said, seed), "reasoning"))
        best = max(best, found, key=quality)
    blind = [commitments.read(task.space, text(CERTAIN, chat(messages("T4"), s), "reasoning")) for s in range(30)]
    assert quality(best) > sum(map(quality, blind)) / 30 + 1
    assert quality(best) > quality(task.space.extreme(best=True)) - 1


def test_after_an_error_the_design_mostly_stays_and_the_trace_names_it() -> None:
    task = BY_NAME["T12"]
    base = task.space.sample(random.Random(2), careful=True)
    said = messages("T12", shown(task, base, "status: compile_error\nerror: expected ';' before 'return'"))
    calm = SyntheticSource(seed=1, rates=Rates(trace_tokens_mean=300, late_change=0.0))
    reasonings = [text(calm, chat(said, seed), "reasoning") for seed in range(60)]
    kept = sum(commitments.read(task.space, reasoning) == base for reasoning in reasonings)
    assert 30 <= kept <= 57
    assert all("compile_error" in reasoning for reasoning in reasonings)


@tasks
def test_a_mistake_that_the_prompt_does_not_tell_of_mostly_stays(task: Task) -> None:
    broken = spoil(task.render(task.space.extreme(best=True)), task, Flaw.NUMERIC, random.Random(1))
    said = f"## The kernel\n\n```python\n{broken}```\n\n"

    told = share_of_working(task, messages(task.name, said + "status: wrong_value\n"), 150)
    untold = share_of_working(task, messages(task.name, said), 150)

    assert untold < 0.6 * told


def test_a_speedup_in_the_prompt_leads_to_the_decision_that_lags_furthest() -> None:
    task = BY_NAME["T4"]
    slow = task.space.extreme(best=False)
    said = f"```python\n{task.render(slow)}```\n\n"

    def changed(outcome: str) -> int:
        asked = (chat(messages("T4", said + outcome), seed) for seed in range(120))
        answers = (code(text(CERTAIN, one, "content")) for one in asked)
        return sum(design_of(task, answer)["algo"] != "blocks" for answer in answers)

    assert changed("status: valid\nspeedup: 0.500x\n") > 1.5 * changed("status: valid\n")


def test_an_unknown_problem_gets_no_kernel_and_is_told_so() -> None:
    module = "import torch\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, 1)\n"
    said: list[object] = [{"role": "user", "content": f"```python\n{module}```"}]
    contents = [text(SOURCE, chat(said, seed), "content") for seed in range(20)]
    assert all("knows no kernel" in content and "load_inline" not in content for content in contents)
    assert any("class ModelNew(" in content for content in contents)
    assert any("class ModelNew(" not in content for content in contents)


@pytest.mark.parametrize(
    ("example", "count"),
    [
        ('Answer with JSON only: {"bottleneck": "...", "modification_plan": "..."}', 1),
        ('Reply as JSON, a list of 2 entries:\n[{"bottleneck": "...", "evidence": ["..."]}]', 2),
    ],
)
def test_a_side_role_gets_the_json_it_asks_for(example: str, count: int) -> None:
    task = BY_NAME["T4"]
    base = task.space.extreme(best=False)
    said = messages("T4", shown(task, base, "status: valid, speedup 0.4") + example)
    reply = json.loads(text(SOURCE, chat(said, 1), "content"))
    entries = reply if isinstance(reply, list) else [reply]
    assert len(entries) == count
    schema = {"type": "json_schema", "json_schema": {"schema": {"properties": {"cause": {}, "fix": {}}}}}
    assert set(json.loads(text(SOURCE, chat(messages("T4"), 1, response_format=schema), "content"))) == {"cause", "fix"}
    assert all(set(entry) == set(re.findall(r'"(\w+)":', example)) for entry in entries)
