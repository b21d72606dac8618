"""Looks for a canary wherever a process can look: run by a candidate in a whole evaluation, and outside as control.

Standard library only: its text becomes part of a candidate. It knows what a canary looks like, not which it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import socket
import stat

CANARY = re.compile(rb"CANARY[0-9a-f]{24}")
_LARGEST = 1 << 20  # of a file
_REGION = 64 << 20  # of memory


def search(roots: list[str], skipped: list[str], sockets: list[str], ports: list[int]) -> dict[str, list[str]]:
    """Where canaries were found, by kind. ``roots`` are walked but for ``skipped``; the services are also tried at the
    addresses that they have on the host."""
    memory = _memory()  # first: later it holds what was read
    files, found_sockets = _files(roots, skipped)
    return {
        "environment": [name for name, value in os.environ.items() if CANARY.search(os.fsencode(value))],
        "processes": _processes(),
        "descriptors": _readable(glob.glob("/proc/self/fd/*")),
        "files": files,
        "memory": memory,
        "unix sockets": [path for path in {*sockets, *found_sockets} if _asked(path)],
        "ports": [str(port) for port in {*ports, *_listening()} if _asked(port)],
    }


def _read(path: str, limit: int = _LARGEST) -> bytes:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            said = b""
            while len(said) < limit and (part := os.read(fd, limit - len(said))):
                said += part
            return said
        finally:
            os.close(fd)
    return b""


def _readable(paths: list[str]) -> list[str]:
    return [path for path in paths if _regular(path) and CANARY.search(_read(path))]


def _regular(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.stat(path).st_mode)
    return False


def _processes() -> list[str]:
    found = []
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        for name in ("environ", "cmdline", "comm", "maps", "mountinfo", "stack", "wchan", "auxv"):
            path = f"/proc/{pid}/{name}"
            if CANARY.search(_read(path, 1 << 17)) and int(pid) != os.getpid():
                found.append(path)
        found += _readable(glob.glob(f"/proc/{pid}/fd/*")) if int(pid) != os.getpid() else []
    return found


def _files(roots: list[str], skipped: list[str]) -> tuple[list[str], list[str]]:
    found, sockets = [], []
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in skipped]
            for path in [os.path.join(folder, name) for name in names]:
                with contextlib.suppress(OSError):
                    mode = os.lstat(path).st_mode
                    if stat.S_ISSOCK(mode):
                        sockets.append(path)
                    elif stat.S_ISREG(mode) and CANARY.search(_read(path)):
                        found.append(path)
    return found, sockets


def _memory() -> list[str]:
    """What the process itself holds: left there by whoever started it."""
    found = []
    for line in _read("/proc/self/maps", 1 << 22).decode().splitlines():
        words = line.split()
        start, end = (int(word, 16) for word in words[0].split("-"))
        if words[1].startswith("rw") and end - start <= _REGION and CANARY.search(ctypes.string_at(start, end - start)):
            found.append(line[:100])
    return found


def _listening() -> list[int]:
    rows = [line.split() for name in ("tcp", "tcp6") for line in _read(f"/proc/net/{name}").decode().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == "0A"]


def _asked(place: str | int) -> bool:
    """Whether a service there says a canary: Valkey's, Postgres's, or whoever greets with one."""
    for question in (b"GET canary\r\n", _POSTGRES):
        with contextlib.suppress(OSError):
            family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
            with socket.socket(family) as sock:
                sock.settimeout(1.0)
                sock.connect(place if isinstance(place, str) else ("127.0.0.1", place))
                sock.sendall(question)
                said = b""
                with contextlib.suppress(OSError):
                    while not CANARY.search(said) and (part := sock.recv(4096)):
                        said += part
                        if part.endswith(b"Z\0\0\0\5I") and b"canary" not in said:
                            sock.sendall(_QUERY)
                if CANARY.search(said):
                    return True
    return False


_WORDS = b"user\0postgres\0database\0postgres\0\0"
_POSTGRES = (len(_WORDS) + 8).to_bytes(4, "big") + (196608).to_bytes(4, "big") + _WORDS
_QUERY = b"Q" + (4 + 24).to_bytes(4, "big") + b"SELECT word FROM canary\0"
