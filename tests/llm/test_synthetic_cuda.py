"""The synthetic model on `cuda` prompts: decisions select files of the stock, mistakes are edits of them.

Nothing here runs on a GPU; two mistakes and their correct file are compiled where there is an nvcc.
"""

from __future__ import annotations

import ast
import random
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

from specgen.evaluation.problems import load_problem
from specgen.llm.server_types import Chat
from specgen.llm.synthetic import Rates, SyntheticSource, commitments, gpu_stock
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.feedback import read_prompt
from specgen.llm.synthetic.flaws import Flaw, edits, spoil
from specgen.llm.synthetic.tasks import CUDA_TASKS, StockTask
from specgen.prompts import GpuFacts, Renderer

DEVICE = GpuFacts("NVIDIA H200", "9.0", multiprocessors=132)
ALWAYS = Rates(trace_tokens_mean=900, success=1e12)
tasks = pytest.mark.parametrize("task", CUDA_TASKS, ids=[task.name for task in CUDA_TASKS])
FILES = [(task, style) for task in CUDA_TASKS for style in task.styles]
files = pytest.mark.parametrize(("task", "style"), FILES, ids=[f"{task.name}_{style}" for task, style in FILES])


@lru_cache(maxsize=64)
def asked(name: str, backend: str = "cuda", feedback: str = "") -> str:
    """The prompt that `specgen run` would send, followed by feedback as its templates write it."""
    problem = load_problem(name, "cuda" if backend == "cuda" else "cpu")
    text = Renderer().render("refine/seed.md.j2", problem=problem, device=DEVICE, note="").text
    return f"{text}\n{feedback}"


def chat(prompt: str, seed: int = 1, prefix: str | None = None) -> Chat:
    conversation = (("system", "You are an expert in writing fast CUDA kernels."), ("user", prompt))
    opening = "```python\n" if prefix is not None else ""
    return Chat(conversation, seed, fork=prefix is not None, prefix=prefix or "", opening=opening)


def code_of(content: str) -> str:
    found = re.search(r"```python\n(.*?)```", content, re.DOTALL)
    return found[1] if found else content.split("```")[0]


@tasks
def test_a_shipped_problem_is_recognised_by_its_reference_and_its_language(task: StockTask) -> None:
    assert read_prompt(asked(task.name)).task is task
    on_cpu = read_prompt(asked(task.name, "cpu")).task
    assert not isinstance(on_cpu, StockTask)


def test_another_reference_is_none_of_them() -> None:
    other = asked("T5").replace("torch.matmul(a, b)", "torch.matmul(a, b) + 1")
    assert read_prompt(other).task is None
    commented = asked("T5").replace("return torch.matmul(a, b)", "return torch.matmul(a, b)  # the product")
    found = read_prompt(commented).task
    assert found is not None
    assert found.name == "T5"


def test_every_file_of_the_stock_is_some_design() -> None:
    assert {f"{task.name}_{style}" for task, style in FILES} == {kernel.name for kernel in gpu_stock.correct()}


@files
def test_a_file_is_handed_out_as_it_lies_in_the_stock(task: StockTask, style: str) -> None:
    source = task.render(task.design_of(style))
    comment, _, body = source.partition("\n")
    assert body == next(kernel.source for kernel in gpu_stock.correct(task.name) if kernel.style == style)
    assert list(task.space.comments_in(comment)) == [task.design_of(style)]
    assert task.style(task.design_of(style)) == style
    assert task.excerpt(task.design_of(style)).count("{") == task.excerpt(task.design_of(style)).count("}")


@tasks
def test_what_is_undecided_is_naive(task: StockTask) -> None:
    assert task.style(Design()) == "naive"
    assert task.complete(Design(), None, 1.0, random.Random(1)) == task.design_of("naive")
    best = task.design_of(list(task.styles)[-1])
    assert task.complete(Design(), best, 1.0, random.Random(1)) == best


