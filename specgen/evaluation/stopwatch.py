"""How long one forward takes on a device, and memory that shows what was not written. Used on both sides.

A CPU device is one pinned core and one process: a run's time is the CPU time that its process spent in it. A GPU's
time is that between two events on the stream the work ran on; the level-2 cache is flushed before, outside the
window, and work on other streams that ends later counts. Everything a stopwatch calls is taken when it is made: what
a candidate patches afterwards is not used. Not here: whose word is believed (:mod:`specgen.evaluation.timing`).
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt: when memory goes back to the kernel
_KEPT_BYTES = 1 << 30
_MAPPED_BYTES = 32 << 20  # glibc takes no more; larger blocks are mapped anew each time, on both sides
_M_PERTURB = -6  # mallopt: fill what malloc gives out and what free takes back
_POISON = 1  # allocated bytes become 0xFE: floats of -1.7e38, never a plausible output
_POISON_BYTE = 0xFE
_FLUSH_BYTES = 256 << 20  # several times the largest level-2 cache; clearing it also hides the launches that follow
_HIDDEN_NS = 100_000  # between the end on this stream and on all: what asking costs


class Stopwatch(Protocol):
    """One device's."""

    def time(self, forward: Callable[[], Any]) -> tuple[Any, int]:
        """What ``forward`` returns, and the nanoseconds it took."""

    def burst(self, forward: Callable[[], Any], runs: int) -> None:
        """Several forwards in a row, to their very end: for a clock outside."""

    def finish(self) -> None:
        """Wait for everything that was asked of the device. Raises what went wrong on it."""

    def poisoned(self, nbytes: int) -> contextlib.AbstractContextManager[None]:
        """Inside, new memory (of about ``nbytes`` and of smaller sizes) holds no plausible numbers."""


class CpuStopwatch:
    """By this process's CPU clock.

    Making one makes this process keep the memory it frees, as torch does with a GPU's: else a forward's time is that
    of page faults, and glibc's moving thresholds give judge and candidate different numbers of them.
    """

    def __init__(self) -> None:
        self._clock = time.process_time_ns
        self._mallopt = ctypes.CDLL(None).mallopt
        self._mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        self._mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        self._warm = torch.zeros(16).add_

    def time(self, forward: Callable[[], Any]) -> tuple[Any, int]:
        """See :class:`Stopwatch`. What called last (a message, a comparison) has put interpreter and torch out of the
        core's caches, in one process more than in the other: three small operators bring them back first."""
        for _ in range(3):
            self._warm(1)
        start = self._clock()
        result = forward()
        return result, self._clock() - start

    def burst(self, forward: Callable[[], Any], runs: int) -> None:
        """See :class:`Stopwatch`."""
        for _ in range(runs):
            forward()

    def finish(self) -> None:
        """Nothing is ever under way."""

    @contextlib.contextmanager
    def poisoned(self, nbytes: int) -> Iterator[None]:
        """glibc fills what it gives out."""
        del nbytes
        self._mallopt(_M_PERTURB, _POISON)
        try:
            yield
        finally:
            self._mallopt(_M_PERTURB, 0)


class CudaStopwatch:
    """By events. Takes 256 MiB of the device's memory."""

    def __init__(self) -> None:
        event: Any = torch._C._CudaEventBase
        self._record, self._wait, self._elapsed = event.record, event.synchronize, event.elapsed_time
        self._synchronize = torch._C._cuda_synchronize
        self._reset = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
        made: Any = torch.cuda.Event
        self._begin, self._end, self._late = (made(enable_timing=True) for _ in range(3))
        self._stream = torch.cuda.default_stream()
        self._trash = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._zero = self._trash.zero_

    def time(self, forward: Callable[[], Any]) -> tuple[Any, int]:
        """See :class:`Stopwatch`."""
        self._reset()
        self._zero()
        self._record(self._begin, self._stream)
        result = forward()
        self._record(self._end, self._stream)
        self._wait(self._end)
        self._synchronize()
        self._record(self._late, self._stream)
        self._wait(self._late)
        spent = int(1e6 * self._elapsed(self._begin, self._end))
        late = int(1e6 * self._elapsed(self._begin, self._late))
        return result, spent if late - spent <= _HIDDEN_NS + spent // 10 else late

    def burst(self, forward: Callable[[], Any], runs: int) -> None:
        """See :class:`Stopwatch`. Each with a cold cache, as in `time`."""
        for _ in range(runs):
            self._zero()
            forward()
        self._synchronize()

    def finish(self) -> None:
        """See :class:`Stopwatch`."""
        self._synchronize()

    @contextlib.contextmanager
    def poisoned(self, nbytes: int) -> Iterator[None]:
        """torch gives out again what it took back: blocks of all sizes are filled and given back."""
        large = max(32 << 20, 2 * nbytes)
        sizes = [large, large, *[4 << 20] * 8, *[512 << 10] * 16, *[8 << 10] * 64]
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            blocks = [torch.full((size,), _POISON_BYTE, dtype=torch.uint8, device="cuda") for size in sizes]
            self._synchronize()
            del blocks
        yield


def stopwatch(backend: str) -> Stopwatch:
    """The backend's."""
    return CudaStopwatch() if backend == "cuda" else CpuStopwatch()
