"""What crosses the border between judge and candidate: small JSON messages and sealed memory files.

A :class:`Channel` carries one JSON object per datagram, at most 128 KiB, with file descriptors beside it; the judge
creates every descriptor, so a candidate never makes it open or read anything. Bulk data (tensors, sources, build
products) lies in memfds whose size the judge has sealed. Nothing is unpickled, ever. Not here: tensors
(:mod:`specgen.evaluation.tensors`). This module imports neither torch nor pydantic: the candidate's process uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

MAX_MESSAGE = 128 * 1024
MAX_FRAME = 32 * 1024 * 1024
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_SO_PASSRIGHTS = 83
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred
_FINISH = struct.Struct("<qq")  # no JSON object of an answer is 16 bytes long

Message = dict[str, Any]


class ProtocolError(Exception):
    """The other side sent something that is not a message."""


def _unique(pairs: list[tuple[str, Any]]) -> Message:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("a key is given twice")
    return result


def _float(word: str) -> float:
    value = float(word)
    if math.isinf(value):
        raise ProtocolError("a number beyond every double")
    return value


def _int(word: str) -> int:
    if len(word) > 20:
        raise ProtocolError("a number beyond 64 bits")
    return int(word)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value


def decode(data: bytes) -> Message:
    """Strict JSON: one object, no NaN, no number beyond 64 bits, no doubled keys. Raises ProtocolError.

    NULs and lone surrogates in strings, which no database and no UTF-8 can hold, become replacement characters.
    """

    def refuse(word: str) -> None:
        raise ProtocolError(f"{word} is not JSON")

    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=refuse, parse_float=_float, parse_int=_int
        )
        if b"\\u" in data:
            value = _printable(value)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


class Channel:
    """One end of a SOCK_SEQPACKET pair. ``peer_pid`` is the sender of the last message, attested by the kernel."""

    def __init__(self, sock: socket.socket, *, credentials: bool = False) -> None:
        self.sock = sock
        self.peer_pid = 0
        if credentials:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with contextlib.suppress(OSError):  # before Linux 6.16: descriptors arrive, and are closed
                sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises OSError when the other side is gone, ProtocolError when the message is too long."""
        data = json.dumps(message, allow_nan=False).encode()
        if len(data) > MAX_MESSAGE:
            raise ProtocolError(f"message of {len(data)} bytes")
        socket.send_fds(self.sock, [data], list(fds))

    def finish(self, number: int, nanoseconds: int) -> None:
        """The answer to a timed run: 16 bytes, so that saying it costs next to nothing."""
        self.sock.send(_FINISH.pack(number, nanoseconds))

    def receive(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """The next message and its descriptors. Raises TimeoutError, EOFError (other side gone), ProtocolError."""
        self.sock.settimeout(timeout_s)
        space = socket.CMSG_SPACE(16 * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(MAX_MESSAGE, space)
        except ConnectionError as exc:
            raise EOFError("connection lost") from exc
        fds = self._ancillary(ancillary)
        if not data:
            raise EOFError("closed")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(fds)
            raise ProtocolError("message too long")
        if len(data) == _FINISH.size:
            number, nanoseconds = _FINISH.unpack(data)
            return {"n": number, "ns": nanoseconds}, fds
        return decode(data), fds

    def _ancillary(self, ancillary: list[tuple[int, int, bytes]]) -> list[int]:
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level != socket.SOL_SOCKET:
                continue
            if kind == socket.SCM_RIGHTS:
                count = len(payload) // 4
                fds += struct.unpack(f"{count}i", payload[: count * 4])
            elif kind == 2 and len(payload) >= _CREDENTIALS.size:  # SCM_CREDENTIALS
                self.peer_pid = _CREDENTIALS.unpack(payload[: _CREDENTIALS.size])[0]
        for fd in fds:
            os.set_inheritable(fd, False)
        return fds


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors; one that is closed already is not an error."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def memory_file(size: int, name: str = "specgen") -> int:
    """A memfd of exactly ``size`` bytes that neither side can grow or shrink."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    return fd


def memory_file_of(data: bytes, name: str = "specgen") -> int:
    """A memfd that holds ``data`` and cannot be written any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return fd


def read_memory_file(fd: int, size: int | None = None) -> bytes:
    """The first ``size`` bytes of a memfd (all by default)."""
    wanted = os.fstat(fd).st_size if size is None else size
    parts = []
    offset = 0
    while offset < wanted and (part := os.pread(fd, min(wanted - offset, 1 << 30), offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def send_frame(sock: socket.socket, data: bytes) -> None:
    """A length-prefixed frame between a worker and its judge (both trusted). Raises OSError."""
    sock.sendall(struct.pack("!I", len(data)) + data)


def receive_frame(sock: socket.socket) -> bytes:
    """The next frame; blocks by the socket's timeout. Raises EOFError when the other side closed."""
    (length,) = struct.unpack("!I", _exactly(sock, 4))
    if length > MAX_FRAME:
        raise ProtocolError(f"frame of {length} bytes")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError("closed")
        data += part
    return bytes(data)
