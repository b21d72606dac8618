"""How a judgement ends early, and the locks that keep timed windows alone on their host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from specgen.types import Status


class Verdict(Exception):
    """A status other than valid, on its way to the result. ``rule`` names an integrity rule and its number."""

    def __init__(self, status: Status, error: str = "", rule: str = "") -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.error = error
        self.rule = rule


def rejected(rule: str, number: str, explanation: str) -> Verdict:
    """A refusal by an integrity rule; the feedback says which rule, which number, and what to do."""
    return Verdict(Status.REJECTED, f"rejected by rule {rule} ({number}): {explanation}", f"{rule}: {number}")


def _open(name: str) -> int:
    """A file that every user may lock. Opened for creation only where it is absent: in a sticky folder, systems refuse
    that (``fs.protected_regular``) for a file that another user has made."""
    path, flags = Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    previous = os.umask(0)
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags)
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    finally:
        os.umask(previous)


class HostLock:
    """Shared by builds, exclusive for timed windows, one per host (or GPU); freed by the kernel with its process.

    A window announces itself on a second file; a build that sees that pauses its sandbox and lets the window go
    first, so that no window waits for a compiler.
    """

    def __init__(self, device: str = "") -> None:
        """``device`` names a GPU: its windows do not disturb, nor are disturbed by, what other devices do."""
        of = "-" + re.sub(r"[^A-Za-z0-9.-]", "_", device) if device else ""
        self._fd = _open(f"specgen-timing{of}.lock")
        self._wanted = _open(f"specgen-window{of}.lock")

    @contextlib.contextmanager
    def building(self) -> Iterator[float]:
        """A build may run; yields the seconds it was waited for."""
        start = time.monotonic()
        self._share()
        try:
            yield time.monotonic() - start
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _share(self) -> None:
        fcntl.flock(self._wanted, fcntl.LOCK_SH)  # behind every window that is waiting
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        fcntl.flock(self._wanted, fcntl.LOCK_UN)

    def give_way(self, pause: Callable[[bool], None]) -> float:
        """Within :meth:`building`: if a window waits, pause, let it go first, resume. Returns the seconds lost."""
        try:
            fcntl.flock(self._wanted, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            start = time.monotonic()
            pause(True)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._share()
            finally:
                pause(False)
            return time.monotonic() - start
        fcntl.flock(self._wanted, fcntl.LOCK_UN)
        return 0.0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[float]:
        """A timed window; yields the seconds it was waited for."""
        start = time.monotonic()
        fcntl.flock(self._wanted, fcntl.LOCK_EX)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield time.monotonic() - start
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            fcntl.flock(self._wanted, fcntl.LOCK_UN)
