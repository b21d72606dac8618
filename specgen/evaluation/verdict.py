"""How a judgement ends early, and the locks that keep timed windows alone on their host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
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


def lock_path() -> Path:
    """One lock file per host."""
    return Path(tempfile.gettempdir()) / "specgen-timing.lock"


class HostLock:
    """Shared by builds, exclusive for timed windows; released by the kernel when its process dies."""

    def __init__(self) -> None:
        previous = os.umask(0)
        try:
            self._fd = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        finally:
            os.umask(previous)

    def share(self) -> None:
        """Take it for a build."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def release(self) -> None:
        """Give it back."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[float]:
        """A timed window; yields the seconds it was waited for."""
        start = time.monotonic()
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield time.monotonic() - start
        finally:
            self.release()
