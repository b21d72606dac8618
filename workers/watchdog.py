"""Connected, but no longer consuming: seen from the queues, not from the worker's own idea of itself.

A device that is idle although requests it could serve wait, for half a minute, is told its role again over a fresh
connection; if that does not help within as long again, its process ends so that whoever supervises it starts another.
Pure: the clock and what is seen come as arguments. Not here: the resetting (`workers.device`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

AFTER_S = 30.0  # SPECGEN_WATCHDOG_S


@dataclass
class Watchdog:
    """Call `look` with every heartbeat."""

    after_s: float = AFTER_S
    _since: float | None = None
    _reset: bool = False

    def look(self, now: float, *, starves: bool) -> Literal["fine", "reset", "end"]:
        """``starves``: idle at this moment although requests wait. ``now`` in monotonic seconds."""
        if not starves:
            self._since, self._reset = None, False
            return "fine"
        if self._since is None:
            self._since = now
        if now - self._since < self.after_s:
            return "fine"
        self._since = now
        if self._reset:
            return "end"
        self._reset = True
        return "reset"


def waiting(lengths: Mapping[str, str], queues: Collection[str], labels: Collection[str]) -> int:
    """Requests that a device of these labels could serve from these queues; ``lengths`` by ``<queue>:<label>``."""
    return sum(int(lengths.get(f"{queue}:{label}", 0)) for queue in queues for label in labels)
