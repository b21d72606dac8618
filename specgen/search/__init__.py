"""Search algorithms: A in Algorithm 1. The interface is `base`, the names are `registry`."""

from specgen.search.base import (
    STOP,
    WAIT,
    Context,
    Evaluated,
    History,
    IterationResult,
    SearchAlgorithm,
    Step,
    Verdict,
    rng_for,
)
from specgen.search.registry import check_lanes, names, resolve

__all__ = [
    "STOP",
    "WAIT",
    "Context",
    "Evaluated",
    "History",
    "IterationResult",
    "SearchAlgorithm",
    "Step",
    "Verdict",
    "check_lanes",
    "names",
    "resolve",
    "rng_for",
]
