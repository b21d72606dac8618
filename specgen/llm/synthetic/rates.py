"""How often the synthetic model succeeds, fails, improves and reverses itself, and where each number comes from.

"paper" marks a number that the paper states, "derived" one that follows from such numbers, "assumed" one that nothing
states: docs/model-server.md lists them all. Everything here is a setting, nothing is hidden elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

_POSITIVE = {"trace_tokens_mean", "trace_sigma", "success", "repair_odds", "fence_every_chars", "phrase_every_chars"}


@dataclass(frozen=True)
class Rates:
    """Probabilities in [0, 1], lengths in tokens, positions as shares of the trace."""

    # Length of a trace.
    trace_tokens_mean: float = 21_100.0  # derived: Table 7's 23 660 tokens a generation, less the answer's
    trace_sigma: float = 0.35  # assumed: of the logarithm; §3.1 gives means only

    # Kernels of main generations that are valid, where no error is to be repaired. With `repair_odds` these give 0.60
    # and 0.26 over a chain of iterations, and §3.2's 36.3 % over the ten tasks.
    valid_easy: float = 0.56  # assumed: §3.2 has seven of ten tasks below one half, so three are above
    valid_hard: float = 0.205  # derived from it and the mean
    success: float = 1.0  # multiplies the odds of a valid kernel, everywhere

    # Forks: validity rises with the share of decisions that the prefix commits.
    valid_without_prefix: float = 0.002  # paper: Table 2, 8 of 10 tasks none valid in 100; 0.2 % over ten tasks
    first_decision_at: float = 0.13  # derived: Figure 6, the shortest useful prefix is 14 % of the trace ...
    last_decision_at: float = 0.68  # ... to 70 %
    share_needed: float = 1.0  # assumed: the share of decisions at which a fork is as good as the main

    # What goes wrong, as shares of the kernels that are not valid (Figure 3's kinds).
    compile_share: float = 0.58  # assumed from §3.2: "fails predominantly at compile time"
    runtime_share: float = 0.18  # assumed
    numeric_share: float = 0.18  # assumed
    layout_shift: float = 0.10  # assumed from §3.2: mismatches recur on transposed and triangular products, and so
    # much of the compile errors' share is theirs there
    fault_share: float = 0.30  # assumed: of the runtime failures, how many are faults and not exceptions
    # the rest (0.06) is Figure 3's "other": no code, no ModelNew

    # Moves in the design space.
    improve: float = 0.60  # assumed: a changed decision goes to one that usually is faster
    sidestep: float = 0.25  # assumed: ... to a random one; else it regresses
    keep_undecided: float = 0.50  # assumed: a fork keeps the previous kernel's value where its prefix says nothing
    repair_odds: float = 1.5  # assumed: multiplies the odds after an error was shown
    keep_on_error: float = 0.70  # assumed: after an error the design itself stays
    guided: float = 0.50  # assumed: shown a speedup, it changes the decision that holds the kernel back most
    copied_mistake: float = 0.70  # assumed: a mistake of the kernel shown stays in where the prompt tells of no failure

    # The trace's manner. Every length in characters of reasoning.
    fence_every_chars: float = 3_500.0  # derived: 913 public reasoning blocks, 4.9 M characters, 2 812 fence lines
    phrase_every_chars: float = 6_500.0  # derived, same blocks: 1 490 phrases, less those that announce a fence
    reversal: float = 0.20  # assumed: a decision is first taken otherwise, then withdrawn
    late_change: float = 0.20  # assumed: one decision is changed after the kernel was drafted

    def __post_init__(self) -> None:
        """Refuse what is not a probability, and lengths and odds that are not positive."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _POSITIVE:
                if not value > 0:
                    raise ValueError(f"{item.name} must be positive")
            elif not 0 <= value <= 1:
                raise ValueError(f"{item.name} must lie in [0, 1]")
        if self.compile_share + self.runtime_share + self.numeric_share > 1:
            raise ValueError("the shares of failures exceed 1")
        if self.layout_shift > self.compile_share:
            raise ValueError("layout_shift exceeds compile_share")

    def main_valid(self, *, easy: bool, repairing: bool = False) -> float:
        """P(valid) of a main generation's kernel. ``repairing``: the prompt shows what failed."""
        repair = self.repair_odds if repairing else 1.0
        return scale_odds(self.valid_easy if easy else self.valid_hard, self.success * repair)

    def fork_valid(self, *, easy: bool, committed_share: float, repairing: bool = False) -> float:
        """P(valid) of a fork whose prefix commits that share of the decisions (Table 2, Figure 6)."""
        reached = min(1.0, committed_share / self.share_needed) if self.share_needed > 0 else 1.0
        floor = scale_odds(self.valid_without_prefix, self.success)
        return floor + (self.main_valid(easy=easy, repairing=repairing) - floor) * reached


GLM = Rates()
DEEPSEEK = Rates(
    trace_tokens_mean=20_200.0,  # derived: 522.6 s (§3.1) at the rate below, less the answer's
    valid_easy=0.652,  # assumed, as above: 0.68 over a chain
    valid_hard=0.232,  # derived: then the mean over the ten tasks is §3.2's 40.7 %
    valid_without_prefix=0.009,  # derived: Table 2, 6 of 10 tasks have a valid one in 100
    compile_share=0.36,  # assumed from §3.2: "more runtime failures"
    runtime_share=0.40,
)
"""DeepSeek-V4-Pro, where the paper tells it from GLM-5.1, whose rates are the defaults."""

TOKENS_PER_S = {"glm-5.1": 33.5, "deepseek-v4-pro": 43.6}
"""Derived. GLM: Table 7's 23 660 tokens a generation in §3.1's 706.9 s. DeepSeek: Table 8's 14 860 tokens and 407 s an
iteration, less 59.0 s of validation and 26.1 % of 26.6 s of profiling."""
RATES = {"glm-5.1": GLM, "deepseek-v4-pro": DEEPSEEK}


def scale_odds(probability: float, factor: float) -> float:
    """The probability whose odds are ``factor`` times those of ``probability``."""
    if probability >= 1:
        return 1.0
    odds = probability / (1 - probability) * factor
    return odds / (1 + odds)
