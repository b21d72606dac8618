"""Puts the evaluator's builds in place of torch's, inside the candidate's process.

The route never decides: where the façade refuses or its library does not load, the stock route is built, and its
outcome and its words stand. Not here: how each route builds.
"""

from __future__ import annotations

import inspect
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from specgen.evaluation.build import facade, stock
from specgen.evaluation.build.cache import BuildCache, Entry
from specgen.evaluation.build.errors import FacadeRefused
from specgen.evaluation.build.log import Build, BuildLog
from specgen.evaluation.build.request import BuildRequest, from_load, from_load_inline
from specgen.evaluation.build.support import Support, facade_hash, import_library
from specgen.evaluation.build.toolchain import Deadline, cpu_name, cxx, version_of


def install(
    cache_dir: Path, *, mode: Literal["auto", "stock"], support: Path | None, timeout_s: float | None = None
) -> BuildLog:
    """Replace ``load_inline`` and ``load`` for everything that runs in this process from now on.

    ``cache_dir`` is private to the candidate; ``support`` is what :func:`ensure_support` returned (None: stock only);
    ``timeout_s`` limits each build. The replaced functions raise BuildFailed, BuildTimeout or CompilerKilled, and
    ImportError where the library does not load. The returned log fills as the candidate builds.
    """
    from torch.utils import cpp_extension

    usable = Support(support) if mode == "auto" and support is not None else None
    builder = Builder(BuildCache(cache_dir), usable, timeout_s)
    for name, read in (("load_inline", from_load_inline), ("load", from_load)):
        original = getattr(cpp_extension, name)
        original = getattr(original, "__wrapped__", original)  # installed twice: the later one counts
        setattr(cpp_extension, name, builder.replacement(original, read))
    return builder.log


@dataclass
class Builder:
    """Builds requests of one candidate, one at a time."""

    cache: BuildCache
    support: Support | None
    timeout_s: float | None
    log: BuildLog = field(default_factory=BuildLog)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def replacement(
        self, original: Callable[..., Any], read: Callable[[Mapping[str, Any]], BuildRequest]
    ) -> Callable[..., Any]:
        """A function with the signature of torch's own."""
        signature = inspect.signature(original)

        def replaced(*args: Any, **kwargs: Any) -> ModuleType | str:
            request = read(signature.bind(*args, **kwargs).arguments)
            with self.lock:
                return self.build(request, original)

        replaced.__name__ = replaced.__qualname__ = original.__name__
        replaced.__doc__ = original.__doc__
        replaced.__wrapped__ = original  # type: ignore[attr-defined]
        return replaced

    def build(self, request: BuildRequest, original: Callable[..., Any]) -> ModuleType | str:
        """From the cache, by the façade, or by stock; loaded and logged. The errors are those of ``install``."""
        started = time.monotonic()
        key = request.key(_surroundings(request, self.support))
        attempt = _Attempt(self, request, original, key, Deadline.after(self.timeout_s))
        try:
            module = attempt.cached() or attempt.by_facade() or attempt.by_stock()
        except Exception as error:
            self._note(attempt, started, error=str(error))
            raise
        self._note(attempt, started)
        return module

    def _note(self, attempt: _Attempt, started: float, error: str = "") -> None:
        self.log.builds.append(
            Build(
                name=attempt.request.name,
                route="cached" if attempt.from_cache else attempt.made_by,
                made_by=attempt.made_by,
                seconds=time.monotonic() - started,
                output=attempt.output,
                fallback=attempt.fallback,
                library=attempt.library,
                error=error,
            )
        )


@dataclass
class _Attempt:
    """One build on its way through the routes."""

    builder: Builder
    request: BuildRequest
    original: Callable[..., Any]
    key: str
    deadline: Deadline
    made_by: Literal["facade", "stock"] = "stock"
    from_cache: bool = False
    output: str = ""
    fallback: str = ""
    library: Path | None = None

    def cached(self) -> ModuleType | str | None:
        found = self.builder.cache.find(self.key)
        if found is None:
            return None
        entry, library = found
        self.from_cache, self.made_by = True, entry.made_by
        self.fallback, self.output = entry.fallback, entry.output
        return self._load(library)

    def by_facade(self) -> ModuleType | str | None:
        """None where the stock route must decide."""
        support = self.builder.support
        if support is None:
            return None
        if not support.fits():
            self.fallback = "the support library is of another torch, compiler or façade"
            return None
        scratch = self.builder.cache.scratch()
        try:
            compiled = facade.build(self.request, scratch, support, self.deadline)
        except FacadeRefused as refused:
            shutil.rmtree(scratch, ignore_errors=True)
            self.fallback, self.output = refused.reason, refused.output
            return None
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        self.made_by, self.output = "facade", compiled.output
        library = self._keep(scratch, compiled.library)
        try:
            return self._load(library)
        except ImportError as error:  # stock decides whether that is the candidate's fault
            shutil.rmtree(library.parent, ignore_errors=True)
            self.made_by, self.library = "stock", None
            self.fallback = f"it does not load with the façade: {error}"
            return None

    def by_stock(self) -> ModuleType | str:
        scratch = self.builder.cache.scratch()
        try:
            compiled = stock.build(self.request, scratch, self.original, self.deadline, self._suspect())
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        self.made_by, self.output = "stock", compiled.output
        return self._load(self._keep(scratch, compiled.library))

    def _suspect(self) -> stock.Suspect | None:
        """Only what the façade tried to compile: what it refused beforehand is most likely right."""
        support = self.builder.support
        if support is None or self.fallback != facade.DOES_NOT_COMPILE:
            return None
        return stock.Suspect(support.stock_header, self.output)

    def _keep(self, scratch: Path, library: Path) -> Path:
        entry = Entry(self.made_by, str(library.relative_to(scratch)), self.fallback, self.output)
        return self.builder.cache.keep(self.key, scratch, entry)

    def _load(self, library: Path) -> ModuleType | str:
        if self.builder.support is not None and self.made_by == "facade":
            self.builder.support.load()
        self.library = library
        if not self.request.arguments.get("is_python_module", True):
            import torch

            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            return str(library)
        return import_library(self.request.name, library)


def _surroundings(request: BuildRequest, support: Support | None) -> dict[str, str]:
    """What the library depends on besides the request."""
    import torch

    parts = {
        "torch": torch.__version__,
        "compiler": version_of(cxx()),
        "cpu": cpu_name(),
        "facade": f"{support.manifest['key']} {facade_hash()}" if support else "",
    }
    if request.uses_cuda:
        parts["cuda"] = str(torch.version.cuda)
        parts["arch"] = os.environ.get("TORCH_CUDA_ARCH_LIST", "") or _visible_architectures()
    return parts


def _visible_architectures() -> str:
    import torch

    return " ".join(str(torch.cuda.get_device_capability(index)) for index in range(torch.cuda.device_count()))
