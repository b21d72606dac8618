"""What a child process prints, in a file that cannot fill the disk.

The child writes into a pipe; a thread here moves it to ``name.log``, and at ten megabytes the file becomes
``name.log.1``. The pipe also keeps a full disk away from the child: its prints succeed, and what cannot be written is
dropped and counted. Not here: what is logged, and how lines look.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

LIMIT_BYTES = 10 << 20
KEPT = 2  # older files beside the current one
READ_BYTES = 64 << 10


class RotatingFile:
    """Appends bytes; at most ``(kept + 1) * limit`` bytes lie on the disk. Never raises OSError on write."""

    def __init__(self, path: Path, limit: int = LIMIT_BYTES, kept: int = KEPT) -> None:
        self.path, self.limit, self.kept = path, limit, kept
        self.trouble = ""  # why the last write failed; empty once one succeeds
        self.dropped_bytes = 0
        self._fd = -1

    def write(self, data: bytes) -> None:
        """Append, after a rotation where ``data`` would pass the limit; dropped where the disk takes nothing."""
        try:
            if self._fd < 0:
                self._open()
            if os.fstat(self._fd).st_size + len(data) > self.limit:
                self._rotate()
            while data:
                data = data[os.write(self._fd, data) :]
            self.trouble = ""
        except OSError as exc:
            self.trouble = exc.strerror or str(exc)
            self.dropped_bytes += len(data)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _rotate(self) -> None:
        self.close()
        for number in range(self.kept, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number}"))
        self._open()


class Pump:
    """Moves what comes through a pipe into a file until every writer has closed it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = RotatingFile(path)
        self._read, self.write_fd = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"log-{path.stem}", daemon=True)

    def start(self) -> None:
        """Once the child holds ``write_fd``: ours is closed, so that its end is seen."""
        os.close(self.write_fd)
        self._thread.start()

    def abandon(self) -> None:
        """No child came to be."""
        os.close(self.write_fd)
        os.close(self._read)

    def drain(self, timeout_s: float = 1.0) -> None:
        """After the child's end: wait for its last lines. What it left behind may hold the pipe for longer."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while data := os.read(self._read, READ_BYTES):
            self.file.write(data)
        os.close(self._read)
        self.file.close()


def last_line(log: Path) -> str:
    """The last line with text in it, at most 300 characters."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip()[:300] if lines else "(no output)"
