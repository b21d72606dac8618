"""How much of the host's memory one sandbox holds, whoever is charged for it.

Resident memory alone is not it: files on a tmpfs, inodes, page tables and the buffers of sockets are the kernel's, and
a candidate can fill a host with any of them. What a sandbox cannot make at all (memory files, System V memory) is
refused by :mod:`specgen.evaluation.seccomp`. Not here: the limit, and what happens beyond it
(:mod:`specgen.evaluation.supervisor`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from specgen.evaluation import processes
from specgen.evaluation.sandbox import WRITABLE

_INODE = 8192  # a file's inode and name are 1 KiB of kernel memory, and a million of them take seconds to remove
_SOCKET = {"UNIX": 416 << 10, "UNIX-STREAM": 416 << 10, "TCP": 4 << 20, "TCPv6": 4 << 20}  # buffers, at most
_OTHER_SOCKET = 416 << 10


def exceeds(root: int, limit_bytes: int) -> tuple[bool, int]:
    """Whether a sandbox holds more than its limit, and the bytes found. Forked processes share most of their pages:
    looked at closely only where counting them in full is too much."""
    held = held_bytes(root)
    if held > limit_bytes:
        held = held_bytes(root, shared=True)
    return held > limit_bytes, held


def held_bytes(root: int, *, shared: bool = False) -> int:
    """Of all processes below ``root`` (a bubblewrap, or the process itself without walls), and of their sandbox."""
    inside = processes.descendants(root)
    resident = sum(processes.memory_bytes(pid, shared=shared) for pid in (*inside, root))
    return resident + (_tmpfs(inside[-1]) + _sockets(inside[-1]) if inside else 0)


def _tmpfs(pid: int) -> int:
    """Pages and inodes of the sandbox's own file systems; 0 where ``pid`` still sees the host's."""
    total = 0
    for place, size in WRITABLE.items():
        with contextlib.suppress(OSError):
            found = os.statvfs(f"/proc/{pid}/root{place}")
            if found.f_blocks * found.f_frsize == size:
                total += (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _INODE
    return total


def _sockets(pid: int) -> int:
    """What the sockets of a network namespace may hold; 0 where that is the host's."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            return 0
        rows = [line.split() for line in Path(f"/proc/{pid}/net/protocols").read_text().splitlines()[1:]]
        return sum(int(row[2]) * _SOCKET.get(row[0], _OTHER_SOCKET) for row in rows)
    return 0
