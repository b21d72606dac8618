"""The root of one cell's process group: it starts the judge and the sandbox, watches both, and leaves nothing behind.

It is forked from the zygote (torch imported, nothing run) for every cell, leads a session of its own, holds the read
end of a pipe whose write end only the worker has (end of file: the worker died), adopts orphans, and exits last. Not
here: any judgement. See docs/evaluation.md for who is whose parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specgen.evaluation import processes, sandbox
from specgen.evaluation.usage import exceeds
from specgen.evaluation.wire import Channel, send_frame

_TICK_S = 0.1
LOG_BYTES = 256 * 1024


@dataclass(frozen=True)
class CellSpec:
    """What a cell is started with, as JSON from the worker."""

    device_name: str
    backend: str
    index: int
    sandbox: str  # "bubblewrap" or "none"
    build: str
    cache_root: str
    memory_bytes: int
    only_build: bool = False  # stop after the candidate is loaded; on any core, with no device in reach
    arch: str = ""  # CUDA architectures, where they cannot be read from a device
    sanitize: str = ""  # a tool of compute-sanitizer after every evaluation; "fault": memcheck after a device fault

    @classmethod
    def of(cls, data: dict[str, Any]) -> CellSpec:
        """From the zygote's message."""
        return cls(**data)


@dataclass(frozen=True)
class Bench:
    """The judge's place: its two connections, the candidate's exit report and its log."""

    spec: CellSpec
    worker: socket.socket
    channel: Channel
    exit_fd: int
    log_fd: int
    support: str
    support_error: str


def supervise(spec: CellSpec, watch_fd: int, worker: socket.socket, support: str, support_error: str) -> NoReturn:
    """Run one cell to its end and exit."""
    os.setsid()
    processes.die_with_parent(signal.SIGTERM)
    processes.adopt_orphans()
    code = 1
    try:
        send_frame(worker, json.dumps({"pgid": os.getpid()}).encode())
        if not _gone(watch_fd):
            Supervisor(spec, watch_fd).run(worker, support, support_error)
        code = 0
    except (BrokenPipeError, ConnectionError):
        code = 0  # the worker is gone: so are we
    finally:
        _reap_everything()
        os._exit(code)


def _gone(watch_fd: int) -> bool:
    return bool(select.select([watch_fd], [], [], 0)[0])


