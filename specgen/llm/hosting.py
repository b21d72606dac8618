"""Running an ASGI application on loopback: as a process until a signal, or inside somebody else's event loop.

The model server and the recorder are run by it. Not here: what they answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import uvicorn
from starlette.applications import Starlette

from specgen.errors import EnvironmentLacking


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exits with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


class _Server(uvicorn.Server):
    """uvicorn that says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, base_url: str, port_file: Path | None, *, embedded: bool) -> None:
        super().__init__(config)
        self._base_url = base_url
        self._port_file = port_file
        self._embedded = embedded

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the server, and not the program around it, which may have something to say at its end;
        where the server is embedded they stay the embedding program's."""
        if self._embedded:
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where: whoever waits for the port file can connect at once."""
        await super().startup(sockets)
        if self.started and not self._embedded:
            sys.stdout.write(f"listening on {self._base_url}\n")
            sys.stdout.flush()
        if self._port_file is not None and self.started:
            await asyncio.to_thread(_write_atomically, self._port_file, self._base_url + "\n")


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as exc:
        raise EnvironmentLacking(
            f"cannot listen on {host}:{port}: {exc.strerror}", "--port 0 picks a free one"
        ) from exc


def _server(app: Starlette, listener: socket.socket, port_file: Path | None, *, embedded: bool = False) -> _Server:
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="off")
    return _Server(config, f"http://{host}:{port}/v1", port_file, embedded=embedded)


@contextlib.asynccontextmanager
async def running(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """The server within this event loop, for programs and tests that embed it; gives the base URL (with ``/v1``)."""
    with _bind(host, port) as listener:
        server = _server(app, listener, None, embedded=True)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.005)
            yield f"http://{host}:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await task


def serve_until_signal(app: Starlette, host: str, port: int, port_file: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM. ``port`` 0 picks a free one; ``port_file`` receives the base URL (with ``/v1``)
    once connections are accepted. Raises EnvironmentLacking if the address cannot be bound."""
    with _bind(host, port) as listener:
        _server(app, listener, port_file).run(sockets=[listener])
