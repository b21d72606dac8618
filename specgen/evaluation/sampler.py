"""Whose code a forward's CPU time is spent in: own kernels, torch's operators, or a library that nobody was told of.

What torch dispatches is seen by :mod:`specgen.evaluation.audit`; a product through numpy, a pointer into a library, or
a thread of C++ is not, but it takes time at addresses that belong to somebody. The kernel's profiling timer interrupts
the process at ticks of its CPU clock (in whichever thread runs), a few lines of C note the address, and the process's
memory map names the file. CPU only; untimed: while that timer runs the CPU clock is coarse. It is built once per host
by the judge's side and informs, like the audit: it runs in the candidate's process.
"""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = "specgen-sampler"  # the name of the memory file it is loaded from; JIT compilers use such files too
SAMPLES = 40  # of one look; at a tick of 4 ms that is 0.16 s
_TICK_US = 1000  # asked for; the kernel's tick is what one gets
_LIMIT_RUNS = 20_000
_SOURCE = Path(__file__).with_name("sampler.c")
_SYSTEM = re.compile(
    r"(libc|libm|libmvec|libstdc\+\+|libgcc_s|libgomp[^/]*|libpthread|ld-linux[^/]*|libdl)[.-][^/]*$|\[v"
)
_PYTHON = re.compile(r"/(python3[^/]*|libpython[^/]*|libtorch_python[^/]*|libffi[^/]*|_C\.cpython[^/]*)$|/lib-dynload/")


def library(cache_root: Path) -> bytes | None:
    """The compiled sampler, made once; None where that does not work."""
    source = _SOURCE.read_bytes()
    target = cache_root / "sampler" / f"{hashlib.sha256(source).hexdigest()[:16]}.so"
    try:
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_suffix(f".{os.getpid()}")
            compiler = next(found for name in ("cc", "gcc", "clang", "g++", "c++") if (found := shutil.which(name)))
            command = [compiler, "-x", "c", "-O1", "-shared", "-fPIC", "-o", str(draft), str(_SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            draft.replace(target)
        return target.read_bytes()
    except (OSError, StopIteration, subprocess.SubprocessError):
        return None


class Sampler:
    """In the candidate's process."""

    def __init__(self, fd: int, own: set[str], glue: str) -> None:
        """``own``: paths of what the candidate built; ``glue``: of the façade's support library."""
        self._library = ctypes.CDLL(f"/proc/self/fd/{fd}")
        self._inside = ctypes.c_int.in_dll(self._library, "inside_operator")
        self._count = ctypes.c_int.in_dll(self._library, "sampled")
        self._own, self._glue = own, glue

    def look(self, forward: Callable[[], Any]) -> tuple[int, dict[str, int]]:
        """Repeat a forward until there are enough samples: how often it ran, and samples by whose code it was."""
        runs = 0
        self._library.sampling_start(_TICK_US)
        try:
            while self._count.value < SAMPLES and runs < _LIMIT_RUNS:
                forward()
                runs += 1
        finally:
            self._library.sampling_stop()
        return runs, self._summed()

    def operator(self, running: bool) -> None:
        """Told by the audit while a torch operator runs."""
        self._inside.value = int(running)

    def _summed(self) -> dict[str, int]:
        total = min(self._count.value, 4096)
        places = (ctypes.c_size_t * 4096).in_dll(self._library, "places")
        inside = (ctypes.c_ubyte * 4096).in_dll(self._library, "inside")
        regions = _regions()
        starts = [start for start, _, _ in regions]
        seen: Counter[str] = Counter()
        for index in range(total):
            at = bisect.bisect_right(starts, places[index]) - 1
            path = regions[at][2] if at >= 0 and places[index] < regions[at][1] else ""
            seen["operator" if inside[index] else self._whose(path)] += 1
        return dict(seen)

    def _whose(self, path: str) -> str:
        if path in self._own:
            return "own"
        if _SYSTEM.search(path):
            return "system"
        if self._glue and path.startswith(self._glue):
            return "glue"  # what own code calls of a tensor: data_ptr and the like
        if _PYTHON.search(path) or f"memfd:{MEMORY}" in path:
            return "python"
        return "foreign"


def _regions() -> list[tuple[int, int, str]]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        low, high = (int(part, 16) for part in words[0].split("-"))
        if "x" in words[1]:
            found.append((low, high, words[5] if len(words) > 5 else ""))
    return sorted(found)
