"""The synthetic model beside the paper: what it says, sampled without waiting, against the paper's own numbers.

    python -m benchmarks.calibration [--like glm-5.1,deepseek-v4-pro] [--judge 0] [--iterations 100]

Prompts are those that the shipped templates make for T1-T10 on a GPU (and T1, T4, T12, E1 on a CPU). Whether a kernel
is right is what the source says of it: the mistake that it drew. ``--judge N`` builds and validates N sampled CPU
kernels, of every kind of mistake, and compares. A tolerance is twice the error of sampling, the paper's (100 iterations
for each of ten tasks) and this run's together, unless its figure says otherwise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.calibration_judge import judge
from benchmarks.calibration_samples import (
    CPU_NAMES,
    GPU_NAMES,
    Attempt,
    chain,
    fork_shares,
    lengths,
    shortest_useful,
    without_prefix,
)
from benchmarks.figures import figure, machine
from specgen.llm.server import ServerConfig
from specgen.llm.synthetic.flaws import Flaw
from specgen.llm.synthetic.rates import RATES, TOKENS_PER_S, Rates, scale_odds

PAPER_SECONDS = {"glm-5.1": 706.9, "deepseek-v4-pro": 522.6}  # §3.1
PAPER_TOKENS = {"glm-5.1": 23_660, "deepseek-v4-pro": 22_785}  # Table 7; §3.1's time at Table 8's rate
PAPER_VALID = {"glm-5.1": 36.3, "deepseek-v4-pro": 40.7}  # §3.2
PAPER_UNAIDED = {"glm-5.1": 2, "deepseek-v4-pro": 6}  # Table 2: tasks with a kernel among 100 without a prefix
T12_SUCCESS = 0.029  # `--success` at which a hard task is Table 8's T12
KINDS = {
    Flaw.NONE: "success", Flaw.COMPILE: "compiler", Flaw.RAISES: "runtime", Flaw.FAULT: "runtime",
    Flaw.NUMERIC: "numerical", Flaw.NO_CODE: "other", Flaw.NO_MODELNEW: "other",
}  # fmt: skip


def near(name: str, value: float, paper: float, margin: float, unit: str) -> None:
    """A figure that must lie within ``margin`` of the paper's number."""
    figure(name, value, unit, f"{paper:g} +- {margin:.3g}", abs(value - paper) <= margin)


def within(name: str, value: float, low: float, high: float, unit: str) -> None:
    """A figure between two bounds."""
    figure(name, value, unit, f"{low:g} to {high:g}", low <= value <= high)


def generations(like: str, rates: Rates) -> None:
    """§3.1 and Table 7. The tolerance is 5 %: lengths scatter by 35 %, so 240 of them are known to 4.5 %."""
    tokens = lengths(rates, [*GPU_NAMES], each=24)
    mean, rate = statistics.fmean(tokens), TOKENS_PER_S[like]
    paper = PAPER_TOKENS[like]
    near(f"{like}: tokens a generation", mean, paper, 0.05 * paper, "tokens")
    near(f"{like}: token rate", rate, paper / PAPER_SECONDS[like], 0.1, "tokens/s")
    seconds = mean / ServerConfig(tokens_per_s=rate).tokens_per_s
    near(f"{like}: generation", seconds, PAPER_SECONDS[like], 0.05 * PAPER_SECONDS[like], "s")


def statuses(like: str, rates: Rates, iterations: int) -> None:
    """Figure 3 and §3.2, over chains of iterations of which each shows the one before."""
    tasks = {name: chain(rates, name, iterations, seed) for seed, name in enumerate(GPU_NAMES)}
    for name, attempts in tasks.items():
        counted = Counter(KINDS[attempt.flaw] for attempt in attempts)
        print(f"  {name}: " + ", ".join(f"{kind} {100 * counted[kind] / len(attempts):.0f} %" for kind in _order()))
    everything = [attempt for attempts in tasks.values() for attempt in attempts]
    valid = {name: _share(attempts, "success") for name, attempts in tasks.items()}
    share = PAPER_VALID[like] / 100
    error = 200 * math.sqrt(share * (1 - share) * (1 / 1000 + 1 / len(everything)))
    near(f"{like}: valid", 100 * _share(everything, "success"), PAPER_VALID[like], error, "%")
    below = sum(part < 0.5 for part in valid.values())
    within(f"{like}: tasks of ten with fewer than half valid", below, 6, 8, "(paper: 7)")
    failed = {kind: _share(everything, kind) / (1 - _share(everything, "success")) for kind in _order()[1:]}
    for kind, part in failed.items():
        figure(f"{like}: {kind} errors among the failed", 100 * part, "%", "", None)
    hard = [attempt for name in ("T6", "T7", "T8", "T9", "T10") for attempt in tasks[name]]
    rest = [attempt for name in ("T1", "T2", "T3", "T4", "T5") for attempt in tasks[name]]
    more = _of_failed(hard, "numerical") / max(_of_failed(rest, "numerical"), 1e-9)
    figure(f"{like}: mismatches, transposed and triangular over the others", more, "x", "> 1", more > 1)
    first = max(failed, key=lambda kind: failed[kind])
    wanted = "compiler" if like == "glm-5.1" else "runtime"
    figure(f"{like}: most failures are {first} errors", 100 * failed[first], "%", f"{wanted} errors", first == wanted)


