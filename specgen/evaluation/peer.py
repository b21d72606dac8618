"""The judge's view of the candidate's process: questions, answers that are not believed, and how it died.

Every way in which the other side can fail (an error it reports, silence, a crash, an early exit, a message that is
none) becomes a :class:`Verdict` here, and nowhere else. Failures of the sandbox itself are infrastructure.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgen.evaluation import processes
from specgen.evaluation.alibi import Alibi
from specgen.evaluation.feedback import cap, from_dump
from specgen.evaluation.supervisor import Bench
from specgen.evaluation.verdict import HostLock, Verdict, rejected
from specgen.evaluation.wire import Message, ProtocolError
from specgen.types import Status

_COMPILERS = ("cc1plus", "c++", "g++", "clang++", "ninja", "nvcc", "cicc", "ptxas", "ld", "as", "collect2", "cudafe++")
_STEPS = {"load": "importing the file", "construct": "constructing ModelNew", "fetch": "handing over the outputs"}
_DUMP_BYTES = 6000
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the filter keeps it from the first
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS)
_CLAIMS = frozenset(
    {
        Status.NO_MODELNEW, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.LOAD_ERROR, Status.RUNTIME_ERROR,
        Status.OUT_OF_MEMORY, Status.DEVICE_FAULT, Status.WRONG_SHAPE,
    }
)  # fmt: skip


class Peer:
    """One candidate's process. ``deadline`` (monotonic seconds) bounds every answer; waiting for locks extends it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.channel = bench.channel
        self.alibi = Alibi(bench.support)
        self.deadline = float("inf")
        self.pid = 0
        self.source = ""  # the candidate's file, for the lines of a crash
        self._number = 0
        self._asked = ""

    def hello(self, timeout_s: float) -> str:
        """Wait until the harness has imported torch; returns torch's version. Raises infra_error."""
        try:
            message, _ = self.channel.receive(timeout_s)
        except (EOFError, TimeoutError, ProtocolError) as exc:
            raise Verdict(Status.INFRA_ERROR, f"the sandbox did not start: {exc}; {self.log_tail(600)}") from exc
        self.pid = self.channel.peer_pid
        return str(message.get("hello", ""))

    def take_device(self, timeout_s: float) -> None:
        """Have a GPU's context made: what the harness waits for after its hello. Raises infra_error."""
        try:
            self.ask("device", timeout_s)
        except Verdict as exc:
            raise Verdict(Status.INFRA_ERROR, f"no context on the device: {exc.error}; {self.log_tail(600)}") from exc

    def post(self, do: str, fds: Sequence[int] = (), **fields: Any) -> None:
        """Ask without waiting."""
        self._number += 1
        self._asked = do
        try:
            self.channel.send({"do": do, "n": self._number, **fields}, fds)
        except OSError as exc:
            raise self._died() from exc

    def answer(self, timeout_s: float) -> Message:
        """The answer to the last question. Raises Verdict."""
        allowed = max(0.001, min(timeout_s, self.deadline - time.monotonic()))
        try:
            message, fds = self.channel.receive(allowed)
        except TimeoutError as exc:
            raise self._silent(allowed) from exc
        except EOFError as exc:
            raise self._died() from exc
        except ProtocolError as exc:
            raise rejected("forged_message", str(exc)[:100], "the process sent something that is no message") from exc
        if message.get("n") != self._number or fds:
            number = f"number {str(message.get('n'))[:20]}, expected {self._number}"
            raise rejected("forged_message", number, "the process answered a question that was not asked")
        if "error" in message:
            raise self._reported(message)
        return message

    def answer_to_load(self, timeout_s: float, lock: HostLock) -> Message:
        """The answer to ``load``, giving way to timed windows of other devices while the candidate builds."""
        end = time.monotonic() + timeout_s
        while not select.select([self.channel.sock], [], [], 0.05)[0]:
            lost = lock.give_way(self._pause)
            end += lost
            self.deadline += lost
            if time.monotonic() >= min(end, self.deadline):
                break
        return self.answer(max(0.001, end - time.monotonic()))

    def _pause(self, stop: bool) -> None:
        for pid in (self.pid, *processes.descendants(self.pid)):
            processes.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)

    def ask(self, do: str, timeout_s: float, fds: Sequence[int] = (), **fields: Any) -> Message:
        """Question and answer."""
        self.post(do, fds, **fields)
        return self.answer(timeout_s)

    def shoot(self, timeout_s: float) -> Message:
        """Start the run that the last question armed, and take its answer."""
        try:
            self.channel.sock.send(b"go")
        except OSError as exc:
            raise self._died() from exc
        return self.answer(timeout_s)

    def _reported(self, message: Message) -> Verdict:
        text = cap(str(message.get("text", "")))
        claimed = str(message["error"])
        if claimed == Status.INFRA_ERROR and self._asked in ("load", "construct"):
            return Verdict(Status.INFRA_ERROR, text)
        if claimed in _CLAIMS:
            return self.alibi.checked(Verdict(Status(claimed), text))
        return rejected("forged_message", claimed[:40], "the process reported a status that it cannot have")

    def _silent(self, allowed_s: float) -> Verdict:
        if self._asked == "load" and any(_name(pid) in _COMPILERS for pid in processes.descendants(self.pid)):
            slow = Verdict(Status.COMPILE_TIMEOUT, f"the build did not end within {allowed_s:.0f} s")
        else:
            said = f"{self._step} did not end within {allowed_s:.1f} s\n{self._stack()}".strip()
            slow = Verdict(Status.HANG, said)
        return self.alibi.checked(slow)

    @property
    def _step(self) -> str:
        return _STEPS.get(self._asked, "forward")

    def _stack(self) -> str:
        """Where the process is now: its harness prints its frames on SIGUSR1, if the candidate left it that."""
        before = os.fstat(self.bench.log_fd).st_size
        processes.kill(self.pid, signal.SIGUSR1)
        end = time.monotonic() + 1.0
        while os.fstat(self.bench.log_fd).st_size == before and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.02)  # the rest of the dump
        return from_dump(self.log_tail(_DUMP_BYTES), self.source, 1500)

    def _died(self) -> Verdict:
        code, memory = self._exit()
        tail = from_dump(self.log_tail(_DUMP_BYTES), self.source, 1500)
        if memory:
            limit = self.bench.spec.memory_bytes / (1 << 30)
            return Verdict(Status.OUT_OF_MEMORY, f"the process was killed for memory (limit {limit:.1f} GiB)")
        if code is None and processes.running(self.pid):
            return Verdict(Status.RUNTIME_ERROR, f"the process closed its connection in {self._step}\n{tail}".strip())
        if code is None:
            return Verdict(Status.INFRA_ERROR, "the sandbox is gone and left no exit code")
        number = -code if code < 0 else code - 128
        walled = self.bench.spec.sandbox == "bubblewrap"
        if number in _FROM_OUTSIDE or (walled and code < 0):  # below zero: the process around the sandbox
            name = signal.Signals(number).name
            return Verdict(Status.INFRA_ERROR, f"the sandbox was killed from outside ({name}) in {self._step}")
        return self.alibi.checked(self._exited(code, number, tail))

    def _exited(self, code: int, number: int, tail: str) -> Verdict:
        if number in _FAULTS:
            name = signal.Signals(number).name
            return Verdict(Status.DEVICE_FAULT, f"the process died of {name} in {self._step}\n{tail}".strip())
        if number == signal.SIGXCPU:
            return Verdict(Status.HANG, "the process used up its CPU time")
        return Verdict(
            Status.RUNTIME_ERROR, f"the process exited with code {code} in {self._step} without an answer\n{tail}"
        )

    def _exit(self) -> tuple[int | None, bool]:
        if not select.select([self.bench.exit_fd], [], [], 5.0)[0]:
            return None, False
        line = os.read(self.bench.exit_fd, 4096).split(b"\n")[0]
        if not line:
            return None, False
        report = json.loads(line)
        return int(report["code"]), bool(report["memory"])

    def log_tail(self, limit: int) -> str:
        """The end of what the process printed (capped)."""
        size = os.fstat(self.bench.log_fd).st_size
        data = os.pread(self.bench.log_fd, limit, max(0, size - limit))
        return data.decode(errors="replace").replace("\x00", "").strip()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
