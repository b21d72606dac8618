"""Search algorithms by name: built in, by entry point (group ``specgen.search``), or ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from specgen.errors import SettingsError
from specgen.search.alphaevolve import AlphaEvolve
from specgen.search.base import SearchAlgorithm
from specgen.search.best_of_n import BestOfN
from specgen.search.cudaforge import CudaForge
from specgen.search.kernelagent import KernelAgent
from specgen.search.refine import Refine

GROUP = "specgen.search"
METHODS = ("select", "compose", "update", "dump", "load")
BUILT_IN: dict[str, Callable[[], SearchAlgorithm]] = {
    "best_of_n": BestOfN,
    "refine": Refine,
    "cudaforge": CudaForge,
    "kernelagent": KernelAgent,
    "alphaevolve": AlphaEvolve,
}


def names() -> tuple[str, ...]:
    """Those that need no ``module:Class``, sorted."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def resolve(name: str) -> SearchAlgorithm:
    """A fresh algorithm for one job. Raises SettingsError: unknown name, module that does not load, wrong class."""
    algorithm = _factory(name)
    try:
        made = algorithm()
    except TypeError as exc:
        raise SettingsError(
            f"search algorithm {name!r} cannot be made: {exc}", "it is called without arguments"
        ) from exc
    lacking = [method for method in METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise SettingsError(f"search algorithm {name!r} lacks {', '.join(lacking)}", "see docs/search.md")
    return made


def check_lanes(name: str, lanes: int) -> None:
    """Raises SettingsError where the algorithm does not let so many iterations run side by side."""
    most = int(getattr(resolve(name), "max_lanes", 1))
    if lanes > most:
        raise SettingsError(
            f"search {name!r} runs at most {most} iterations at a time, not {lanes}", "see docs/search.md"
        )


def _factory(name: str) -> Callable[[], SearchAlgorithm]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _loaded(name, point.module, point.attr)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SettingsError(
            f"no search algorithm is called {name!r}", f"one of {', '.join(names())}, or your own as module:Class"
        )
    return _loaded(name, module, attribute)


def _loaded(name: str, module: str, attribute: str) -> Callable[[], SearchAlgorithm]:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SettingsError(f"search algorithm {name!r} cannot be loaded: {exc}", "is it on PYTHONPATH?") from exc
    if not callable(found):
        raise SettingsError(f"search algorithm {name!r} is not a class", "see docs/search.md")
    return cast("Callable[[], SearchAlgorithm]", found)
