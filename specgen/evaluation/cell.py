"""One evaluation cell: a judge and its sandboxed candidate, started ahead, used once, then discarded.

This is what a device worker holds. It imports no torch and may be used in a Celery process: nothing is forked from
that process except through ``exec``. Not here: what is judged and how (:mod:`specgen.evaluation.judge`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

import specgen
from specgen.errors import EnvironmentLacking, InfrastructureError
from specgen.evaluation.sandbox import LARGE_PAGES
from specgen.evaluation.supervisor import CellSpec
from specgen.evaluation.wire import Channel, close_all
from specgen.settings import EvaluationPolicy, Settings
from specgen.types import EvaluationRequest, EvaluationResult, Status

_START = "import sys; sys.path.insert(0, sys.argv[1]); from specgen.evaluation import zygote; zygote.main(sys.argv[2:])"
_GIB = 1 << 30
_OVERTIME_S = 180.0  # beyond a request's budget: the first support library, and waiting for other timed windows


@dataclass(frozen=True)
class Device:
    """A device that evaluates. ``index`` is the core a CPU device is pinned to, or the GPU's number."""

    name: str
    backend: Literal["cpu", "cuda"]
    index: int


def devices(settings: Settings) -> list[Device]:
    """This machine's devices: one per core, or as many cores as the settings say.

    Raises EnvironmentLacking where there is none, or no compiler.
    """
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise EnvironmentLacking("no C++ compiler on PATH", "install g++ (Debian: `apt install g++`)")
    cores = sorted(os.sched_getaffinity(0))
    wanted = settings.evaluation.cpu_devices or len(cores)
    if wanted > len(cores):
        raise EnvironmentLacking(
            f"{wanted} CPU devices asked for, {len(cores)} cores here", "lower SPECGEN_EVALUATION__CPU_DEVICES"
        )
    host = socket.gethostname()
    return [Device(name=f"{host}/cpu{core}", backend="cpu", index=core) for core in cores[:wanted]]


@dataclass(frozen=True)
class Ahead:
    """How a candidate is built ahead of its turn: by which share of this host, and for which CUDA architectures."""

    memory_bytes: int
    arch: str = ""


def memory_limit_bytes(share: int) -> int:
    """What one sandbox may hold: 70 % of the machine's memory over its devices, at least 2 GiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(2 * _GIB, int(total * 0.7 / max(1, share)))


def gpus_here() -> int:
    """NVIDIA GPUs of this machine, by its driver; 0 without one."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


class _Zygote:
    """The worker's side of its zygote; started on first use, and again if it died."""

    _current: _Zygote | None = None

    def __init__(self, cache_root: Path, build: str) -> None:
        self.key = (os.getpid(), str(cache_root), build)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place = str(Path(specgen.__file__).resolve().parent.parent)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, place, str(theirs.fileno()), str(cache_root), build],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | LARGE_PAGES,
            )  # fmt: skip
        self.channel = Channel(ours)

    @classmethod
    def get(cls, cache_root: Path, build: str) -> _Zygote:
        """The current one if it lives and fits."""
        found = cls._current
        if found is None or found.key != (os.getpid(), str(cache_root), build) or found.process.poll() is not None:
            cls.close()
            cls._current = found = cls(cache_root, build)
        return found

    @classmethod
    def close(cls) -> None:
        """End the current one, if it is this process's."""
        found, cls._current = cls._current, None
        if found is None or found.key[0] != os.getpid():
            return
        found.channel.sock.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            found.process.wait(5)
        if found.process.poll() is None:  # it may be making the build support: its compilers end with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(found.process.pid, signal.SIGKILL)
            found.process.wait()


def close_zygote() -> None:
    """End this process's zygote (cells that run go on to their end). For orderly shutdown and tests."""
    _Zygote.close()


