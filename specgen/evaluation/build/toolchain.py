"""Compilers: finding them, naming them for cache keys, running them under a deadline.

A compiler stays in the caller's process group, so whoever kills the group kills it. Not here: what is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from specgen.errors import EnvironmentLacking
from specgen.evaluation.build.errors import BuildTimeout, CompilerKilled

# gcc's driver reports a killed cc1plus in words and exits with 1; so does collect2, in others, for a killed linker.
_KILLED_WORDS = ("Killed signal terminated program", "ld terminated with signal 9")
_KILLED_CODES = (137, -9)
JOB_BYTES = 2 << 30  # one compiler over torch's headers: 1.2 GB of g++, 1.6 GB of nvcc's parts, and some room
_CGROUP = Path("/sys/fs/cgroup")
_NVCC_THREADS = re.compile(r"(?:^|\s)(?:-t|--threads)[= ]?(\d+)(?=\s|$)")


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock, and how long was given (seconds) for the message; None: no limit."""

    given_s: float | None
    at: float | None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Starting now."""
        return cls(seconds, None if seconds is None else time.monotonic() + seconds)

    @property
    def left_s(self) -> float | None:
        """Seconds left, not below zero."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())


@dataclass(frozen=True)
class Completed:
    """A finished command. ``output`` is stdout and stderr together."""

    command: str
    code: int
    output: str

    @property
    def killed(self) -> bool:
        """True where somebody else killed the compiler, which on a full machine is the kernel."""
        return self.code in _KILLED_CODES or (self.code != 0 and any(words in self.output for words in _KILLED_WORDS))


def cxx() -> str:
    """The C++ compiler that torch would take. Raises EnvironmentLacking where there is none."""
    name = os.environ.get("CXX", "c++")
    path = shutil.which(name)
    if path is None:
        raise EnvironmentLacking(f"no C++ compiler: {name} is not on PATH", "install g++ (Debian: apt install g++)")
    return path


@lru_cache(maxsize=8)
def version_of(compiler: str) -> str:
    """A compiler's own words about its version: part of cache keys."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """What ``-march=native`` depends on: architecture and the hash of the processor's feature flags."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()}-{hashlib.sha256(line.encode()).hexdigest()[:12]}"
    return platform.machine()


def cuda_home() -> Path | None:
    """The CUDA toolkit: torch's choice, else CUDA_HOME, else the usual place (a torch without CUDA chooses none).

    One is whole only with its headers: torch takes the folder above any ``nvcc`` on PATH, be that a wrapper.
    """
    from torch.utils import cpp_extension

    for place in (cpp_extension.CUDA_HOME, os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        parts = ("bin/nvcc", "include/cuda_runtime_api.h")
        if place and all((Path(place) / part).exists() for part in parts):
            return Path(place)
    return None


@lru_cache(maxsize=1)
def standard() -> str:
    """The language that stock compiles a source in that names none: C++17 up to torch 2.11, C++20 since.

    It is no setting of torch's: read where its commands are written.
    """
    from torch.utils import cpp_extension

    source = inspect.getsource(cpp_extension._write_ninja_file_to_build_library)
    found = re.search(r"-fPIC['\"], ['\"](-std=c\+\+\d\d)", source)
    return found[1] if found else "-std=c++20"


def builds_at_once() -> int:
    """How many compilers may run side by side in this process: a core and 2 GiB each, and no more than MAX_JOBS."""
    wanted = os.environ.get("MAX_JOBS", "")
    limit = int(wanted) if wanted.isdigit() and int(wanted) > 0 else len(os.sched_getaffinity(0))
    return max(1, min(limit, len(os.sched_getaffinity(0)), free_bytes() // JOB_BYTES))


def free_bytes() -> int:
    """Memory that is free here: the machine's, or what the container's limit leaves if that is less."""
    machine = int(psutil.virtual_memory().available)  # type: ignore[no-untyped-call]
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no limit ("max"), or nothing of the kind to see
        return machine
    return max(0, min(machine, limit - used + (int(cached[1]) if cached else 0)))


def threads_of(command: Sequence[str]) -> int:
    """How many compilers one command starts at once: nvcc's own ``--threads``."""
    found = _NVCC_THREADS.search(" ".join(command)) if Path(command[0]).name == "nvcc" else None
    return max(1, int(found[1])) if found else 1


@contextlib.contextmanager
def ninja_on_path() -> Iterator[None]:
    """torch calls ``ninja`` by name; an interpreter called by its path has its own ninja beside it, off PATH."""
    before = os.environ.get("PATH", "")
    if shutil.which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), before]))
    try:
        yield
    finally:
        os.environ["PATH"] = before


