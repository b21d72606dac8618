"""Tables for the reader, then one figure a line, with the paper's number beside."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

from benchmarks.figures import figure
from benchmarks.search.jobs import Measured

# SpecGen over CudaForge, KernelAgent, AlphaEvolve. Over 100 iterations of T1-T10 on H200s with real LLMs.
PAPER_TIME = {
    "cudaforge": "1.50 GLM, 1.68 both (8.2); 1.77 (Table 5)",
    "kernelagent": "1.69 GLM, 1.82 both (8.2)",
    "alphaevolve": "1.68 GLM, 1.81 both (8.2)",
}
PAPER_FEEDBACK = {"cudaforge": "1.98 (8.3)", "kernelagent": "1.58 (8.3)", "alphaevolve": "1.69 (8.3)"}
PAPER_BEST = {"cudaforge": "1.24 (Table 6)", "kernelagent": "1.52 (Table 6)", "alphaevolve": "1.91 (Table 6)"}
PAPER_TOKENS = {"cudaforge": "0.98 (Table 7), 1.30 (Table 9)"}
# Table 9, GLM, over CudaForge: time, profiles over CudaForge's 36.3 and the additional ones, speedup, tokens,
# iterations of 100 that ended early.
PAPER_TERMINATION = {
    "first_valid": (73.9 / 39.8, (36.3 + 70.0) / 36.3, 5.53 / 5.05, 1.143, 0.703),
    "historical_mean": (73.9 / 43.8, (36.3 + 114.9) / 36.3, 5.78 / 5.05, 1.302, 0.630),
    "historical_best": (73.9 / 70.3, (36.3 + 535.9) / 36.3, 6.06 / 5.05, 2.295, 0.090),
    "never": (73.9 / 73.9, (36.3 + 587.2) / 36.3, 6.15 / 5.05, 2.400, 0.0),
}
MARKS = (5, 10, 20)  # iterations
RESAMPLES = 4000

Pair = tuple[Measured, Measured]  # (without, with) of one task and seed


def geometric(values: Sequence[float]) -> float:
    """Geometric mean; 0 where there is none, or one is 0."""
    return math.exp(statistics.fmean(map(math.log, values))) if values and min(values) > 0 else 0.0


def pairs(base: Sequence[Measured], other: Sequence[Measured]) -> list[Pair]:
    """By task and seed; what did not finish is left out, and told."""
    found = {(one.run.task, one.run.seed): one for one in other}
    made = [(one, found[key]) for one in base if (key := (one.run.task, one.run.seed)) in found]
    whole = [pair for pair in made if all(one.state == "done" and one.profiles for one in pair)]
    for without, _ in (pair for pair in made if pair not in whole):
        print(
            f"left out: {without.run.variant} {without.run.task} seed {without.run.seed} has no valid kernel",
            flush=True,
        )
    return whole


def ratios(made: Sequence[Pair]) -> dict[str, float]:
    """With over without (time: without over with): geometric means over tasks and seeds."""

    def mean(value: Callable[[Measured], float]) -> float:
        return geometric([value(other) / value(base) for base, other in made])

    return {
        "time": 1 / mean(lambda one: one.seconds / one.iterations) if made else 0.0,
        "feedback": mean(lambda one: one.profiles / one.iterations),
        "tokens": mean(lambda one: one.fresh_tokens / one.iterations),
        "all_tokens": mean(lambda one: one.tokens / one.iterations),
        "best": mean(lambda one: one.best),
    }


def speculation(name: str, base: Sequence[Measured], other: Sequence[Measured]) -> dict[str, float]:
    """An algorithm's figures; its ratios."""
    made = pairs(base, other)
    found = ratios(made)
    share = [statistics.fmean(one.with_feedback for one in side) for side in (base, other)]
    early = sum(one.early for one in other) / max(1, sum(one.iterations for one in other))
    paper = PAPER_TIME.get(name, ""), PAPER_FEEDBACK.get(name, ""), PAPER_TOKENS.get(name, ""), PAPER_BEST.get(name, "")
    figure(f"{name}: time, without over with speculation", found["time"], "x", ">= 2.0", found["time"] >= 2.0, paper[0])
    figure(f"{name}: profiles an iteration, with over without", found["feedback"], "x", ">= 2.5",
           found["feedback"] >= 2.5, paper[1])  # fmt: skip
    figure(f"{name}: iterations with feedback, without speculation", share[0], "share", "printed", None)
    figure(f"{name}: iterations with feedback, with speculation", share[1], "share", "printed", None)
    figure(f"{name}: tokens, with over without", found["tokens"], "x", "<= 1.0", found["tokens"] <= 1.0, paper[2])
    figure(f"{name}: tokens, cached ones too, with over without", found["all_tokens"], "x", "printed", None)
    figure(f"{name}: iterations ended early", early, "share", "printed", None)
    figure(f"{name}: best kernel, with over without", found["best"], "x", "printed", None, paper[3])
    return found


def pace(what: str, found: Sequence[Measured], tokens_per_s: float) -> None:
    """Whether the machine kept up: where main streams came slower than they were sent, times are not to be trusted."""
    rates = [one.tokens_per_s / tokens_per_s for one in found if one.tokens_per_s]
    value = statistics.fmean(rates) if rates else 0.0
    figure(f"pace of main streams {what}, over the model's", value, "share", ">= 0.95", value >= 0.95)


