"""Child processes of the embedded system: own session, own log file, ended with the command that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specgen.errors import InfrastructureError
from specgen.runtime.logs import Pump, last_line

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Between fork and exec: die with the command, however it dies. A worker that shut down warmly would wait for a
    server that is gone."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Child:
    """A named process and its log; `start` again after its end. Start it from the main thread: the kernel ties
    PDEATHSIG to the starting thread."""

    name: str
    command: Sequence[str]
    logs: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    pump: Pump | None = None

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.logs / f"{self.name}.log"

    def start(self) -> Child:
        """Start it; its output is appended to its log."""
        pump = Pump(self.log)
        try:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=pump.write_fd,
                stderr=pump.write_fd,
                env=dict(self.env),
                start_new_session=True,  # Ctrl-C in the terminal is for the command, which ends its children itself
                preexec_fn=die_with_parent,
            )
        except BaseException:
            pump.abandon()
            raise
        pump.start()
        self.pump = pump
        return self

    def poll(self) -> int | None:
        """Its exit code, or None while it runs. What an ended one left in its group is killed first, while its number
        cannot be another's yet."""
        process = self.process
        if process is None or process.returncode is not None:
            return None if process is None else process.returncode
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if self.pump is not None:
                self.pump.drain()
        return process.poll()

    def check(self) -> None:
        """Raises InfrastructureError with the log's last line if the process has ended."""
        code = self.poll()
        if code is not None:
            raise InfrastructureError(f"{self.name} ended with {code}: {last_line(self.log)}", f"its log is {self.log}")

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def reap(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic seconds), then SIGKILL its whole group."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.pump is not None:
            self.pump.drain()


def stop_all(children: Sequence[Child], grace_s: float) -> None:
    """SIGTERM to all at once, then each is waited for, at most ``grace_s`` together."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        child.reap(deadline)