def run(
    command: Sequence[str],
    cwd: Path,
    deadline: Deadline,
    environment: Mapping[str, str] | None = None,
    given_up: threading.Event | None = None,
) -> Completed:
    """Run to its end, or to the deadline (then it and its children are killed and BuildTimeout is raised), or until
    ``given_up`` (then they are killed, too).

    Output goes to a file, never to a pipe that a full buffer could block.
    """
    shown = " ".join(command)
    with tempfile.TemporaryFile() as sink:
        process = subprocess.Popen(
            list(command), cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            code = _wait(process, deadline, given_up)
        except subprocess.TimeoutExpired:
            _kill_tree(process)
            raise BuildTimeout(f"the build took longer than {deadline.given_s:g} s\n{_read(sink.fileno())}") from None
        except BaseException:
            _kill_tree(process)
            raise
        return Completed(shown, code, _read(sink.fileno()))


def _wait(process: subprocess.Popen[bytes], deadline: Deadline, given_up: threading.Event | None) -> int:
    """The exit status. Raises TimeoutExpired at the deadline."""
    if given_up is None:
        return _wait_for(process, deadline.left_s)
    while True:
        left = deadline.left_s
        try:
            return _wait_for(process, 0.1 if left is None else min(0.1, left))
        except subprocess.TimeoutExpired:
            if given_up.is_set():
                _kill_tree(process)
                return process.wait()
            if left is not None and left <= 0.1:
                raise


def _wait_for(process: subprocess.Popen[bytes], seconds: float | None) -> int:
    """As ``process.wait``, which looks 20 times a second where it is given a limit: a build waits for several."""
    if seconds is not None:
        with contextlib.suppress(OSError):  # a kernel without it, or a sandbox that forbids it
            watched = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(watched, select.POLLIN)
                poll.poll(seconds * 1000)
            finally:
                os.close(watched)
            seconds = 0.0
    return process.wait(seconds)


def run_all(commands: Sequence[Sequence[str]], cwd: Path, deadline: Deadline) -> list[Completed]:
    """Run independent commands side by side, as many as fit, until one fails: what the others would say is not waited
    for. Where one is killed from outside, all once more, one after the other.

    Returns those that ended by themselves. Raises CompilerKilled if one is killed again.
    """
    threads = max(map(threads_of, commands), default=1)
    jobs = min(len(commands), max(1, builds_at_once() // threads))
    done = _until_one_fails(commands, cwd, deadline, jobs)
    if any(one.killed for one in done):
        done = _until_one_fails(commands, cwd, deadline, 1)
    for one in done:
        if one.killed:
            raise CompilerKilled(f"the compiler was killed: {one.command}", "likely out of memory")
    return done


def _until_one_fails(commands: Sequence[Sequence[str]], cwd: Path, deadline: Deadline, jobs: int) -> list[Completed]:
    failed = threading.Event()

    def one(command: Sequence[str]) -> Completed | None:
        if failed.is_set():
            return None
        done = run(command, cwd, deadline, given_up=failed if jobs > 1 else None)
        if done.code == 0:
            return done
        given_up = failed.is_set()
        failed.set()
        return None if given_up else done

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return [done for done in pool.map(one, commands) if done is not None]


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """The process and its descendants; not the group, which is the caller's own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)  # type: ignore[no-untyped-call]
        for victim in [*root.children(recursive=True), root]:  # type: ignore[no-untyped-call]
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
    process.wait()


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