def means(found: Sequence[dict[str, float]]) -> None:
    """Over algorithms."""
    names = (("time", ">= 2.0", True), ("feedback", ">= 2.5", True), ("tokens", "<= 1.0", False), ("best", "", None))
    for name, bar, more in names:
        value = geometric([one[name] for one in found])
        holds = None if more is None else value >= float(bar[3:]) if more else value <= float(bar[3:])
        figure(f"all algorithms, geometric mean: {name}", value, "x", bar or "printed", holds)


def table(name: str, base: Sequence[Measured], other: Sequence[Measured]) -> None:
    """Table 6 and 7 of one algorithm, task by task."""
    for without, spec in pairs(base, other):
        one = ratios([(without, spec)])
        print(
            f"{name:<12} {without.run.task:<3} time {without.seconds:.1f} -> {spec.seconds:.1f} s "
            f"({one['time']:.2f}x)  profiles/iteration {without.profiles / without.iterations:.2f} -> "
            f"{spec.profiles / spec.iterations:.2f} ({one['feedback']:.2f}x)  tokens {one['tokens']:.2f}x "
            f"(cached ones too {one['all_tokens']:.2f}x)  best {without.best:.2f} -> {spec.best:.2f}",
            flush=True,
        )


def progress(name: str, found: Sequence[Measured], *, judged: bool) -> None:
    """Best so far; a figure of it where ``judged``."""
    if not (whole := [one for one in found if one.profiles]):
        return
    marks = [mark for mark in MARKS if mark <= min(one.iterations for one in whole)]
    curve = "  ".join(f"after {mark} {geometric([max(one.after(mark), 1e-9) for one in whole if one.after(mark)]):.2f}x"
                      f" ({sum(one.after(mark) > 0 for one in whole)} jobs)" for mark in marks)  # fmt: skip
    how = "with" if whole[0].run.speculation else "without"
    print(f"best so far, {name} {how} speculation: first valid {geometric([one.first for one in whole]):.2f}x  {curve}",
          flush=True)  # fmt: skip
    if not judged:
        return
    rise = geometric([one.best / one.first for one in whole])
    figure(
        f"{name}: best after {whole[0].iterations} iterations over the first valid kernel",
        rise,
        "x",
        "> 1.0",
        rise > 1.0,
    )


def terminations(base: Sequence[Measured], found: dict[str, list[Measured]]) -> None:
    """Table 9: each criterion over the same search without speculation."""
    for name, other in found.items():
        made = ratios(pairs(base, other))
        early = sum(one.early for one in other) / max(1, sum(one.iterations for one in other))
        paper = PAPER_TERMINATION[name]
        rows = (
            ("time", "time, without over with"),
            ("feedback", "profiles"),
            ("best", "best kernel"),
            ("tokens", "tokens"),
        )
        for number, (key, what) in enumerate(rows):
            figure(f"termination {name}: {what}", made[key], "x", "printed", None, f"{paper[number]:.2f} (Table 9)")
        figure(
            f"termination {name}: iterations ended early", early, "share", "printed", None, f"{paper[4]:.2f} (Table 9)"
        )


def feedback_matters(full: Sequence[Measured], withheld: dict[str, list[Measured]], seed: int = 1) -> None:
    """Full feedback over each way of withholding it, paired by task and seed, with a bootstrap over the pairs."""
    for name, other in withheld.items():
        made = pairs(other, full)
        gains = [_in_hand(fed) - _in_hand(blind) for blind, fed in made]
        if not gains:
            continue
        low, high, doubt = bootstrap(gains, random.Random(seed))
        wins = sum(gain > 0 for gain in gains)
        valid = [sum(one.profiles for one in side) / sum(one.iterations for one in side) for side in (other, full)]
        bests = [geometric([one.best for one in side]) for side in zip(*made, strict=True)]
        print(
            f"refine, {name}: best-so-far over the search {math.exp(statistics.fmean(gains)):.3f}x with full feedback "
            f"(90 % of resamples {math.exp(low):.3f} to {math.exp(high):.3f}; {doubt:.4f} of them not above 1), "
            f"ahead in {wins} of {len(gains)} pairs; best at the end {bests[0]:.2f}x -> {bests[1]:.2f}x, "
            f"valid kernels an iteration {valid[0]:.2f} -> {valid[1]:.2f}",
            flush=True,
        )
        holds = doubt <= 0.05
        figure(
            f"feedback over {name}: best so far",
            math.exp(statistics.fmean(gains)),
            "x",
            "> 1.0 in 95 % of resamples",
            holds,
        )
        figure(f"feedback over {name}: best at the end", bests[1] / bests[0], "x", "printed", None)
        figure(f"feedback over {name}: pairs ahead", wins / len(gains), "share", "printed", None)


def _in_hand(one: Measured) -> float:
    """Mean logarithm over iterations of the speedup in hand: 1, the reference's own, while nothing is faster."""
    return statistics.fmean(math.log(max(1.0, best)) for best in one.curve)


def bootstrap(values: Sequence[float], rng: random.Random) -> tuple[float, float, float]:
    """5 % and 95 % quantile of the mean over resamples, and the share of them that is not above 0."""
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[RESAMPLES // 20], means[-RESAMPLES // 20], sum(mean <= 0 for mean in means) / RESAMPLES
