"""What a device can do at most: copy bandwidth by working set, and matrix-product arithmetic, measured once.

As runs are timed: by the CPU clock, or by a GPU's events. The bandwidth is that of the best of many copies: of the
same working set and hot on a CPU, of more than the cache holds on a GPU. Nothing on the device moves those bytes much
faster, which is what the ``faster_than_memory`` rule rests on. Cached in ``<cache_root>/ceilings``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

from specgen.evaluation.floors import usable_gflop_s
from specgen.evaluation.stopwatch import stopwatch

_SMALLEST = 14  # 16 KiB
_LARGEST = 27  # 128 MiB


def _best_s(call: Callable[[], object], budget_s: float) -> float:
    call()
    best = float("inf")
    end = time.process_time() + budget_s
    while time.process_time() < end or best == float("inf"):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def _size_class(nbytes: int) -> int:
    return min(_LARGEST, max(_SMALLEST, nbytes.bit_length()))


def _copy_at(size_class: int) -> float:
    count = (1 << size_class) // 8  # float32: half of the working set is read, half is written
    source, target = torch.ones(count), torch.empty(count)
    return 8 * count / _best_s(lambda: target.copy_(source), 0.02) / 1e9


def copy_gb_s(nbytes: int) -> float:
    """The bandwidth of a hot copy of about ``nbytes``, measured now."""
    return _copy_at(_size_class(nbytes))


def _gpu_best_s(call: Callable[[], object]) -> float:
    watch = stopwatch("cuda")
    call()
    return min(watch.time(call)[1] for _ in range(10)) / 1e9


def _gpu_copy_gb_s() -> float:
    source = torch.ones(1 << 28, device="cuda")  # 1 GiB there, 1 GiB back
    target = torch.empty_like(source)
    return 2 * source.nbytes / _gpu_best_s(lambda: target.copy_(source)) / 1e9


def _gpu_gflop_s(dtype: torch.dtype = torch.float32) -> float:
    a, b = (torch.rand(8192, 8192, device="cuda").to(dtype) for _ in range(2))
    c = torch.empty_like(a)
    return 2 * 8192**3 / _gpu_best_s(lambda: torch.mm(a, b, out=c)) / 1e9


def _gflop_s(dtype: torch.dtype = torch.float32) -> float:
    a, b = (torch.rand(768, 768).to(dtype) for _ in range(2))
    c = torch.empty_like(a)
    return 2 * 768**3 / _best_s(lambda: torch.mm(a, b, out=c), 0.06) / 1e9


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
        if self._backend == "cuda":
            return self._get("copy", _gpu_copy_gb_s)
        size_class = _size_class(nbytes)
        return self._get(f"copy_2^{size_class}", lambda: _copy_at(size_class))

    def gflop_s(self) -> float:
        """Fp32 matrix products, as torch does them by default."""
        return self._get("mm", _gpu_gflop_s if self._backend == "cuda" else _gflop_s)

    def usable_gflop_s(self, tolerance: float) -> float:
        """The fastest products that meet a tolerance: bfloat16 ones, or several of them in place of fp32."""
        measure = _gpu_gflop_s if self._backend == "cuda" else _gflop_s
        return usable_gflop_s(self._get("mm_bf16", lambda: measure(torch.bfloat16)), self.gflop_s(), tolerance)

    def _get(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self._known:
            self._known[name] = measure()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(self._known))
            draft.replace(self._path)
        return self._known[name]
