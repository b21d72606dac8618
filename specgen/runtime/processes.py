"""Child processes of the embedded system: own session, own log file, ended with the command that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specgen.errors import InfrastructureError

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Between fork and exec: die with the command, however it dies. A worker that shut down warmly would wait for a
    server that is gone."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Child:
    """A named process and its log."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str, command: Sequence[str], logs: Path, env: Mapping[str, str]) -> Child:
        """Start from the main thread (the kernel ties PDEATHSIG to the starting thread)."""
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(env),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return cls(name, log, process)

    def check(self) -> None:
        """Raises InfrastructureError with the log's last line if the process has ended."""
        code = self.process.poll()
        if code is None:
            return
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["(no output)"]
        raise InfrastructureError(f"{self.name} ended with {code}: {lines[-1]}", f"its log is {self.log}")

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process.poll() is None:
            self.process.terminate()

    def reap(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic seconds), then SIGKILL its whole group."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def stop_all(children: Sequence[Child], grace_s: float) -> None:
    """SIGTERM to all at once, then each is waited for, at most ``grace_s`` together."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        child.reap(deadline)
