"""Which support directories stay: this one, the most recently used other, and whatever a living process uses.

Each is over a gigabyte, and every new torch, compiler or façade makes one. A process that uses one holds a shared lock
on a file inside it until it ends, and so do its forks: what cannot be locked exclusively is never removed. Not here:
making them (`support`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

IN_USE = "in-use"  # locked while used; its modification time is the last use
BUILDING, _REMOVING = "support-building-", "support-removing-"
_HELD: dict[tuple[int, Path], int] = {}  # by process and directory: the descriptor, open until the process ends


def hold(directory: Path) -> bool:
    """Mark as used by this process for its life. False where it is gone (removed a moment ago)."""
    if (os.getpid(), directory) in _HELD:
        return True
    descriptor = _open(directory / IN_USE)
    if descriptor is None:
        return directory.is_dir()  # nobody may write there, so nobody removes it
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only while somebody is about to rename it
    with contextlib.suppress(OSError):
        os.utime(descriptor)
        if os.path.samestat(os.fstat(descriptor), os.stat(directory / IN_USE)):
            _HELD[os.getpid(), directory] = descriptor
            return True
    os.close(descriptor)
    return False


def collect(cache_root: Path, current: Path) -> list[str]:
    """Remove the rest; returns the names. The caller holds the lock for making one."""
    found = {path for path in cache_root.glob("support-*") if path.is_dir()}
    left = {path for path in found if path.name.startswith((BUILDING, _REMOVING))}  # whoever made it is dead
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    others = list(found - left - {current})
    others.sort(key=_last_use, reverse=True)
    return [path.name for path in others[1:] if _remove(path)]


def _remove(directory: Path) -> bool:
    descriptor = _open(directory / IN_USE)
    if descriptor is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        grave = Path(tempfile.mkdtemp(prefix=_REMOVING, dir=directory.parent))
        os.replace(directory, grave)
    except OSError:  # used, or not ours
        return False
    finally:
        os.close(descriptor)
    shutil.rmtree(grave, ignore_errors=True)
    return True


def _last_use(directory: Path) -> float:
    for path in (directory / IN_USE, directory):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
