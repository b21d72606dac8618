"""A real Valkey (unix socket and TCP) and a real Postgres (the same), each with a canary in it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
import sqlalchemy

from benchmarks.faults.postgres import Postgres
from specgen.runtime.valkey import server_binary


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def services(canary: str) -> Iterator[dict[str, Any]]:
    """Both, until the block ends; yields what attacks need to find them."""
    with tempfile.TemporaryDirectory(prefix="sgv-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        valkey_port, postgres_port = _free_port(), _free_port()
        stack.enter_context(_valkey(folder, valkey_port, canary))
        stack.enter_context(_postgres(folder / "postgres", postgres_port, canary))
        yield {
            "valkey_socket": str(folder / "valkey.sock"), "valkey_port": valkey_port,
            "postgres_socket": str(folder / "postgres" / "data" / f".s.PGSQL.{postgres_port}"),
            "postgres_port": postgres_port,
        }  # fmt: skip


@contextlib.contextmanager
def _valkey(folder: Path, port: int, canary: str) -> Iterator[None]:
    path = folder / "valkey.sock"
    process = subprocess.Popen(
        [server_binary(), "--port", str(port), "--unixsocket", str(path), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with redis.Redis(unix_socket_path=str(path)) as client:
            end = time.monotonic() + 20
            while True:
                try:
                    client.set("canary", canary)
                    break
                except redis.RedisError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _postgres(folder: Path, port: int, canary: str) -> Iterator[None]:
    folder.mkdir()
    folder.chmod(0o777)  # its server gives up root
    server = Postgres(folder, database="postgres", listen="127.0.0.1", port=port)
    server.start()
    try:
        engine = sqlalchemy.create_engine(server.url)
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE canary (word text)"))
            connection.execute(sqlalchemy.text("INSERT INTO canary VALUES (:word)"), {"word": canary})
        engine.dispose()
        yield
    finally:
        server.stop()
