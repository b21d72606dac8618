"""Linux performance counters of another process, opened by the judge outside of the sandbox (perf_event_open(2)).

Each event counts by itself, in user mode, and only while :meth:`PerfCounters.counting`; threads that the process
starts later are included. What cannot be opened is None, with the kernel's word for it: ENOENT where there is no such
counter (most virtual machines have only those of the kernel itself), EACCES or EPERM where perf_event_paranoid or the
process's owner forbid it, ENOSYS where the call is filtered. Counters inform the search; they decide nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_CALL = {"x86_64": 298, "aarch64": 241}.get(platform.machine(), -1)
_ATTRIBUTES = struct.Struct("=IIQQQQQ")  # type, size, config, period, sample type, read format, flags
_SIZE = 112  # of struct perf_event_attr since Linux 4.1
_TIMES = 1 | 2  # also read: how long it was enabled, and how long it really counted (counters are shared)
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
_READING = struct.Struct("=QQQ")


class Event(NamedTuple):
    """A generic event of the kernel: its type (0 hardware, 1 software) and number."""

    kind: int
    number: int


EVENTS: dict[str, Event] = {
    "cycles": Event(0, 0),
    "instructions": Event(0, 1),
    "cache_misses": Event(0, 3),  # of the last level
    "branch_misses": Event(0, 5),
    "page_faults": Event(1, 2),
}
NAMES = (*EVENTS, "ipc")


def _open(event: Event, pid: int) -> int:
    """The counter's descriptor. Raises OSError with the kernel's number."""
    if _CALL < 0:
        raise OSError(errno.ENOSYS, "perf_event_open's number is not known here")
    attributes = bytearray(_SIZE)
    flags = _DISABLED | _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    _ATTRIBUTES.pack_into(attributes, 0, event.kind, _SIZE, event.number, 0, 0, _TIMES, flags)
    memory = (ctypes.c_char * _SIZE).from_buffer(attributes)
    fd = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(_CALL), memory, pid, -1, -1, ctypes.c_ulong(_CLOSE_ON_EXEC)
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(fd)


class PerfCounters:
    """The counters of one process. Never raises for one that there is not; close it."""

    def __init__(self, pid: int, events: dict[str, Event] | None = None) -> None:
        self._fds: dict[str, int] = {}
        self.missing: dict[str, str] = {}  # event -> the errno's name
        for name, event in (EVENTS if events is None else events).items():
            try:
                self._fds[name] = _open(event, pid)
            except OSError as exc:
                self.missing[name] = errno.errorcode.get(exc.errno or 0, str(exc.errno))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count inside; several times add up."""
        for fd in self._fds.values():
            fcntl.ioctl(fd, _ENABLE, 0)
        try:
            yield
        finally:
            for fd in self._fds.values():
                fcntl.ioctl(fd, _DISABLE, 0)

    def per_run(self, runs: int) -> dict[str, float | None]:
        """Counts divided by ``runs``; None for what was not counted. ``ipc``: instructions per cycle."""
        found: dict[str, float | None] = dict.fromkeys(NAMES)
        for name, fd in self._fds.items():
            value, enabled, running = _READING.unpack(os.read(fd, _READING.size))
            if runs and running:
                found[name] = value * (enabled / running) / runs
        cycles, instructions = found["cycles"], found["instructions"]
        found["ipc"] = instructions / cycles if cycles and instructions is not None else None
        return found

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}
