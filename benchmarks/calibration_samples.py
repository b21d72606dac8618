"""What `benchmarks.calibration` samples: answers of the source, asked as SpecGen asks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from specgen.evaluation.problems import load_problem
from specgen.llm.server_types import Chat, count_tokens
from specgen.llm.synthetic import Rates, SyntheticSource
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.flaws import Flaw
from specgen.llm.synthetic.source import Told
from specgen.llm.synthetic.tasks import CUDA_TASKS, TASKS, AnyTask, StockTask
from specgen.prompts import GpuFacts, Renderer, cpu_facts

GPU_NAMES = tuple(task.name for task in CUDA_TASKS)
CPU_NAMES = tuple(f"cpu/{task.name}" for task in TASKS)
SHORT_TOKENS = 200.0  # of a trace where only the kernel counts
POSITION_TOKENS = 4_000.0  # where positions in it count: they are shares of its length
FORK_EVERY = 0.04  # of the trace
_STATUS = {
    Flaw.NONE: "valid", Flaw.COMPILE: "compile_error", Flaw.RAISES: "runtime_error", Flaw.FAULT: "device_fault",
    Flaw.NUMERIC: "wrong_value", Flaw.NO_CODE: "no_code", Flaw.NO_MODELNEW: "no_modelnew",
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One kernel: what is wrong with it, its design and its file."""

    flaw: Flaw
    design: Design
    content: str


def task_of(name: str) -> AnyTask:
    """``T1``-``T10`` are those on a GPU, ``cpu/T4`` is on a CPU."""
    known: dict[str, AnyTask] = {task.name: task for task in CUDA_TASKS} | dict(zip(CPU_NAMES, TASKS, strict=True))
    return known[name]


@lru_cache(maxsize=64)
def prompt(name: str) -> str:
    """A first prompt."""
    task = task_of(name)
    on_gpu = isinstance(task, StockTask)
    problem = load_problem(task.name, "cuda" if on_gpu else "cpu")
    device = GpuFacts("NVIDIA H200", "9.0", multiprocessors=132) if on_gpu else cpu_facts()
    return Renderer().render("refine/seed.md.j2", problem=problem, device=device, note="").text


def asked(name: str, seed: int, shown: Attempt | None = None, prefix: str | None = None, rank: float = 1.0) -> Chat:
    """A main generation, or a fork of a prefix; ``shown`` is the previous kernel, of speedup ``rank``."""
    text = prompt(name)
    if shown is not None:
        verdict = f"status: {_STATUS[shown.flaw]}\n" + (f"speedup: {rank:.2f}x\n" if shown.flaw is Flaw.NONE else "")
        text += f"\n## Your latest kernel\n\n```python\n{task_of(name).render(shown.design)}```\n\n{verdict}"
    opening = "```python\n" if prefix is not None else ""
    return Chat((("user", text),), seed, fork=prefix is not None, prefix=prefix or "", opening=opening)


def attempt_of(told: Told) -> Attempt:
    """The kernel of an answer to a problem that is known."""
    if told.flaw is None or told.design is None:
        raise ValueError("the source does not know this problem")
    return Attempt(told.flaw, told.design, told.pieces[-1].text)


def chain(rates: Rates, name: str, iterations: int, seed: int) -> list[Attempt]:
    """Iterative refinement: each prompt shows the kernel before it and what became of it (§3)."""
    source = SyntheticSource(seed=seed, rates=replace(rates, trace_tokens_mean=SHORT_TOKENS))
    made: list[Attempt] = []
    for number in range(iterations):
        made.append(attempt_of(source.tell(asked(name, number, made[-1] if made else None))))
    return made


def lengths(rates: Rates, names: Sequence[str], each: int) -> list[int]:
    """Tokens of whole main generations, reasoning and answer, along short chains."""
    source, found = SyntheticSource(seed=5, rates=rates), []
    for name in names:
        shown = None
        for number in range(each):
            told = source.tell(asked(name, number, shown))
            found.append(sum(count_tokens(piece.text) for piece in told.pieces))
            shown = attempt_of(told)
    return found


def without_prefix(rates: Rates, each: int) -> float:
    """Share of valid kernels of generations that neither reason nor have a prefix."""
    source = SyntheticSource(seed=6, rates=rates)
    told = [source.tell(asked(name, seed, prefix="")) for name in GPU_NAMES for seed in range(each)]
    return statistics.fmean(one.flaw is Flaw.NONE for one in told)


def fork_shares(rates: Rates, places: Sequence[float], each: int) -> list[float]:
    """Shares of valid kernels of forks at those shares of the trace, over ``each`` traces of the ten tasks."""
    source = SyntheticSource(seed=7, rates=replace(rates, trace_tokens_mean=POSITION_TOKENS))
    valid: list[list[bool]] = [[] for _ in places]
    for name in GPU_NAMES:
        for seed in range(each):
            trace = source.answer(asked(name, seed))[0].text
            for at, found in zip(places, valid, strict=True):
                forks = (asked(name, 100 * seed + k, prefix=trace[: round(at * len(trace))]) for k in range(6))
                found += [source.tell(fork).flaw is Flaw.NONE for fork in forks]
    return [statistics.fmean(found) for found in valid]


def shortest_useful(rates: Rates, each: int) -> list[float]:
    """Shares of the trace at which a fork first was valid and faster than the mean of the history (Figure 6), over
    ``each`` iterations of every task; iterations without such a fork are left out. Speed is by rank of the style."""
    source = SyntheticSource(seed=8, rates=replace(rates, trace_tokens_mean=POSITION_TOKENS))
    found = []
    for name in GPU_NAMES:
        best, history = None, [0.0]
        for number in range(each):
            trace = source.answer(asked(name, number, best, rank=max(history)))[0].text
            for step in range(round(1 / FORK_EVERY) + 1):
                at = min(1.0, step * FORK_EVERY)
                fork = asked(name, 1000 * number + step, best, trace[: round(at * len(trace))], max(history))
                attempt = attempt_of(source.tell(fork))
                if attempt.flaw is not Flaw.NONE:
                    continue
                speed, before = speed_of(name, attempt.design), statistics.fmean(history)
                history.append(speed)
                if speed > before:
                    best = attempt
                    found.append(at)
                    break
    return found


def speed_of(name: str, design: Design) -> float:
    """A stand-in for its speedup: the rank of its style, from 1 for the poorest."""
    task = task_of(name)
    assert isinstance(task, StockTask)
    return 1.0 + list(task.styles).index(task.style(design))
