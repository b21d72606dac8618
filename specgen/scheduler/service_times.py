"""How long a device is busy with one request of each phase: what ``pool.split = service_time`` weights queues with.

Learned from the pool's counters (``busy_s:…`` device seconds, ``served:…`` requests taken up). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specgen.scheduler.keys import PROFILE, VALIDATE

HALF_LIFE = 200.0  # requests after which an observation counts half: tasks and candidates change over weeks
ENOUGH = 5  # requests of each phase; before that queues count by their lengths
UNKNOWN = (1, 1)


@dataclass
class _Phase:
    """Decayed sums, and the counters as they were last seen."""

    busy_s: float = 0.0
    served: float = 0.0
    seen_busy_s: float = 0.0
    seen_served: float = 0.0

    def learn(self, busy_s: float, served: float) -> None:
        if busy_s < self.seen_busy_s or served < self.seen_served:  # a wiped Redis counts from 0 again
            self.seen_busy_s = self.seen_served = 0.0
        new = served - self.seen_served
        decay = 0.5 ** (new / HALF_LIFE)
        self.busy_s = self.busy_s * decay + busy_s - self.seen_busy_s
        self.served = self.served * decay + new
        self.seen_busy_s, self.seen_served = busy_s, served


@dataclass
class ServiceTimes:
    """One for each scheduler; a new one starts from the counters' means over all time."""

    _phases: dict[str, _Phase] = field(default_factory=lambda: {VALIDATE: _Phase(), PROFILE: _Phase()})

    def learn(self, counters: Mapping[str, str]) -> tuple[int, int]:
        """Take in the counters as they are now; returns the mean device milliseconds of a validation and a profiling,
        at least 1 each, or (1, 1) while too few were served to tell."""
        for name, phase in self._phases.items():
            phase.learn(float(counters.get(f"busy_s:{name}", 0)), float(counters.get(f"served:{name}", 0)))
        phases = (self._phases[VALIDATE], self._phases[PROFILE])
        if any(phase.served < ENOUGH or phase.busy_s <= 0 for phase in phases):
            return UNKNOWN
        val, prof = (max(1, round(1000 * phase.busy_s / phase.served)) for phase in phases)
        return val, prof
