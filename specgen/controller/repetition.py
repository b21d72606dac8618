"""A reasoning that repeats itself without end: found while it streams, so that it is cut instead of paid for.

Models at low temperature fall into loops: the same paragraph again and again, at most with another number in it. The
end of the trace is looked at now and then; it is a loop where it is periodic (numbers aside) with at least ``TURNS``
repetitions. Pure; cost linear in the trace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TURNS = 6  # repetitions that make a loop
_NUMBER = re.compile(r"\d+")
_LOOKS = 8  # per length of the window


@dataclass
class LoopWatch:
    """Feed it the reasoning. ``window``: characters over which it must repeat itself; 0: never."""

    window: int
    _tail: str = ""
    _length: int = 0
    _looked: int = field(default=0, init=False)

    def feed(self, text: str) -> int | None:
        """Once the end is a loop: the position (characters from the start) at which it begins, roughly; else None."""
        if not self.window:
            return None
        self._length += len(text)
        self._tail = (self._tail + text)[-2 * self.window :]
        if len(self._tail) < self.window or self._length - self._looked < self.window // _LOOKS:
            return None
        self._looked = self._length
        tail = self._tail[-self.window :]
        period = _period(_NUMBER.sub("0", tail))
        return None if period is None else self._length - len(tail)


def _period(text: str) -> int | None:
    """The shortest period that fits ``TURNS`` times into a text that is periodic throughout; None where none is."""
    probe, longest = text[: len(text) // (2 * TURNS)], len(text) // TURNS
    start = text.find(probe, 1)
    while 0 < start <= longest:
        if text.startswith(text[start:]):
            return start
        start = text.find(probe, start + 1)
    return None
