"""Where attacks are run: a host with secrets and services on it, the walls of an evaluation, and no walls.

:class:`Ground` prepares what attacks are after (:mod:`benchmarks.hostile.inside`), runs them inside the sandbox exactly
as a cell's supervisor starts it, or outside as a control, and looks at the host afterwards. Not here: the attacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pty
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specgen
from benchmarks.hostile import inside, kernel, reach
from specgen.evaluation import processes, sandbox
from specgen.evaluation.supervisor import CellSpec, first_victim, harness_config
from specgen.evaluation.wire import memory_file_of, read_memory_file

__all__ = ["ATTACKS", "Finding", "Ground"]

ATTACKS = inside.ATTACKS  # filled by the import of reach and kernel
_FILES = (inside, reach, kernel)
_MEMORY_BYTES = 2 << 30
_START = """
import json, os, sys, types
job = json.loads(os.pread({fd}, 1 << 24, 0))
os.close({fd})
for name in ("benchmarks", "benchmarks.hostile"):
    sys.modules[name] = types.ModuleType(name)
for name, text in job["files"]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
inside = sys.modules["benchmarks.hostile.inside"]
"""
_WALLED = """
sys.path.insert(0, job["place"])
from specgen.evaluation.candidate import restrict
restrict(job["limits"])
"""
_REPORT = """
for row in inside.run(job["names"], job["targets"]):
    print("ATTACK " + json.dumps(row), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Finding:
    """What one attack said. ``got``: it got what it wanted."""

    name: str
    got: bool
    said: str


class Ground:
    """A context: while it is entered the host has secrets, listeners and a victim process. ``support`` is the build
    support that candidates see; ``targets`` what further services add."""

    def __init__(self, support: Path | None = None, targets: dict[str, Any] | None = None, canary: str = "") -> None:
        self.canary = canary or new_canary()
        self.spec = CellSpec("hostile", "cpu", min(os.sched_getaffinity(0)), "bubblewrap", "auto", "", _MEMORY_BYTES)
        self.support = support
        self._more = targets or {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Ground:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sgh-")))
        self.tripwire = folder / "tripwire"
        self.tripwire.mkdir()
        secret = folder / "secret.txt"
        secret.write_text(self.canary)
        secret.chmod(0o644)
        port = self._listen(socket.create_server(("127.0.0.1", 0)))
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0specgen-{self.canary}")
        abstract.listen()
        self._listen(abstract)
        self.targets: dict[str, Any] = {
            "canary": self.canary, "port": port, "abstract": f"specgen-{self.canary}", "secret": str(secret),
            "tripwire": str(self.tripwire), "host_pid": self._victim(secret), "package": _package(),
            "trees": sandbox.python_trees(), "support": str(self.support or folder),
            "shm": f"shm-{self.canary}", "sleep_s": f"98765.{secrets.randbelow(10**9):09d}",
        }  # fmt: skip
        self._shared_memory()
        for name in ("valkey_socket", "postgres_socket"):
            self.targets[name] = str(folder / "absent.sock")
        self.targets |= {"valkey_port": 1, "postgres_port": 1} | self._more
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _listen(self, sock: socket.socket) -> int:
        """Says the canary to whoever connects."""
        name = sock.getsockname()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = sock.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.sendall(self.canary.encode())

        def close() -> None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

        threading.Thread(target=serve, daemon=True).start()
        self._stack.callback(close)
        return int(name[1]) if isinstance(name, tuple) else 0

    def _victim(self, secret: Path) -> int:
        """A process with the canary in its environment, its command line, its memory and an open file."""
        program = "import sys, time; file = open(sys.argv[1]); print(flush=True); time.sleep(3600)"
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", program, str(secret), self.canary],
            env={"SPECGEN_LLM_API_KEY": self.canary}, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()

        def end() -> None:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

        self._stack.callback(end)
        return process.pid

    def _shared_memory(self) -> None:
        shared = Path("/dev/shm") / self.targets["shm"]
        shared.write_text(self.canary)
        self._stack.callback(shared.unlink)
        libc = ctypes.CDLL(None, use_errno=True)
        key = 0x53470000 + secrets.randbelow(1 << 16)
        segment = libc.shmget(key, 4096, 0o1666)
        self._stack.callback(libc.shmctl, segment, 0, None)
        self.targets["sysv_key"] = key
        name = f"specgen-{self.canary}"
        self.targets["mqueue"] = name
        with contextlib.suppress(OSError):
            os.close(inside.call("mq_open", name.encode(), os.O_CREAT | os.O_RDWR, 0o666, None))
            librt = ctypes.CDLL("librt.so.1")
            self._stack.callback(librt.mq_unlink, f"/{name}".encode())

    # -------------------------------------------------------------------------------------------- running

    def walled(self, names: Sequence[str]) -> list[Finding]:
        """These attacks in one sandbox, then a look at the host."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = harness_config(self.spec, theirs.fileno(), sandbox.CACHE)

        def start(job: int, log: int) -> subprocess.Popen[bytes]:
            inner = [sys.executable, "-I", "-c", _START.format(fd=job) + _WALLED + _REPORT]
            with sandbox.filtered(sandbox.Walls(self.spec.index, "cpu", self.support), inner) as (command, fds):
                with first_victim():
                    return subprocess.Popen(
                        command, env={}, pass_fds=[theirs.fileno(), job, *fds], cwd="/", stdin=subprocess.DEVNULL,
                        stdout=log, stderr=log,
                    )  # fmt: skip

        with ours, theirs:
            given = {"walled": True, "given_fds": [theirs.fileno()]}
            found = self._run(names, given, {"limits": config, "place": _package_parent()}, start)
        return [self._checked(finding) for finding in found]

    def unwalled(self, names: Sequence[str]) -> list[Finding]:
        """The controls: the same attacks by a process of the host's, on a terminal, with the host's environment."""

        def start(job: int, log: int) -> subprocess.Popen[bytes]:
            controller, terminal = pty.openpty()
            self._stack.callback(os.close, controller)
            os.set_inheritable(job, True)
            environment = {**os.environ, "SPECGEN_LLM_API_KEY": self.canary}

            def take_terminal() -> None:
                os.setsid()
                os.close(os.open(os.ttyname(terminal), os.O_RDWR))

            try:
                return subprocess.Popen(
                    [sys.executable, "-I", "-c", _START.format(fd=job) + _REPORT],
                    env=environment, close_fds=False, cwd=str(self.tripwire), stdin=terminal, stdout=log, stderr=log,
                    preexec_fn=take_terminal,
                )  # fmt: skip
            finally:
                os.close(terminal)

        found = self._run(names, {"walled": False, "given_fds": []}, {}, start)
        self._end_daemons()
        return found

    def _run(
        self,
        names: Sequence[str],
        targets: dict[str, Any],
        more: dict[str, Any],
        start: Callable[[int, int], subprocess.Popen[bytes]],
    ) -> list[Finding]:
        job = {
            "names": list(names), "targets": self.targets | targets | {"name": f"x{secrets.token_hex(6)}"},
            "files": attack_files(), **more,
        }  # fmt: skip
        found = self._once(job, start)
        if again := inside.TWICE.intersection(names):
            found |= self._once(job | {"names": list(again)}, start)
        return list(found.values())

    def _once(self, job: dict[str, Any], start: Callable[[int, int], subprocess.Popen[bytes]]) -> dict[str, Finding]:
        fd, log = memory_file_of(json.dumps(job).encode()), os.memfd_create("hostile-log")
        try:
            process = start(fd, log)
            try:
                process.wait(300)
            except subprocess.TimeoutExpired:
                processes.kill_all(process.pid)
                process.wait()
            said = read_memory_file(log).decode(errors="replace")
        finally:
            os.close(fd)
            os.close(log)
        rows = [json.loads(line.partition("ATTACK ")[2]) for line in said.splitlines() if "ATTACK [" in line]
        found = {name: Finding(name, word == "got", text) for name, word, text in rows}
        if missing := [name for name in job["names"] if name not in found]:
            raise RuntimeError(f"no word from {missing}: {said[-2000:]}")
        return found

    def _checked(self, finding: Finding) -> Finding:
        """What the host itself shows after a sandbox has ended. Its processes end some time after it."""
        end = time.monotonic() + 5
        while (left := list(self._daemons())) and time.monotonic() < end:
            time.sleep(0.01)
        self._end_daemons()
        written = sorted(str(path.relative_to(self.tripwire)) for path in self.tripwire.rglob("*"))
        if left or written:
            return Finding(finding.name, True, f"left on the host: {left} {written}; {finding.said}")
        return finding

    def _daemons(self) -> Iterator[int]:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if self.targets["sleep_s"].encode() in path.read_bytes():
                    yield int(path.parent.name)

    def _end_daemons(self) -> None:
        end = time.monotonic() + 5
        while (left := list(self._daemons())) and time.monotonic() < end:
            for pid in left:
                processes.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for path in sorted(self.tripwire.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def new_canary() -> str:
    """A word that is nowhere else."""
    return f"CANARY{secrets.token_hex(12)}"


def attack_files() -> list[tuple[str, str]]:
    """Names and texts of the modules that hold the attacks, in the order in which they import each other."""
    return [(module.__name__, Path(str(module.__file__)).read_text()) for module in _FILES]


def _package() -> str:
    return str(Path(specgen.__file__).resolve().parent)


def _package_parent() -> str:
    return str(Path(specgen.__file__).resolve().parent.parent)
