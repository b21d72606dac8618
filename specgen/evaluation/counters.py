"""Hardware counters of a candidate's forward: runs ncu in a sandbox of its own, and survives whatever that does.

The judge calls :func:`collect` after the timed window. Counters inform the search; they decide nothing, so every
failure (no ncu, no permission, a pass that does not end, a candidate that fails under the profiler) is a reason in
words and never the candidate's fault: the result is ``profiler_unavailable`` with its timings. What ncu prints comes
out of a sandbox in which foreign code ran: it is parsed as text and believed only as far as that.
Not here: the table's format (:mod:`specgen.evaluation.ncu`), what runs inside (:mod:`specgen.evaluation.profiled`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specgen.evaluation import ncu, profiled, sandbox
from specgen.evaluation.processes import kill_all
from specgen.evaluation.supervisor import CellSpec, first_victim
from specgen.evaluation.tensors import Parcel
from specgen.evaluation.usage import held_bytes
from specgen.evaluation.wire import close_all, memory_file_of

LIMIT_S = 300.0
NO_NCU = "no ncu on this machine; it comes with the CUDA toolkit"
_ATTEMPTS = 4  # one for each time ncu stops at metrics that this chip does not have
_TICK_S = 0.05
_READ = 8 << 20  # of what ncu prints
_FILE_BYTES = 512 << 20
_PROCESSES = 1000  # threads of ncu and torch, beside the candidate's own sandbox under the same uid
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/cuda/bin/ncu", "/usr/bin/ncu")
_INSTALLED = Path("/opt/nvidia")  # where the wrapper in the toolkit points to


@dataclass(frozen=True)
class Subject:
    """What is profiled: the candidate's file, the tar of its build products (empty: none), its arguments (nested
    values, tensors where the problem has them) and the seed of its construction."""

    source: str
    build: bytes
    init: Any
    inputs: Any
    seed: int
    mode: str = "auto"  # as in the harness's ``load``
    support: str = ""


@dataclass(frozen=True)
class Counted:
    """What came of it: counters, or the reason why there are none. ``note`` says what is particular about them."""

    counters: ncu.Values = field(default_factory=dict)
    kernels: tuple[ncu.Kernel, ...] = ()
    unavailable: str = ""
    note: str = ""
    seconds: float = 0.0
    output: str = ""  # what ncu printed, capped


def find_ncu() -> str:
    """The ncu of this machine; empty where there is none."""
    places = [shutil.which("ncu"), *_PLACES, *map(str, sorted(_INSTALLED.glob("nsight-compute/*/ncu"), reverse=True))]
    return next((place for place in places if place and os.access(place, os.X_OK)), "")


def collect(subject: Subject, spec: CellSpec, limit_s: float = LIMIT_S, program: str | None = None) -> Counted:
    """Counters of one forward, or why there are none. Never raises for what goes wrong in or around ncu.

    Takes 6 to 20 s on an H200, at most ``limit_s``; the device is busy meanwhile. ``program`` is the ncu to use.
    """
    start = time.monotonic()
    program = find_ncu() if program is None else program
    try:
        found = _with_parcels(subject, spec, program, start + limit_s) if program else Counted(unavailable=NO_NCU)
    except (OSError, RuntimeError, TypeError) as exc:  # RuntimeError: device memory, too
        found = Counted(unavailable=f"ncu could not be started: {' '.join(str(exc).split())}"[:400])
    return replace(found, seconds=time.monotonic() - start)


def _with_parcels(subject: Subject, spec: CellSpec, program: str, deadline: float) -> Counted:
    fds: list[int] = []
    try:
        parcels = []
        for value in (subject.init, subject.inputs):
            parcels.append(Parcel.of(value))
            fds.append(parcels[-1].fd)
        return _Run(subject, parcels, spec, program, deadline).run()
    finally:
        close_all(fds)


class _Run:
    """The attempts for one subject, within one deadline (monotonic seconds)."""

    def __init__(self, subject: Subject, parcels: list[Parcel], spec: CellSpec, program: str, deadline: float) -> None:
        self.subject = subject
        self.init, self.inputs = parcels
        self.spec = spec
        self.program = program
        self.deadline = deadline
        self.absent: list[str] = []  # metrics that this chip does not have

    def run(self) -> Counted:
        """First the candidate's own kernels; if none of them ran, whatever did."""
        names = ncu.kernel_names(self.subject.source)
        launches, output, reason = self._attempts(names)
        note = ""
        if names and not launches and not reason:
            launches, output, reason = self._attempts([])
            seen = ", ".join(kernel.name for kernel in ncu.by_kernel(launches)[:8])
            note = f"none of the file's kernels ({', '.join(names[:8])}) ran; counted instead: {seen}"
        if not launches:
            return Counted(unavailable=reason or "no kernel ran in the profiled forward", output=output)
        if len(launches) == ncu.LAUNCHES:
            note = f"{note}; the first {ncu.LAUNCHES} launches only".removeprefix("; ")
        return Counted(ncu.counters(launches), tuple(ncu.by_kernel(launches)), note=note, output=output)

    def _attempts(self, names: Sequence[str]) -> tuple[list[ncu.Launch], str, str]:
        """Launches, output, reason: again without the metrics that ncu stops at."""
        launches, output, reason = self._once(names)
        for _ in range(_ATTEMPTS):
            absent = [name for name in ncu.missing_metrics(output) if name not in self.absent]
            if launches or not absent:
                break
            self.absent += absent
            launches, output, reason = self._once(names)
        return launches, output, reason

    def _once(self, names: Sequence[str]) -> tuple[list[ncu.Launch], str, str]:
        words = ncu.command(self.program, names, ncu.metric_names(self.absent), [])
        ended, printed, errors = self._execute(words)
        launches = ncu.parse(printed)
        output = f"{printed}\n{errors}"
        if launches:
            return launches, output, ""
        said = [line for line in errors.splitlines() if line.startswith(profiled.SAYS)]
        if ended:
            return [], output, ended
        if said:
            return [], output, f"the candidate failed under ncu: {said[-1].removeprefix(profiled.SAYS).strip()}"[:400]
        reason = ncu.failure(output)
        if not reason and "No kernels were profiled" not in output and "==PROF==" not in output:
            reason = f"ncu printed no table: {' '.join(errors.split())[-300:]}"
        return [], output, reason

    def _execute(self, words: list[str]) -> tuple[str, str, str]:
        """Run ncu in its sandbox. Returns why it was ended (empty: by itself), its stdout and its stderr."""
        out, err = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("specgen-ncu", "specgen-ncu-log"))
        subject = self.subject
        fds = [memory_file_of(subject.source.encode()), os.dup(self.init.fd), os.dup(self.inputs.fd)]
        if subject.build:
            fds.append(memory_file_of(subject.build))
        try:
            with self._command(words, fds) as (inner, environment, cwd, passed):
                with first_victim():
                    process = subprocess.Popen(
                        inner, env=environment, cwd=cwd, pass_fds=passed, start_new_session=True,
                        stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    )  # fmt: skip
                try:
                    ended = self._watch(process.pid)
                finally:
                    _kill_all(process)
            return ended, _text(out), _text(err)
        finally:
            close_all([out, err, *fds])

    def _watch(self, pid: int) -> str:
        """Until it has ended (it is not reaped yet: its pid stays its own) or must be."""
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= self.deadline:
                return "ncu did not end within its time"
            if held_bytes(pid) > self.spec.memory_bytes:
                return "ncu and the candidate took more memory than a candidate may"
            time.sleep(_TICK_S)
        return ""

    @contextmanager
    def _command(self, words: list[str], fds: list[int]) -> Iterator[tuple[list[str], dict[str, str], str, list[int]]]:
        """Command line, environment, directory and descriptors, inside the walls that the cell has."""
        if self.spec.sandbox != "bubblewrap":
            with tempfile.TemporaryDirectory(prefix="specgen-ncu-") as tmp:
                Path(tmp, "cache").mkdir()
                environment = sandbox.inner_environment(self.spec.backend, f"{tmp}/cache", tmp)
                yield profiled.python("launch", self._config(words, fds, tmp, f"{tmp}/cache", 0)), environment, tmp, fds
            return
        support = Path(self.subject.support) if self.subject.support else None
        walls = sandbox.Walls(self.spec.index, self.spec.backend, support, trees=_trees(self.program))
        config = self._config(words, fds, "/tmp", sandbox.CACHE, sandbox.fresh_uid())
        with sandbox.filtered(walls, profiled.python("launch", config)) as (command, extra):
            yield command, {}, "/", [*fds, *extra]

    def _config(self, words: list[str], fds: list[int], tmp: str, cache: str, uid: int) -> str:
        subject = self.subject
        limits: dict[str, Any] = {"processes": _PROCESSES, "file_bytes": _FILE_BYTES, "data_bytes": 0, "uid": uid}
        job = {
            "harness": {"backend": self.spec.backend, "cache": cache},
            "load": {"mode": subject.mode, "support": subject.support, "timeout_s": LIMIT_S},
            "construct": {"seed": subject.seed, **self.init.fields},
            "inputs": self.inputs.fields,
        }
        return json.dumps({**limits, "tmp": tmp, "ncu": words, "fds": fds, "job": job})


def _trees(program: str) -> tuple[Path, ...]:
    """Where ncu lies, beside /usr, which every sandbox sees."""
    places = [_INSTALLED] if _INSTALLED.is_dir() else []
    real = Path(program).resolve().parent
    seen = [Path("/usr"), *places]
    return tuple(places if any(real.is_relative_to(place) for place in seen) else [*places, real])


def _text(fd: int) -> str:
    """What was printed: all of it, or its end."""
    size = os.fstat(fd).st_size
    return os.pread(fd, _READ, max(0, size - _READ)).decode(errors="replace").replace("\x00", "")


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """The whole tree and the process group, then reap. Nothing of it runs any more when this returns."""
    kill_all(process.pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
