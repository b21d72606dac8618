"""A Redis connection that costs a simulation little: RESP2 over a unix socket, for asyncio. Answers are bytes, int or
list; an error is raised. Scripts go by their hash. Not for anything but benchmarks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

from specgen.scheduler.keys import Keys, script

LIMIT = 1 << 22


class WireError(Exception):
    """What the server answered."""


def packed(*parts: str | bytes | int | float) -> bytes:
    """One command."""
    texts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)


def script_command(name: str, keys: Keys, *args: str | bytes | int | float) -> bytes:
    """EVALSHA of a script that `Wire.load` has loaded."""
    digest = hashlib.sha1(script(name).encode(), usedforsecurity=False).hexdigest()
    return packed("EVALSHA", digest, 0, *keys.args(*args))


class Wire:
    """One connection; one command, or one batch, at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, socket: str) -> Self:
        """Open it."""
        return cls(*await asyncio.open_unix_connection(socket, limit=LIMIT))

    def close(self) -> None:
        """Drop it."""
        self._writer.close()

    async def load(self, names: Iterable[str]) -> None:
        """Make scripts known to the server."""
        for name in names:
            await self(packed("SCRIPT", "LOAD", script(name)))

    async def __call__(self, command: bytes) -> Any:
        """Send one command and wait for its answer."""
        self._writer.write(command)
        return await self._answer()

    async def batch(self, commands: Sequence[bytes]) -> list[Any]:
        """Send them together; all answers."""
        self._writer.write(b"".join(commands))
        return [await self._answer() for _ in commands]

    async def _answer(self) -> Any:
        line = await self._reader.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else (await self._reader.readexactly(size + 2))[:-2]
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return None if rest == b"-1" else [await self._answer() for _ in range(int(rest))]
        if kind == b"+":
            return rest
        if not line:
            raise ConnectionError("the server closed the connection")
        raise WireError(rest.decode())
