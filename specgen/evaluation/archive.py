"""A candidate's build products on their way from one sandbox to the next: one tar in a memory file.

Packed and unpacked only inside sandboxes of the same candidate; the host keeps the bytes and never looks inside. Its
sha256 goes before it, so that a damaged one is built again and not taken for a candidate that does not load.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

from specgen.evaluation.wire import read_memory_file

_DIGEST = hashlib.sha256().digest_size
_SKIPPED = (".o", ".ii", ".gch", ".pch")


def pack(directory: Path, fd: int, limit: int) -> int:
    """Write sha256 and tar of ``directory`` to ``fd``; returns their bytes, 0 where they would exceed ``limit``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.suffix in _SKIPPED:
                continue
            if buffer.tell() + path.stat().st_size > limit:
                return 0
            tar.add(path, arcname=str(path.relative_to(directory)), recursive=False)
    data = hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue()
    if len(data) > limit:
        return 0
    os.pwrite(fd, data, 0)
    return len(data)


def unpack(fd: int, directory: Path) -> None:
    """The reverse; modification times are kept, so that nothing is rebuilt. Raises ValueError for damaged data, OSError
    and TarError for what cannot be unpacked."""
    data = read_memory_file(fd)
    tar_data = data[_DIGEST:]
    if hashlib.sha256(tar_data).digest() != data[:_DIGEST]:
        raise ValueError("the build products are damaged")
    with tarfile.open(fileobj=io.BytesIO(tar_data), mode="r:") as tar:  # never compressed
        tar.extractall(directory, filter="data")
