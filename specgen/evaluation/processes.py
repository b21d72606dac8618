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


def memory_bytes(pid: int, *, shared: bool = False) -> int:
    """Resident and swapped memory, and the page tables. With ``shared`` a page that several processes map counts for
    each in part only, which takes milliseconds to find out."""
    tables = _sum_kb(f"/proc/{pid}/status", ("VmPTE:",) if shared else ("VmPTE:", "VmRSS:", "VmSwap:"))
    return tables + (_sum_kb(f"/proc/{pid}/smaps_rollup", ("Pss:", "SwapPss:")) if shared else 0)


def _sum_kb(path: str, names: tuple[str, ...]) -> int:
    total = 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(names):
                total += int(line.split()[1]) * 1024
    return total


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, with the kernel's nanosecond clock; raises OSError when it is gone."""
    return time.clock_gettime((~pid << 3) | 2)


def waited_s(pid: int) -> float:
    """How long the main thread was ready to run and had no CPU; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def sleeps(pid: int, within_s: float = 0.2) -> int:
    """How often the main thread has gone to sleep by itself so far; waits a little until it sleeps."""
    deadline = time.monotonic() + within_s
    with contextlib.suppress(OSError, IndexError):
        while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "R":
            if time.monotonic() > deadline:
                break
            time.sleep(0.0005)
    return status_field(pid, "voluntary_ctxt_switches") or 0


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


def kill_all(root: int, within_s: float = 5.0) -> bool:
    """Kill everything below ``root``, then ``root``; returns, once none of them runs any more, whether that came true.

    SIGKILL only asks: a process ends some time after the call, and the first one of a pid namespace after all others.
    What is left may be zombies: reaping is their parents' business.
    """
    deadline = time.monotonic() + within_s
    found = descendants(root)
    for pid in (*found, root):
        kill(pid)
    while time.monotonic() < deadline:
        if not any(map(running, (*found, root))):
            return True
        time.sleep(0.002)
    return False


def running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False
