"""What a candidate asks to be built: the arguments of ``load_inline`` or ``load``, normalised, and their cache key.

Not here: building. The key holds everything that the library depends on: sources, flags, architecture, torch,
compilers, façade.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

# Arguments that change what stock does in ways the façade does not follow; their defaults are the usual.
_STOCK_ONLY_DEFAULTS: dict[str, Any] = {
    "with_sycl": None,
    "sycl_sources": None,
    "extra_sycl_cflags": None,
    "is_python_module": True,
    "is_standalone": False,
    "use_pch": False,
    "no_implicit_headers": False,
}


@dataclass(frozen=True)
class Unit:
    """One translation unit as stock would make it. ``implicit``: torch's headers are included for it."""

    file: str  # the name in messages: cpp_source.cpp, cuda_source.cu, or the path of the candidate's own file
    language: Literal["cpp", "cuda"]
    sources: tuple[str, ...]
    implicit: bool

    @property
    def files(self) -> tuple[str, ...]:
        """A name for each source: the second string of a list is cpp_source_2.cpp."""
        path = Path(self.file)
        more = (f"{path.stem}_{index}{path.suffix}" for index in range(2, len(self.sources) + 1))
        return (self.file, *more)

    @property
    def numbered(self) -> list[str]:
        """The sources, each counting its own lines from 1 under its own name."""
        return [f'#line 1 "{file}"\n{source}' for file, source in zip(self.files, self.sources, strict=True)]

    def write_sources(self, directory: Path) -> None:
        """The sources under those names, where the compiler looks for the lines that it quotes in its messages."""
        if self.implicit:
            for file, source in zip(self.files, self.sources, strict=True):
                (directory / file).write_text(source)


@dataclass(frozen=True)
class BuildRequest:
    """Immutable; ``arguments`` are the original ones, for the stock route."""

    kind: Literal["load_inline", "load"]
    name: str
    units: tuple[Unit, ...]
    bindings: str  # the generated PYBIND11_MODULE, empty where the source has its own
    cflags: tuple[str, ...]
    cuda_cflags: tuple[str, ...]
    ldflags: tuple[str, ...]
    include_paths: tuple[str, ...]
    arguments: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def uses_cuda(self) -> bool:
        """True where a unit needs nvcc, or CUDA was asked for."""
        return bool(self.arguments.get("with_cuda")) or any(unit.language == "cuda" for unit in self.units)

    @property
    def source(self) -> str:
        """All sources, for looking at words."""
        return "\n".join(text for unit in self.units for text in unit.sources)

    @property
    def special(self) -> str:
        """The first argument that only the stock route follows; empty if there is none."""
        for name, default in _STOCK_ONLY_DEFAULTS.items():
            if name in self.arguments and self.arguments[name] != default:
                return name
        return ""

    def key(self, surroundings: Mapping[str, str]) -> str:
        """sha256 (64 hex digits) over the request and what else the library depends on."""
        options = {name: repr(self.arguments[name]) for name in _STOCK_ONLY_DEFAULTS if name in self.arguments}
        described = {
            "units": [asdict(unit) for unit in self.units],
            "rest": [self.kind, self.name, self.bindings, self.cflags, self.cuda_cflags, self.ldflags],
            "include_paths": self.include_paths,
            "with_cuda": repr(self.arguments.get("with_cuda")),
            "options": options,
            "surroundings": dict(surroundings),
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def from_load_inline(arguments: Mapping[str, Any]) -> BuildRequest:
    """From the bound arguments of ``load_inline``. Raises ValueError as torch does for wrong ``functions``."""
    units = [Unit("cpp_source.cpp", "cpp", _texts(arguments["cpp_sources"]), implicit=True)]
    cuda = _texts(arguments.get("cuda_sources"))
    if cuda:
        units.append(Unit("cuda_source.cu", "cuda", cuda, implicit=True))
    bindings = _bindings(arguments.get("functions"), wrap=arguments.get("with_pytorch_error_handling", True))
    return _request("load_inline", units, bindings, arguments)


def from_load(arguments: Mapping[str, Any]) -> BuildRequest:
    """From the bound arguments of ``load``; reads the files. Raises OSError where one cannot be read."""
    given = arguments["sources"]
    paths = [Path(path).resolve() for path in ([given] if isinstance(given, str) else given)]
    units = [
        Unit(str(path), "cuda" if path.suffix in (".cu", ".cuh") else "cpp", (path.read_text(),), implicit=False)
        for path in paths
    ]
    return _request("load", units, "", arguments)


def _request(
    kind: Literal["load_inline", "load"], units: list[Unit], bindings: str, arguments: Mapping[str, Any]
) -> BuildRequest:
    def flags(name: str) -> tuple[str, ...]:
        # Stock writes flags into a shell command, so one string may hold several.
        return tuple(shlex.split(" ".join(arguments.get(name) or ())))

    return BuildRequest(
        kind=kind,
        name=arguments["name"],
        units=tuple(units),
        bindings=bindings,
        cflags=flags("extra_cflags"),
        cuda_cflags=flags("extra_cuda_cflags"),
        ldflags=flags("extra_ldflags"),
        include_paths=tuple(str(path) for path in arguments.get("extra_include_paths") or ()),
        arguments=dict(arguments),
    )


def _texts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def _bindings(functions: object, *, wrap: bool) -> str:
    """The module definition for ``functions=``: one line for each, docstring the name unless a dict gives it."""
    if functions is None:
        return ""
    if isinstance(functions, str):
        functions = [functions]
    if isinstance(functions, list):
        functions = {name: name for name in functions}
    if not isinstance(functions, dict):
        raise ValueError(f"Expected 'functions' to be a list or dict, but was {type(functions)}")
    target = "torch::wrap_pybind_function({})" if wrap else "{}"
    lines = [f'm.def("{name}", {target.format(name)}, "{doc}");' for name, doc in functions.items()]
    return "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}", ""])
