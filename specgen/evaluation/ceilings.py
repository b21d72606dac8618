"""What a device was once measured to do at most, kept in ``<cache_root>/ceilings``.

Not here: measuring (:mod:`specgen.evaluation.machines`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

from specgen.evaluation.floors import usable_gflop_s
from specgen.evaluation.machines import copy_gb_s, products_gflop_s, size_class


class Ceilings:
    """The measured limits of one device; measure inside a timed window, pinned, with one thread."""

    def __init__(self, cache_root: Path, device: str, backend: str = "cpu") -> None:
        self._backend = backend
        safe = re.sub(r"[^A-Za-z0-9.-]", "_", f"{device}-torch{torch.__version__}")
        self._path = cache_root / "ceilings" / f"{safe}.json"
        self._known: dict[str, float] = {}
        try:
            stored = json.loads(self._path.read_text())
            self._known = {str(key): float(value) for key, value in stored.items()}
        except (OSError, ValueError, AttributeError):
            self._known = {}  # not measured yet, or not readable: measured again

    def gb_s(self, nbytes: int) -> float:
        """Bytes per nanosecond of a copy whose reads and writes together are about ``nbytes`` (a GPU's best)."""
        name = "copy" if self._backend == "cuda" else f"copy_2^{size_class(nbytes)}"
        return self._get(name, lambda: copy_gb_s(self._backend, nbytes))

    def gflop_s(self) -> float:
        """Fp32 matrix products, as torch does them by default."""
        return self._get("mm", lambda: products_gflop_s(self._backend))

    def usable_gflop_s(self, tolerance: float) -> float:
        """The fastest products that meet a tolerance: bfloat16 ones, or several of them in place of fp32."""
        bf16 = self._get("mm_bf16", lambda: products_gflop_s(self._backend, torch.bfloat16))
        return usable_gflop_s(bf16, self.gflop_s(), tolerance)

    def _get(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self._known:
            self._known[name] = measure()
            with contextlib.suppress(OSError):  # a full or read-only cache: measured again by the next judge
                self._store()
        return self._known[name]

    def _store(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_text(json.dumps(self._known))
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
