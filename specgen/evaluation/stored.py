"""Build products that this host keeps of a candidate for its next sandbox, and who is making them now.

One tar a candidate, packed and unpacked inside its own sandboxes only (:mod:`specgen.evaluation.archive`), moved into
place by the judge, whole or not at all. Its name is the hash of the source that was run: a candidate can write no entry
but its own. A claim is a lock on one byte of a file beside the entries, at the place that the entry's name gives, so
the kernel frees it with its process and no file is left behind. Not here: what is built (`specgen.evaluation.build`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

from specgen.types import source_id

_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid (0 for locks of an open file)


def entry(cache_root: Path, source: str) -> Path:
    """Where the products of this source lie, if there are any."""
    return cache_root / "candidates" / source_id(source) / "build.tar"


def put(target: Path, data: bytes) -> None:
    """Make an entry, or replace it. Raises OSError; a reader sees the old one or the new one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(f".{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sweep(target: Path) -> None:
    """Remove what killed judges left half-written beside an entry. For who holds its claim alone."""
    with contextlib.suppress(OSError):
        for left in target.parent.glob("build.*"):
            if left != target:
                left.unlink(missing_ok=True)


class Claim:
    """A lock on one entry: alone for a build ahead of its turn, shared for evaluations, of which any number may run."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def alone(cls, target: Path) -> Claim | None:
        """None where the candidate is being built or evaluated on this host. Raises OSError."""
        return cls._take(target, fcntl.F_WRLCK)

    @classmethod
    def shared(cls, target: Path) -> Claim | None:
        """None where it is being built ahead. Raises OSError."""
        return cls._take(target, fcntl.F_RDLCK)

    @classmethod
    def _take(cls, target: Path, kind: int) -> Claim | None:
        folder = target.parent.parent
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "claims", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        place = int(target.parent.name[:15], 16)  # 60 bits
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def release(self) -> None:
        """Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
