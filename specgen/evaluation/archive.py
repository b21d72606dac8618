"""A candidate's build products on their way from one sandbox to the next: one tar in a memory file.

Packed and unpacked only inside sandboxes of the same candidate; the host keeps the bytes and never looks inside.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from specgen.evaluation.wire import read_memory_file

_SKIPPED = (".o", ".ii", ".gch", ".pch")


def pack(directory: Path, fd: int, limit: int) -> int:
    """Write a tar of ``directory`` to ``fd``; returns its bytes, 0 where it would exceed ``limit``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.suffix in _SKIPPED:
                continue
            if buffer.tell() + path.stat().st_size > limit:
                return 0
            tar.add(path, arcname=str(path.relative_to(directory)), recursive=False)
    data = buffer.getvalue()
    if len(data) > limit:
        return 0
    os.pwrite(fd, data, 0)
    return len(data)


def unpack(fd: int, directory: Path) -> None:
    """The reverse; modification times are kept, so that nothing is rebuilt."""
    with tarfile.open(fileobj=io.BytesIO(read_memory_file(fd)), mode="r") as tar:
        tar.extractall(directory, filter="data")