def _reap_everything() -> None:
    """Kill and reap until there is no descendant left (this process adopts orphans)."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for pid in processes.descendants(os.getpid()):
            processes.kill(pid)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


class Supervisor:
    """Starts the two processes of a cell and watches them."""

    def __init__(self, spec: CellSpec, watch_fd: int) -> None:
        self.spec = spec
        self.watch_fd = watch_fd
        self.oom_at_start = processes.oom_kills()
        self.killed_for_memory = False
        self.most_bytes = 0
        self.tmp: tempfile.TemporaryDirectory[str] | None = None

    def run(self, worker: socket.socket, support: str, support_error: str) -> None:
        """Start, then watch until the judge ends or the worker is gone."""
        if self.spec.backend == "cpu" and not self.spec.only_build:
            os.sched_setaffinity(0, {self.spec.index})
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        stop: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log_fd = os.memfd_create("specgen-log", os.MFD_CLOEXEC)
        os.set_blocking(log_fd, True)
        exit_r, exit_w = os.pipe2(os.O_CLOEXEC)
        bench = Bench(self.spec, worker, Channel(ours, credentials=True), exit_r, log_fd, support, support_error)
        judge = self._fork_judge(bench, (exit_w, self.watch_fd, wake_r, wake_w, theirs.fileno()))
        ours.close()
        candidate = self._spawn(theirs, log_fd, support)
        theirs.close()
        self._watch(judge, candidate, wake_r, exit_w, log_fd, stop)

    def _fork_judge(self, bench: Bench, foreign: tuple[int, ...]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            processes.die_with_parent()
            for fd in foreign:
                os.close(fd)
            from specgen.evaluation.judge import serve

            code = serve(bench)
        finally:
            os._exit(code)

    def _spawn(self, theirs: socket.socket, log_fd: int, support: str) -> subprocess.Popen[bytes]:
        if self.spec.arch:
            os.environ["TORCH_CUDA_ARCH_LIST"] = self.spec.arch
        if self.spec.sandbox != "bubblewrap":
            self.tmp = tempfile.TemporaryDirectory(prefix="specgen-")
            cache, tmp = f"{self.tmp.name}/cache", self.tmp.name
            Path(cache).mkdir()
            inner = sandbox.inner_command(json.dumps(harness_config(self.spec, theirs.fileno(), cache)))
            environment = sandbox.inner_environment(self.spec.backend, cache, tmp)
            return self._start(inner, [theirs.fileno()], log_fd, environment, tmp)
        walls = sandbox.Walls(
            self.spec.index, self.spec.backend, Path(support) if support else None, device=not self.spec.only_build
        )
        inner = sandbox.inner_command(json.dumps(harness_config(self.spec, theirs.fileno(), sandbox.CACHE)))
        with sandbox.filtered(walls, inner) as (command, fds):
            return self._start(command, [theirs.fileno(), *fds], log_fd, {}, "/")

    def _start(
        self, command: list[str], fds: list[int], log_fd: int, environment: dict[str, str], cwd: str
    ) -> subprocess.Popen[bytes]:
        with first_victim():
            return subprocess.Popen(
                command, env=environment, pass_fds=fds, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log_fd,
                stderr=log_fd,
            )  # fmt: skip

    def _watch(
        self, judge: int, candidate: subprocess.Popen[bytes], wake: int, exit_w: int, log_fd: int, stop: list[int]
    ) -> None:
        while True:
            ready, _, _ = select.select([self.watch_fd, wake], [], [], _TICK_S)
            if stop or self.watch_fd in ready:
                return
            with contextlib.suppress(BlockingIOError):
                while os.read(wake, 512):
                    pass
            self._cap(candidate.pid, log_fd)
            for pid, status in _reaped():
                if pid == judge:
                    return
                if pid == candidate.pid:
                    self._report(status, exit_w)

    def _cap(self, candidate: int, log_fd: int) -> None:
        """Memory of the whole sandbox, and the length of its log."""
        if os.fstat(log_fd).st_size > 4 * LOG_BYTES:
            os.ftruncate(log_fd, LOG_BYTES)
            os.lseek(log_fd, LOG_BYTES, os.SEEK_SET)
        too_much, held = exceeds(candidate, self.spec.memory_bytes)
        self.most_bytes = max(self.most_bytes, held)
        if too_much:
            self.killed_for_memory = True
            for pid in (candidate, *processes.descendants(candidate)):
                processes.kill(pid)

    def _report(self, status: int, exit_w: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        # the kernel takes sandboxes first: one that held little died of somebody else's memory
        large = self.most_bytes > self.spec.memory_bytes // 2
        memory = self.killed_for_memory or (code in (-9, 137) and large and processes.oom_kills() > self.oom_at_start)
        os.write(exit_w, json.dumps({"code": code, "memory": memory}).encode() + b"\n")


def harness_config(spec: CellSpec, fd: int, cache: str) -> dict[str, Any]:
    """What the harness is started with: its end of the channel, and its limits."""
    return {
        "fd": fd, "cache": cache, "backend": "cpu" if spec.only_build else spec.backend,
        "processes": 200, "file_bytes": 1 << 30,
        "data_bytes": spec.memory_bytes if spec.backend == "cpu" else 0,
        "uid": sandbox.fresh_uid() if spec.sandbox == "bubblewrap" else 0,
    }  # fmt: skip


@contextlib.contextmanager
def first_victim() -> Iterator[None]:
    """What is started within this is what the kernel kills first when the host's memory runs out, and leaves no core
    dump: a limit of 1 keeps the kernel from starting the host's handler of dumps, which a limit of 0 does not."""
    score = Path("/proc/self/oom_score_adj")
    before = score.read_text()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    with contextlib.suppress(OSError):
        score.write_text("1000")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            score.write_text(before)


def _reaped() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (done := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(done)
    return found
