"""When a speculative kernel ends the reasoning (§6.1.2, Algorithm 1 lines 15–21, Table 9). Pure.

A criterion sees the speedup s of a kernel that was just profiled and the history H before it (H starts with 0), and
says whether the iteration ends. The user's own is any callable of that shape, named ``module:callable`` or by an entry
point of the group ``specgen.termination``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from statistics import fmean

from specgen.errors import SettingsError

GROUP = "specgen.termination"
Criterion = Callable[[float, Sequence[float]], bool]


@dataclass(frozen=True)
class Threshold:
    """The criterion s > τ(H)."""

    tau: Callable[[Sequence[float]], float]

    def __call__(self, speedup: float, history: Sequence[float]) -> bool:
        """Whether the iteration ends."""
        return speedup > self.tau(history)


BUILT_IN: dict[str, Criterion] = {
    "first_valid": Threshold(lambda _: 0.0),
    "historical_mean": Threshold(fmean),  # the paper's default
    "historical_best": Threshold(max),
    "never": Threshold(lambda _: math.inf),  # the reasoning always runs to its end
}


def resolve(name: str) -> Criterion:
    """A built-in by name, or the user's: an entry point, or ``module:callable``. Raises SettingsError with the list of
    names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return resolve(point.value)
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise SettingsError(
            f"no termination criterion is called {name!r}",
            f"one of {', '.join((*BUILT_IN, *entry_points(group=GROUP).names))}, or your own as module:callable",
        )
    try:
        criterion = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as exc:
        raise SettingsError(
            f"termination criterion {name!r} cannot be loaded: {exc}", "is the module on PYTHONPATH?"
        ) from exc
    if not callable(criterion):
        raise SettingsError(f"criterion {name!r} is not callable", "it takes (speedup, history) -> bool")
    return criterion  # type: ignore[no-any-return]
