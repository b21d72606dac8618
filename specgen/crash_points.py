"""Named places at which a process can be made to die: each window of a crash is hit for certain, not by luck.

``SPECGEN_CRASH_POINT=name[:nth]`` kills the process (SIGKILL) at its nth pass through that point; with
``SPECGEN_CRASH_ONCE=<file>`` only the first process that gets there dies, and the file says where. For the fault
benchmark and tests (docs/faults.md lists the points); without the variable a point is a call of an empty function.
"""

from __future__ import annotations

import os
import signal
import threading

_NAME, _, _NTH = os.environ.get("SPECGEN_CRASH_POINT", "").partition(":")
_ONCE = os.environ.get("SPECGEN_CRASH_ONCE", "")
_lock = threading.Lock()
_passes = 0


def _armed(name: str) -> None:
    global _passes
    if name != _NAME:
        return
    with _lock:
        _passes += 1
        if _passes == int(_NTH or 1) and _first():
            os.kill(os.getpid(), signal.SIGKILL)


def _first() -> bool:
    """Whether no process died here before; the file is made by the one that will."""
    if not _ONCE:
        return True
    try:
        with open(_ONCE, "x", encoding="utf-8") as marker:
            marker.write(f"{_NAME} {os.getpid()}\n")
    except FileExistsError:
        return False
    return True


def _unarmed(name: str) -> None:
    """Nobody asked for a crash."""


crash_point = _armed if _NAME else _unarmed