class Cell:
    """See the module. Not thread-safe; every cell must be killed, also after its result."""

    def __init__(self, device: Device, sock: socket.socket, watch_w: int) -> None:
        self.device = device
        self.pgid = 0  # known once the cell's first process runs
        self.ready = False  # the sandboxed process has imported torch and waits
        self._sock = sock
        self._watch_w = watch_w
        self._buffer = bytearray()
        self._request: EvaluationRequest | None = None
        self._submitted_at = 0.0
        self._result: EvaluationResult | None = None
        self._closed = False

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path, ahead: Ahead | None = None) -> Cell:
        """Start a cell without waiting for it. Raises InfrastructureError if no process can be started.

        With ``ahead`` it only loads its candidate, keeps what that built, and answers ``aborted``; ``device`` gives
        the backend then, and an index that no device has.
        """
        share = gpus_here() if device.backend == "cuda" else policy.cpu_devices or len(os.sched_getaffinity(0))
        spec = CellSpec(
            device_name=device.name, backend=device.backend, index=device.index, sandbox=policy.sandbox,
            build=policy.build, cache_root=str(cache_root),
            memory_bytes=ahead.memory_bytes if ahead else memory_limit_bytes(share),
            only_build=ahead is not None, arch=ahead.arch if ahead else "",
            sanitize=_sanitize(policy, device.backend) if ahead is None else "",
        )  # fmt: skip
        cache_root.mkdir(parents=True, exist_ok=True)
        watch_r, watch_w = os.pipe()
        ours, theirs = socket.socketpair()
        try:
            for attempt in (1, 2):
                try:
                    zygote = _Zygote.get(cache_root, policy.build)
                    zygote.channel.send(asdict(spec), [watch_r, theirs.fileno()])
                    break
                except OSError as exc:
                    _Zygote.close()
                    if attempt == 2:
                        raise InfrastructureError(f"no evaluation cell can be started: {exc}") from exc
        except BaseException:
            ours.close()
            os.close(watch_w)
            raise
        finally:
            os.close(watch_r)
            theirs.close()
        return cls(device, ours, watch_w)

    def submit(self, request: EvaluationRequest) -> None:
        """Give the cell its one request; returns at once. A cell that died answers at :meth:`poll`."""
        if self._request is not None:
            raise ValueError("a cell evaluates one request")
        self._request = request
        self._submitted_at = time.time()
        data = request.model_dump_json().encode()
        self._sock.setblocking(True)
        with contextlib.suppress(OSError):
            self._sock.sendall(len(data).to_bytes(4, "big") + data)

    def poll(self, timeout_s: float) -> EvaluationResult | None:
        """The result once there is one; also when the cell died (infra_error). None: not finished."""
        deadline = time.monotonic() + timeout_s
        while self._result is None and self._request is not None:
            left = max(0.0, deadline - time.monotonic())
            if time.time() > self._submitted_at + self._request.time_budget_s + _OVERTIME_S:
                self._result = self._dead("the judge did not answer within the budget")
            elif not self._read(left):
                self._result = self._dead("the evaluation process ended without a result")
            elif left == 0.0:
                break
        return self._result

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the sandboxed process has imported torch; for tests and benchmarks."""
        deadline = time.monotonic() + timeout_s
        while not self.ready and (left := deadline - time.monotonic()) > 0:
            if not self._read(left):
                return False
        return self.ready

    def kill(self, grace_s: float = 2.0) -> None:
        """End every process of the cell and wait until they are gone; idempotent.

        SIGTERM, then SIGKILL after ``grace_s`` seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._read(0.0)  # the group's number may just have come
        close_all([self._watch_w])
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            if self.pgid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pgid, number)
            if not self.pgid or self._drained(wait_s):
                break
        self._sock.close()

    def _drained(self, wait_s: float) -> bool:
        """True at end of file: the supervisor exits last and holds the other end until then."""
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            if not self._read(left):
                return self._vanished(deadline)
        return False

    def _vanished(self, deadline: float) -> bool:
        """Its last descriptors are closed: the supervisor is gone as soon as the kernel has reaped it."""
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pgid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.001)
        return False

    def _read(self, timeout_s: float) -> bool:
        """Take in what has come; False at end of file."""
        if not select.select([self._sock], [], [], timeout_s)[0]:
            return True
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            return False
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                break
            frame = json.loads(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._take(frame)
        return bool(data)

    def _take(self, frame: dict[str, object]) -> None:
        if isinstance(frame.get("pgid"), int):
            self.pgid = int(str(frame["pgid"]))
        elif "ready" in frame:
            self.ready = True
        elif "result" in frame:
            try:
                self._result = EvaluationResult.model_validate(frame["result"])
            except ValidationError as exc:
                self._result = self._dead(f"the judge's result is none: {' '.join(str(exc).split())[:300]}")

    def _dead(self, reason: str) -> EvaluationResult:
        assert self._request is not None
        now = time.time()
        return EvaluationResult(
            request_id=self._request.request_id, candidate_id=self._request.candidate_id, phase=self._request.phase,
            status=Status.INFRA_ERROR, error=reason, device=self.device.name, finished_at=now,
            device_s=now - self._submitted_at,
        )  # fmt: skip


def _sanitize(policy: EvaluationPolicy, backend: str) -> str:
    if backend != "cuda":
        return ""
    return policy.sanitize or ("fault" if policy.sanitize_on_fault else "")


def evaluate(
    request: EvaluationRequest, device: Device, policy: EvaluationPolicy, cache_root: Path
) -> EvaluationResult:
    """One evaluation from start to end, synchronously. Infrastructure trouble is a result too (infra_error)."""
    cell = Cell.start(device, policy, cache_root)
    try:
        cell.submit(request)
        while (result := cell.poll(5.0)) is None:
            pass
        return result
    finally:
        cell.kill()
