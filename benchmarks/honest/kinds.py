"""What a cheat is here: its kind, its problem, its source, and what is expected to refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specgen.types import Phase, ProblemSpec, Status


class Kind(StrEnum):
    """The seven kinds of speedups that are not true (docs/integrity.md)."""

    NOT_COMPUTED = "outputs that were not computed"
    REMEMBERED = "results remembered"
    UNSEEN_TIME = "time that is not seen"
    UNRUN_CHECKS = "checks that are not run"
    REFERENCE = "the reference used as the answer"
    OTHER_FUNCTION = "a different function"
    IMPOSSIBLE = "impossible numbers"


WRONG = (Status.WRONG_VALUE, Status.NOT_FINITE)
REJECTED = (Status.REJECTED,)


@dataclass(frozen=True)
class Cheat:
    """``rules``: beginnings of rules that may refuse it, where its status is rejected; empty: any rule."""

    name: str
    kind: Kind
    source: str
    statuses: tuple[Status, ...] = REJECTED
    rules: tuple[str, ...] = ()
    problem: str | ProblemSpec = "T4"
    phase: Phase = Phase.VALIDATE
    warmups: int = 10
    timed_runs: int = 40
    quick: bool = False  # of the default test run

    def held(self, status: Status, rule: str) -> bool:
        """Whether this outcome is the expected one."""
        if status not in self.statuses:
            return False
        return status is not Status.REJECTED or not self.rules or rule.split(":")[0] in self.rules
