"""Facts about processes, read from /proc and by process clocks. Linux only; a process that is gone reads as empty."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """This process gets the signal when its parent thread dies (not inherited by its children)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Orphaned descendants become this process's children, so that it can reap every one of them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(word) for word in (task / "children").read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first."""
    found: list[int] = []
    todo = children(pid)
    while todo:
        current = todo.pop()
        found.append(current)
        todo += children(current)
    return found


def parent(pid: int) -> int:
    """The parent's pid; 0 if the process is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def rss_bytes(pid: int) -> int:
    """Resident memory."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, with the kernel's nanosecond clock; raises OSError when it is gone."""
    return time.clock_gettime((~pid << 3) | 2)


def status_field(pid: int, name: str) -> int | None:
    """A number of /proc/<pid>/status, such as ``VmHWM`` (kB)."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
    return None


def faults(pid: int) -> int | None:
    """Minor page faults so far."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])
    return None


def oom_kills() -> int:
    """How many processes this kernel has killed for memory."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is not an error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
