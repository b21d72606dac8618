"""What the walls cost: the same interpreter started inside and outside them, in turns, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from specgen.evaluation import sandbox

_INNER = [sys.executable, "-I", "-c", "pass"]


@dataclass(frozen=True)
class Cost:
    """Milliseconds a launch, pair by pair."""

    walled_ms: list[float]
    plain_ms: list[float]

    @property
    def difference_ms(self) -> list[float]:
        """Sorted."""
        return sorted(a - b for a, b in zip(self.walled_ms, self.plain_ms, strict=True))


def percentile(values: list[float], share: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(support: Path, pairs: int) -> Cost:
    """Interleaved, each first in every second pair."""
    cost = Cost([], [])
    walls = sandbox.Walls(min(os.sched_getaffinity(0)), "cpu", support)
    for number in range(pairs + 2):
        spent = {}
        for walled in (True, False) if number % 2 else (False, True):
            spent[walled] = _launch(walls if walled else None)
        if number >= 2:
            cost.walled_ms.append(spent[True])
            cost.plain_ms.append(spent[False])
    return cost


def _launch(walls: sandbox.Walls | None) -> float:
    start = time.perf_counter()
    if walls is None:
        subprocess.run(_INNER, env={}, stdin=subprocess.DEVNULL, check=True)
    else:
        with sandbox.filtered(walls, _INNER) as (command, fds):
            subprocess.run(command, env={}, pass_fds=fds, stdin=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1e3
