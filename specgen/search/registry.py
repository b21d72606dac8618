"""Search algorithms by name: built in, by entry point (group ``specgen.search``), or ``module:Class``."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, cast

from specgen.errors import SettingsError
from specgen.search.alphaevolve import AlphaEvolve, Evolution
from specgen.search.base import SearchAlgorithm
from specgen.search.best_of_n import BestOfN
from specgen.search.cudaforge import CudaForge
from specgen.search.kernelagent import Beam, KernelAgent
from specgen.search.refine import Refine
from specgen.types import Json

GROUP = "specgen.search"
METHODS = ("select", "compose", "update", "dump", "load")
OPTIONS = re.compile(r"([^()]+)\((.*)\)", re.DOTALL)


def _kernelagent(**options: Any) -> SearchAlgorithm:
    return KernelAgent(Beam(**options))


def _alphaevolve(**options: Any) -> SearchAlgorithm:
    return AlphaEvolve(Evolution(**options))


BUILT_IN: dict[str, Callable[..., SearchAlgorithm]] = {
    "best_of_n": BestOfN,
    "refine": Refine,
    "cudaforge": CudaForge,
    "kernelagent": _kernelagent,
    "alphaevolve": _alphaevolve,
}


def names() -> tuple[str, ...]:
    """Those that need no ``module:Class``, sorted."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def resolve(name: str) -> SearchAlgorithm:
    """A fresh algorithm for one job: a name, perhaps with options, as in ``alphaevolve(diffs=True)``. Raises
    SettingsError: unknown name or option, module that does not load, wrong class."""
    name, options = _options(name)
    algorithm = _factory(name)
    try:
        made = algorithm(**options)
    except TypeError as exc:
        told = str(exc).partition("() ")[2] or str(exc)
        raise SettingsError(
            f"search algorithm {name!r} cannot be made: {told}", _choices(algorithm) or "it is called without arguments"
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


def _options(name: str) -> tuple[str, dict[str, Json]]:
    """``name(key=value, …)``, its values as Python writes numbers, strings, True and False."""
    found = OPTIONS.fullmatch(name.strip())
    if found is None:
        return name.strip(), {}
    try:
        call = ast.parse(f"f({found[2]})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("options have names")
        return found[1].strip(), {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as exc:
        raise SettingsError(
            f"search {name!r}: its options cannot be read: {exc}", "such as alphaevolve(islands=3, diffs=True)"
        ) from exc


def _choices(algorithm: Callable[..., SearchAlgorithm]) -> str:
    """The options it has, in words."""
    shapes: dict[object, object] = {_kernelagent: Beam, _alphaevolve: Evolution}
    try:
        names = inspect.signature(cast("Callable[..., object]", shapes.get(algorithm, algorithm))).parameters
    except (TypeError, ValueError):
        return ""
    return f"options: {', '.join(names)}" if names else ""


def _factory(name: str) -> Callable[..., SearchAlgorithm]:
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


def _loaded(name: str, module: str, attribute: str) -> Callable[..., SearchAlgorithm]:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SettingsError(f"search algorithm {name!r} cannot be loaded: {exc}", "is it on PYTHONPATH?") from exc
    if not callable(found):
        raise SettingsError(f"search algorithm {name!r} is not a class", "see docs/search.md")
    return cast("Callable[..., SearchAlgorithm]", found)
