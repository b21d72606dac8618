"""A tool of the CUDA toolkit around one forward of a candidate, in a sandbox of its own; survives whatever that does.

The tool starts the harness, which loads the candidate and runs its forward. What a tool prints comes out of a sandbox
in which foreign code ran: it is text, believed only as far as that. Not here: what a tool is asked and what its words
mean (:mod:`specgen.evaluation.counters` for ncu, :mod:`specgen.evaluation.sanitize` for compute-sanitizer), what runs
inside (:mod:`specgen.evaluation.profiled`).
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgen.evaluation import profiled, sandbox
from specgen.evaluation.processes import kill_all
from specgen.evaluation.supervisor import CellSpec, first_victim
from specgen.evaluation.tensors import Parcel
from specgen.evaluation.usage import held_bytes
from specgen.evaluation.wire import close_all, memory_file_of

LIMIT_S = 300.0
_TICK_S = 0.05
_READ = 8 << 20  # of what a tool prints
_FILE_BYTES = 512 << 20
_PROCESSES = 1000  # threads of the tool and torch, beside the candidate's own sandbox under the same uid
_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/bin")
_INSTALLED = Path("/opt/nvidia")  # where the wrappers in the toolkit point to


@dataclass(frozen=True)
class Subject:
    """What is run: the candidate's file, the tar of its build products (empty: built anew), its arguments (nested
    values, tensors where the problem has them) and the seed of its construction."""

    source: str
    build: bytes
    init: Any
    inputs: Any
    seed: int
    mode: str = "auto"  # as in the harness's ``load``
    support: str = ""


@dataclass(frozen=True)
class Tool:
    """A program of the toolkit: what it is called in messages, where it lies, what its process finds in its
    environment beside what a candidate's does, and how many forwards come before the one that counts."""

    name: str
    program: str
    environment: dict[str, str] = field(default_factory=dict)
    warmups: int = 2


@dataclass(frozen=True)
class Printed:
    """What came of a run. ``ended``: why it was stopped, empty where it ended by itself."""

    ended: str
    out: str
    errors: str

    @property
    def candidate_failed(self) -> str:
        """The harness's words for why there was no forward; empty where there was one."""
        said = [line for line in self.errors.splitlines() if line.startswith(profiled.SAYS)]
        return said[-1].removeprefix(profiled.SAYS).strip()[:400] if said else ""


def find(name: str, *more: Path) -> str:
    """Where a program of the toolkit lies on this machine (``more``: places to look at last); empty: nowhere."""
    places = [shutil.which(name), *(f"{folder}/{name}" for folder in _FOLDERS), *map(str, more)]
    return next((place for place in places if place and os.access(place, os.X_OK)), "")


def installed(pattern: str) -> list[Path]:
    """Programs under NVIDIA's own folder, the newest release first."""
    return sorted(_INSTALLED.glob(pattern), reverse=True)


@contextmanager
def around(subject: Subject, spec: CellSpec, tool: Tool, deadline: float) -> Iterator[Runs]:
    """Runs of one subject within one deadline (monotonic seconds). Raises OSError, RuntimeError (device memory) and
    TypeError (arguments that cannot cross)."""
    fds: list[int] = []
    try:
        parcels = []
        for value in (subject.init, subject.inputs):
            parcels.append(Parcel.of(value))
            fds.append(parcels[-1].fd)
        yield Runs(subject, parcels, spec, tool, deadline)
    finally:
        close_all(fds)


class Runs:
    """See :func:`around`."""

    def __init__(self, subject: Subject, parcels: list[Parcel], spec: CellSpec, tool: Tool, deadline: float) -> None:
        self.subject = subject
        self.init, self.inputs = parcels
        self.spec = spec
        self.tool = tool
        self.deadline = deadline

    def run(self, words: Sequence[str]) -> Printed:
        """Run the tool with these words (its own name first, its target left out) in its sandbox."""
        out, err = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("specgen-tool", "specgen-tool-log"))
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
            return Printed(ended, _text(out), _text(err))
        finally:
            close_all([out, err, *fds])

    def _watch(self, pid: int) -> str:
        """Until it has ended (it is not reaped yet: its pid stays its own) or must be."""
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= self.deadline:
                return f"{self.tool.name} did not end within its time"
            if held_bytes(pid) > self.spec.memory_bytes:
                return f"{self.tool.name} and the candidate took more memory than a candidate may"
            time.sleep(_TICK_S)
        return ""

    @contextmanager
    def _command(
        self, words: Sequence[str], fds: list[int]
    ) -> Iterator[tuple[list[str], dict[str, str], str, list[int]]]:
        """Command line, environment, directory and descriptors, inside the walls that the cell has."""
        if self.spec.sandbox != "bubblewrap":
            with tempfile.TemporaryDirectory(prefix="specgen-tool-") as tmp:
                Path(tmp, "cache").mkdir()
                environment = sandbox.inner_environment(self.spec.backend, f"{tmp}/cache", tmp)
                yield profiled.python("launch", self._config(words, fds, tmp, f"{tmp}/cache", 0)), environment, tmp, fds
            return
        support = Path(self.subject.support) if self.subject.support else None
        walls = sandbox.Walls(self.spec.index, self.spec.backend, support, trees=_trees(self.tool.program))
        config = self._config(words, fds, "/tmp", sandbox.CACHE, sandbox.fresh_uid())
        with sandbox.filtered(walls, profiled.python("launch", config)) as (command, extra):
            yield command, {}, "/", [*fds, *extra]

    def _config(self, words: Sequence[str], fds: list[int], tmp: str, cache: str, uid: int) -> str:
        subject = self.subject
        limits: dict[str, Any] = {"processes": _PROCESSES, "file_bytes": _FILE_BYTES, "data_bytes": 0, "uid": uid}
        job = {
            "harness": {"backend": self.spec.backend, "cache": cache},
            "load": {"mode": subject.mode, "support": subject.support, "timeout_s": LIMIT_S},
            "construct": {"seed": subject.seed, **self.init.fields},
            "inputs": self.inputs.fields,
            "warmups": self.tool.warmups,
        }
        return json.dumps(
            {**limits, "tmp": tmp, "tool": list(words), "environment": self.tool.environment, "fds": fds, "job": job}
        )


def _trees(program: str) -> tuple[Path, ...]:
    """Where the tool lies, beside /usr, which every sandbox sees."""
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
