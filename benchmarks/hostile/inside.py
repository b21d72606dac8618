"""What attacks on the operating system share: each is run inside the walls, and outside them as its own control.

The text of this file and of those with the attacks (:data:`FILES`) is handed to an interpreter inside the sandbox,
where nothing of the benchmarks can be seen: standard library only. An attack returns what it got (anything true); an
error, or nothing, is a wall that held. ``Targets`` names the things of the host that it is after. Not here: who
prepares those, and who runs this (:mod:`benchmarks.hostile.ground`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

Targets = dict[str, Any]
Attack = Callable[[Targets], object]
FILES = ("inside", "reach", "kernel")
ATTACKS: dict[str, Attack] = {}
_LIMIT_S = 60.0
TWICE: set[str] = set()  # what an earlier sandbox left: run in two, the second one tells

libc = ctypes.CDLL(None, use_errno=True)
_ARM = platform.machine() == "aarch64"
_NUMBERS = {  # x86-64, arm64
    "keyctl": (250, 219), "add_key": (248, 217), "setns": (308, 268), "pivot_root": (155, 41), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "kcmp": (312, 272),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "finit_module": (313, 273), "reboot": (169, 142),
    "syslog": (103, 116), "swapon": (167, 224), "fanotify_init": (300, 262), "ioprio_set": (251, 30),
    "clone": (56, 220), "clone3": (435, 435), "fsopen": (430, 430), "memfd_create": (319, 279), "shmget": (29, 194),
    "shmat": (30, 196), "msgget": (68, 186), "mq_open": (240, 180), "clock_settime": (227, 112), "acct": (163, 89),
    "move_pages": (279, 239), "memfd_secret": (447, 447), "statmount": (457, 457), "quotactl": (179, 60),
    "open_tree": (428, 428),
}  # fmt: skip


def attack(name: str, *, twice: bool = False) -> Callable[[Attack], Attack]:
    """Register under a name."""

    def add(function: Attack) -> Attack:
        ATTACKS[name] = function
        if twice:
            TWICE.add(name)
        return function

    return add


def run(names: list[str], targets: Targets) -> Iterator[tuple[str, str, str]]:
    """Each attack's name, ``got`` or ``held``, and what it said. Each has a process of its own."""
    for name in names:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(ours)
                os.write(
                    theirs, _outcome(name, targets | {"given_fds": [*targets["given_fds"], theirs]}).encode()[:300]
                )
            finally:
                os._exit(0)
        os.close(theirs)
        ended = select.select([ours], [], [], _LIMIT_S)[0]
        said = os.read(ours, 4096).decode(errors="replace") if ended else f"held no answer in {_LIMIT_S:g} s"
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        word, _, text = (said or "held its process was killed").partition(" ")
        yield name, word, text


def _outcome(name: str, targets: Targets) -> str:
    if not targets["walled"] and os.geteuid() == 0:  # in a mount namespace of its own, so that nothing remains
        checked(libc.unshare(0x00020000))
        checked(libc.mount(b"none", b"/", None, 0x44000, None))
    try:
        got = ATTACKS[name](targets)
    except BaseException as error:
        return f"held {type(error).__name__}: {error}"
    return f"{'got' if got else 'held'} {got!r}"


def call(name: str, *arguments: Any) -> int:
    """A system call; raises OSError."""
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return checked(libc.syscall(ctypes.c_long(_NUMBERS[name][_ARM]), *words))


def checked(result: int) -> int:
    """Raises OSError for -1."""
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def others() -> list[int]:
    """Every process in sight that is not of this attack."""
    mine = {os.getpid()} | ({os.getppid()} if os.getppid() != 1 else set())
    return [int(word) for word in os.listdir("/proc") if word.isdigit() and int(word) not in mine]


def foreign() -> list[int]:
    """Without the sandbox's own first process, where it has no more rights than we have (a user's sandbox)."""
    ours = os.getuid() != 0 and os.stat("/proc/1").st_uid == os.getuid()
    return [pid for pid in {1, *others()} if pid != 1 or not ours]


def read(path: str, limit: int = 1 << 16) -> bytes:
    """The beginning of a file; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            said = b""
            while len(said) < limit and (part := os.read(fd, limit - len(said))):
                said += part
            return said
        finally:
            os.close(fd)
    return b""


def text(path: str) -> str:
    """A file's text; raises OSError."""
    with open(path) as file:
        return file.read()


def attempt(path: str, targets: Targets) -> str:
    """Make a file; outside, where that works, remove it again."""
    said = write(path, "")
    if not targets["walled"]:
        os.unlink(path)
    return said


def write(path: str, text: str = "x") -> str:
    """Write to a file; raises OSError."""
    with open(path, "w") as file:
        file.write(text)
    return f"wrote {path}"
