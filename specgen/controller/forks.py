"""How many forks a trigger may launch now (§6.1.1; the brake is docs/policy.md's). Pure: the clock is an argument.

The paper launches K = max(1, min(C.val, C.prof)) at every trigger; C is the pool's business (`Pool.claim`). What is
decided here is how much of that K this iteration may ask for: nothing too close to the last launch, nothing while too
many of its forks are unanswered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specgen.settings import ForkPolicy
from specgen.types import TriggerClass


@dataclass
class ForkGate:
    """The brake of one iteration. ``outstanding`` counts forks that generate, wait for a device or run on one."""

    policy: ForkPolicy
    outstanding: int = 0
    last_position: int | None = field(default=None)  # characters of the trace at the last launch
    idle_since: float | None = field(default=None)  # monotonic seconds

    def room(self, kind: TriggerClass, position: int) -> int:
        """The largest K that a trigger at ``position`` characters may ask for; 0: it launches nothing."""
        if kind is not TriggerClass.IDLE:
            if kind.value not in self.policy.classes:
                return 0
            if self.last_position is not None and position - self.last_position < self.policy.spacing_chars:
                return 0
        elif position == self.last_position:
            return 0  # the same prefix again would only repeat the last forks
        if position < self.policy.min_prefix_chars:
            return 0
        return max(0, min(self.policy.max_k, self.policy.outstanding - self.outstanding))

    def launched(self, count: int, position: int) -> None:
        """``count`` forks were launched at ``position``."""
        if count:
            self.outstanding += count
            self.last_position = position

    def answered(self) -> None:
        """One fork has its final outcome, or gave no kernel."""
        self.outstanding -= 1

    def idle(self, free_devices: int, now: float) -> bool:
        """True once a device has been free for ``idle_after_s`` with no fork on its account (a generating fork's
        claim counts against ``free_devices``). Restarts the clock when it fires."""
        if free_devices <= 0:
            self.idle_since = None
            return False
        if self.idle_since is None:
            self.idle_since = now
        if now - self.idle_since < self.policy.idle_after_s:
            return False
        self.idle_since = now
        return True