@tasks
def test_a_trace_commits_the_decisions_of_the_file_it_ends_with(task: StockTask) -> None:
    reasoning, content = SyntheticSource(rates=ALWAYS).answer(chat(asked(task.name), seed=7))
    decided = commitments.read(task.space, reasoning.text)
    assert len(decided) == len(task.space.axes)
    assert code_of(content.text) == task.render(decided)
    assert "CUDA kernel" in reasoning.text
    assert "One core" not in reasoning.text


@tasks
def test_a_fork_answers_with_what_its_prefix_implies(task: StockTask) -> None:
    source = SyntheticSource(rates=ALWAYS)
    (reasoning, _) = source.answer(chat(asked(task.name), seed=11))
    seen = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        prefix = reasoning.text[: round(len(reasoning.text) * share)]
        (content,) = source.answer(chat(asked(task.name), seed=12, prefix=prefix))
        assert code_of(content.text) == task.render(commitments.read(task.space, prefix))
        seen.append(code_of(content.text))
    assert seen[0] == task.render(task.design_of("naive"))


@files
def test_every_file_can_have_every_kind_of_mistake(task: StockTask, style: str) -> None:
    right = task.render(task.design_of(style))
    for flaw in (Flaw.COMPILE, Flaw.RAISES, Flaw.FAULT, Flaw.NUMERIC, Flaw.NO_MODELNEW):
        assert any(edit.find in right for edit in edits(task, flaw)), flaw
        wrong = spoil(right, task, flaw, random.Random(3))
        assert wrong != right
        ast.parse(wrong)  # the mistake is in the kernel, or in how it is called


@tasks
def test_a_search_moves_through_the_styles_to_the_best(task: StockTask) -> None:
    """Given feedback that names a speedup, I expect later kernels to be better styles than the first."""
    source, order, seen = SyntheticSource(rates=ALWAYS), list(task.styles), []
    latest = task.render(task.design_of("naive"))
    for seed in range(24):
        feedback = f"## Your latest kernel\n\n```python\n{latest}```\n\nstatus: valid\nspeedup: 1.500x\n"
        content = source.answer(chat(asked(task.name, feedback=feedback), seed))[-1]
        latest = code_of(content.text)
        seen.append(task.style(next(task.space.comments_in(latest))))
    assert order[-1] in seen
    assert set(seen[12:]) & set(order[-2:])


def test_mistakes_come_at_the_configured_rates() -> None:
    task = CUDA_TASKS[2]
    right = {task.render(task.design_of(style)) for style in task.styles}
    source = SyntheticSource(rates=Rates(trace_tokens_mean=300))
    answers = [code_of(source.answer(chat(asked("T3"), seed))[-1].text) for seed in range(80)]
    share = sum(code in right for code in answers) / len(answers)
    assert 0.07 < share < 0.4  # valid_hard is 0.205


HEADER = """#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cstdint>
"""


@pytest.mark.parametrize(("flaw", "compiles"), [(Flaw.NONE, True), (Flaw.NUMERIC, True), (Flaw.COMPILE, False)])
def test_mistakes_compile_or_do_not_as_they_should(tmp_path: Path, flaw: Flaw, compiles: bool) -> None:
    """The kernels of one file, without their host code, through the front end of nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc here")
    task = CUDA_TASKS[1]
    source = task.render(task.design_of("naive"))
    if flaw is not Flaw.NONE:
        mistake = edits(task, flaw)[0]  # one in the kernel
        source = source.replace(mistake.find, mistake.replace)
    cuda = re.sub(r"#include <(?:torch|ATen|c10)[^\n]*\n", "", source.split('r"""')[1].split('"""')[0])
    (tmp_path / "k.cu").write_text(HEADER + cuda.split("torch::Tensor")[0])
    done = subprocess.run(
        [nvcc, "-arch=sm_90", "-ptx", "k.cu", "-o", "k.ptx"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode == 0) is compiles, done.stderr