def prefixes(like: str, rates: Rates) -> None:
    """Table 2: without a prefix, and by its length."""
    share = without_prefix(rates, each=100)
    tasks = 10 * (1 - (1 - share) ** 100)
    within(f"{like}: tasks of ten with a kernel in 100 without prefix", tasks,
           PAPER_UNAIDED[like] - 2.5, PAPER_UNAIDED[like] + 3.0, f"(paper: {PAPER_UNAIDED[like]})")  # fmt: skip
    places = (0.14, 0.3, 0.5, 0.7, 1.0)
    steps = fork_shares(rates, places, each=8)
    for at, valid in zip(places, steps, strict=True):
        figure(f"{like}: valid forks at {100 * at:g} % of the trace", 100 * valid, "%", "", None)
    rising = all(later >= earlier - 0.06 for earlier, later in pairwise(steps))  # twice the error of a difference
    rise = 100 * (steps[-1] - steps[0])
    figure(f"{like}: rise with the prefix", rise, "points", "> 0, nowhere a fall over 6", rising and rise > 0)
    aided = 10 * (1 - (1 - statistics.fmean(steps)) ** 100)
    within(f"{like}: tasks of ten with a kernel in 100 with prefix", aided, 9.5, 10, "(paper: 10)")


def useful(like: str, rates: Rates) -> None:
    """Figure 6: the shortest prefix whose kernel beats the mean of the earlier ones. Its range is read as that of nine
    in ten; both ends may be off by the distance of two forks and one decision's scatter (10 points)."""
    found = sorted(shortest_useful(rates, each=6))
    low, middle, high = (100 * _quantile(found, share) for share in (0.05, 0.5, 0.95))
    near(f"{like}: shortest useful prefix, 5th percentile", low, 14, 10, "% of the trace")
    figure(f"{like}: shortest useful prefix, median", middle, "% of the trace", "14 to 70", 14 <= middle <= 70)
    near(f"{like}: shortest useful prefix, 95th percentile", high, 70, 10, "% of the trace")


def hardest(rates: Rates, iterations: int) -> None:
    """Table 8 (DeepSeek, T11-T20): 26.1 profiles in 100 iterations on average, 1.0 for T12."""
    print(f"T12: a hard task on the CPU; --success {T12_SUCCESS} makes a hard task as hard as the paper's T12")
    attempts = [attempt for seed in range(8) for attempt in chain(rates, "cpu/T12", iterations, seed)]
    error = 200 * math.sqrt(0.261 * 0.739 * (1 / 1000 + 1 / len(attempts)))
    near("hard tasks: valid in 100 (Table 8's mean, T11-T20)", 100 * _share(attempts, "success"), 26.1, error, "")
    rare = 100 * scale_odds(rates.valid_hard, T12_SUCCESS * rates.repair_odds)
    within(f"T12 with --success {T12_SUCCESS}: valid in 100 (paper: 1.0)", rare, 0.5, 2.0, "")
    figure("T12: forks with all decisions an iteration for 13.2 profiles in 100", 13.2 / rare, "forks", "", None)


def _order() -> Sequence[str]:
    return tuple(dict.fromkeys(KINDS.values()))


def _share(attempts: Sequence[Attempt], kind: str) -> float:
    return sum(KINDS[attempt.flaw] == kind for attempt in attempts) / len(attempts)


def _of_failed(attempts: Sequence[Attempt], kind: str) -> float:
    return _share(attempts, kind) / max(1 - _share(attempts, "success"), 1e-9)


def _quantile(values: Sequence[float], share: float) -> float:
    return values[round(share * (len(values) - 1))]


def main() -> None:
    """All figures for every model named."""
    parser = argparse.ArgumentParser(prog="benchmarks.calibration", description=__doc__.partition("\n")[0])
    parser.add_argument("--like", default=",".join(RATES))
    parser.add_argument("--iterations", type=int, default=100, help="of each chain (Figure 3)")
    parser.add_argument("--judge", type=int, default=0, help="build and validate so many sampled CPU kernels")
    options = parser.parse_args()
    start = time.monotonic()
    print(f"{machine()}; synthetic model only, no LLM was asked")
    for like in options.like.split(","):
        rates = RATES[like]
        generations(like, rates)
        statuses(like, rates, options.iterations)
        prefixes(like, rates)
        useful(like, rates)
        print(f"  {time.monotonic() - start:.0f} s so far")
    hardest(RATES["glm-5.1"], options.iterations)
    if options.judge:
        judge(options.judge, CPU_NAMES)
    else:
        print("nothing was built: kernels are right or wrong by the source's own word (--judge 6 checks some)")
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
