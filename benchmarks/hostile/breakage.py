"""Infrastructure that breaks under the evaluation of an honest candidate: whose fault is it said to be?

Each case breaks one thing at a random moment (seeded), or as soon as a compiler runs, and takes the result: ``valid``
where the evaluation could go on, ``infra_error`` where it could not, never the candidate's fault. Everything that is
broken is this benchmark's own: a cache of hard links, a compiler of a few lines, mounts of a private namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hostile.candidates import HONEST, kernel
from benchmarks.hostile.evaluations import DEVICE, request
from specgen.evaluation import processes
from specgen.evaluation.cell import Cell, _Zygote, close_zygote
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationResult, Status

_COMPILERS = ("cc1plus", "as", "ld", "collect2")
_NO_BACKEND = (
    "#!/bin/sh\necho \"c++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\" >&2\nexit 1\n"
)


@dataclass(frozen=True)
class Result:
    """One case. ``told``: what was broken, and when."""

    kind: str
    status: Status
    told: str
    error: str
    seconds: float

    @property
    def blamed(self) -> bool:
        """The candidate is honest."""
        return self.status is not Status.VALID and self.status.kind != "infrastructure"


class Bench:
    """One private cache, and evaluations on it."""

    def __init__(self, support: Path, seed: int) -> None:
        self.support, self.rng = support, random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="sgb-"))
        self.root = self.folder / "cache"
        self.compiler = self.folder / "bin" / "c++"
        self.number = 0
        self.fresh_cache()

    def fresh_cache(self) -> None:
        """Whole again. A new zygote: it remembers where its support lies."""
        close_zygote()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        target = self.root / self.support.name
        subprocess.run(["cp", "-al", str(self.support), str(target)], check=True)
        for path in (*target.glob("*.so"), target / "manifest.json"):  # these are written over: no link to the original
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
            path.chmod(0o755)
        self.compiler.parent.mkdir(exist_ok=True)
        self.compiler.write_text('#!/bin/sh\nexec /usr/bin/c++ "$@"\n')
        self.compiler.chmod(0o755)

    def library(self) -> Path:
        """The support's."""
        return next((self.root / self.support.name).glob("*.so"))

    def source(self) -> str:
        """Honest, and never built before."""
        self.number += 1
        return kernel().replace("const int64_t n =", f"/* {self.number} */ const int64_t n =")

    def evaluate(self, source: str, strike: Strike | None = None, ready: bool = True) -> EvaluationResult:
        """As a worker does, with something that happens meanwhile."""
        cell = Cell.start(DEVICE, EvaluationPolicy(), self.root)
        try:
            if ready:
                cell.wait_ready(400)  # the build support may have to be made again
            cell.submit(request(source, 60.0))
            begun = time.monotonic()
            while (result := cell.poll(0.01)) is None:
                if strike is not None:
                    strike.look(cell, time.monotonic() - begun)
            return result
        finally:
            cell.kill()

    def close(self) -> None:
        """Nothing is left."""
        close_zygote()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Strike:
    """What happens, and when: at a moment, or from the first compiler on (``at_s`` None)."""

    act: Callable[[Cell], object]
    at_s: float | None = None
    every: bool = False  # again and again from then on
    struck: str = ""

    def look(self, cell: Cell, now_s: float) -> None:
        """Act if it is time."""
        if self.struck and not self.every:
            return
        due = now_s >= self.at_s if self.at_s is not None else bool(_compilers(cell))
        if due and self.act(cell) is not False:
            self.struck = self.struck or f"at {now_s:.2f} s"


# ------------------------------------------------------------------------------------------------ who is who


def _judge(cell: Cell) -> list[int]:
    return [pid for pid in processes.children(cell.pgid) if _comm(pid) != "bwrap"]


def _outer(cell: Cell) -> list[int]:
    return [pid for pid in processes.children(cell.pgid) if _comm(pid) == "bwrap"]


def _inner(cell: Cell) -> list[int]:
    return [child for pid in _outer(cell) for child in processes.children(pid)]


def _harness(cell: Cell) -> list[int]:
    return [child for pid in _inner(cell) for child in processes.children(pid)]


def _compilers(cell: Cell) -> list[int]:
    return [pid for pid in processes.descendants(cell.pgid) if _comm(pid) in _COMPILERS]


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _send(whom: Callable[[Cell], list[int]], number: int = signal.SIGKILL) -> Callable[[Cell], object]:
    def act(cell: Cell) -> object:
        found = whom(cell)
        for pid in found:
            processes.kill(pid, number)
        return bool(found)

    return act


# ------------------------------------------------------------------------------------------------ kinds

Kind = Callable[[Bench], tuple[EvaluationResult, str]]
_LENGTH_S = 2.5  # about what an evaluation of a built candidate takes


def _moment(bench: Bench) -> float:
    return bench.rng.uniform(0.0, _LENGTH_S)


def _killed(whom: Callable[[Cell], list[int]], number: int = signal.SIGKILL) -> Kind:
    def case(bench: Bench) -> tuple[EvaluationResult, str]:
        source = bench.source() if bench.rng.random() < 0.5 else HONEST
        strike = Strike(_send(whom, number), _moment(bench))
        return bench.evaluate(source, strike), strike.struck

    return case


def _zygote_killed(bench: Bench) -> tuple[EvaluationResult, str]:
    def act(_: Cell) -> None:
        assert _Zygote._current is not None
        _Zygote._current.process.kill()

    strike = Strike(act, _moment(bench))
    return bench.evaluate(HONEST, strike), strike.struck


def _paused(whom: Callable[[Cell], list[int]]) -> Kind:
    """Stopped for two seconds, as a machine that swaps stops processes."""

    def case(bench: Bench) -> tuple[EvaluationResult, str]:
        def act(cell: Cell) -> object:
            found = whom(cell)
            for pid in found:
                processes.kill(pid, signal.SIGSTOP)
            time.sleep(2.0)
            for pid in found:
                processes.kill(pid, signal.SIGCONT)
            return bool(found)

        strike = Strike(act, _moment(bench))
        return bench.evaluate(HONEST, strike), strike.struck

    return case


def _compiler_killed(every: bool) -> Kind:
    def case(bench: Bench) -> tuple[EvaluationResult, str]:
        strike = Strike(_send(_compilers), every=every)
        return bench.evaluate(bench.source(), strike), strike.struck

    return case


def _support(change: Callable[[Bench], object], during: bool) -> Kind:
    def case(bench: Bench) -> tuple[EvaluationResult, str]:
        try:
            if not during:
                bench.evaluate(HONEST)
                change(bench)
                return bench.evaluate(bench.source()), "before"
            strike = Strike(lambda _: change(bench), bench.rng.uniform(0.0, 1.0))
            return bench.evaluate(bench.source(), strike), strike.struck
        finally:
            bench.fresh_cache()

    return case


def _remove_support(bench: Bench) -> None:
    shutil.rmtree(bench.root / bench.support.name)


def _truncate_library(bench: Bench) -> None:
    os.truncate(bench.library(), bench.library().stat().st_size // 2)


def _spoil_library(bench: Bench) -> None:
    size = bench.library().stat().st_size
    with bench.library().open("r+b") as file:
        for _ in range(64):
            file.seek(bench.rng.randrange(size - 4096))
            file.write(bench.rng.randbytes(4096))


def _remove_headers(bench: Bench) -> None:
    shutil.rmtree(bench.root / bench.support.name / "include")


@contextlib.contextmanager
def _own_compiler(bench: Bench) -> Iterator[None]:
    close_zygote()
    before = os.environ.get("CXX")
    os.environ["CXX"] = str(bench.compiler)
    try:
        yield
    finally:
        os.environ.pop("CXX")
        if before is not None:
            os.environ["CXX"] = before
        bench.fresh_cache()


def _compiler_gone(bench: Bench) -> tuple[EvaluationResult, str]:
    with _own_compiler(bench):
        bench.evaluate(HONEST)
        bench.compiler.unlink()
        return bench.evaluate(bench.source()), "before"


def _compiler_broken(bench: Bench) -> tuple[EvaluationResult, str]:
    with _own_compiler(bench):
        strike = Strike(lambda _: bench.compiler.write_text(_NO_BACKEND), bench.rng.uniform(0.0, 0.3))
        return bench.evaluate(bench.source(), strike), strike.struck


def _mounted(options: str, fill: bool, variable: str = "") -> Kind:
    """The cache, or the folder for temporary files, on a file system that is full or read-only."""

    def case(bench: Bench) -> tuple[EvaluationResult, str]:
        place = bench.folder / "mounted"
        place.mkdir(exist_ok=True)
        _mount(place, "size=1m")
        root, before = bench.root, os.environ.get(variable)
        try:
            if variable:
                close_zygote()
                os.environ[variable] = str(place)
            else:
                (place / bench.support.name).symlink_to(root / bench.support.name)
                bench.root = place
            if fill:
                with contextlib.suppress(OSError), (place / "full").open("wb", buffering=0) as file:
                    while True:
                        file.write(b"x" * 4096)
            else:
                _mount(place, options, remount=True)
            return bench.evaluate(bench.source()), "before"
        finally:
            bench.root = root
            if variable:
                os.environ.pop(variable)
                if before is not None:
                    os.environ[variable] = before
            close_zygote()
            subprocess.run(["umount", "-l", str(place)], check=False)

    return case


def _mount(place: Path, options: str, remount: bool = False) -> None:
    words = ["mount", "-o", f"remount,{options}", str(place)] if remount else ["mount", "-t", "tmpfs", "-o", options]
    subprocess.run(words if remount else [*words, "tmpfs", str(place)], check=True)


_HOLDER = """
import fcntl, sys, time
files = [open(path, "a") for path in sys.argv[1:]]
for file in files: fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(600)
"""


def _lock_of_the_dead(bench: Bench) -> tuple[EvaluationResult, str]:
    """Somebody holds the timed window, and dies while the judge waits for it."""
    paths = [str(Path(tempfile.gettempdir()) / name) for name in ("specgen-window.lock", "specgen-timing.lock")]
    for path in paths:
        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, *paths], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        strike = Strike(lambda _: holder.kill(), bench.rng.uniform(2.0, 4.0))
        return bench.evaluate(HONEST, strike), strike.struck
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def _build_products(spoil: Callable[[Bench, bytes], bytes]) -> Kind:
    def case(bench: Bench) -> tuple[EvaluationResult, str]:
        source = bench.source()
        bench.evaluate(source)
        stored = list((bench.root / "candidates").glob("*/build.tar"))
        if not stored:
            raise RuntimeError("nothing was stored")
        for path in stored:
            path.write_bytes(spoil(bench, path.read_bytes()))
        result = bench.evaluate(source)
        shutil.rmtree(bench.root / "candidates")
        return result, f"{len(stored)} of them"

    return case


def _spoiled(bench: Bench, data: bytes) -> bytes:
    at = bench.rng.randrange(4096, len(data) - 8192)
    return data[:at] + bench.rng.randbytes(4096) + data[at + 4096 :]


def _ceilings(bench: Bench) -> tuple[EvaluationResult, str]:
    bench.evaluate(HONEST)
    for path in (bench.root / "ceilings").glob("*"):
        path.write_text('{"copy_2^20": "x", ')
    return bench.evaluate(HONEST), "before"


_SLOW = "the build support was removed"  # a minute: it is made again
KINDS: dict[str, tuple[Kind, int, bool]] = {  # how it is done, how often of 50, whether it needs root
    "the judge is killed": (_killed(_judge), 5, False),
    "the supervisor is killed": (_killed(lambda cell: [cell.pgid]), 4, False),
    "the sandbox is killed": (_killed(_outer), 4, False),
    "the sandbox's first process is killed": (_killed(_inner), 3, False),
    "the candidate's process is killed": (_killed(_harness), 4, False),
    "the candidate's process is terminated": (_killed(_harness, signal.SIGTERM), 1, False),
    "the zygote is killed": (_zygote_killed, 3, False),
    "the judge is stopped for two seconds": (_paused(_judge), 2, False),
    "the sandbox is stopped for two seconds": (_paused(_harness), 2, False),
    "a compiler is killed": (_compiler_killed(False), 3, False),
    "every compiler is killed": (_compiler_killed(True), 2, False),
    "the compiler is removed": (_compiler_gone, 1, False),
    "the compiler breaks": (_compiler_broken, 2, False),
    "the build support is removed": (_support(_remove_support, True), 2, False),
    _SLOW: (_support(_remove_support, False), 1, False),
    "the support's headers are removed": (_support(_remove_headers, True), 1, False),
    "the support library is cut in half": (_support(_truncate_library, True), 2, False),
    "the support library is written over": (_support(_spoil_library, True), 2, False),
    "the cache is read-only": (_mounted("ro", False), 1, True),
    "the cache's disk is full": (_mounted("", True), 1, True),
    "the disk for temporary files is full": (_mounted("", True, "TMPDIR"), 1, True),
    "a dead process held the timed window": (_lock_of_the_dead, 1, False),
    "the stored build is damaged": (_build_products(_spoiled), 1, False),
    "the stored build is cut off": (_build_products(lambda _, data: data[: len(data) // 2]), 1, False),
    "the measured ceilings are garbage": (_ceilings, 1, False),
}


def cases(short: bool) -> list[str]:
    """The kinds, as often as they are wanted."""
    able = [name for name, (_, _, root) in KINDS.items() if os.geteuid() == 0 or not root]
    if short:
        return [name for name in able if name != _SLOW][:: max(1, len(able) // 10)]
    return [name for name in able for _ in range(KINDS[name][1])]


def run(support: Path, short: bool, seed: int) -> Iterator[Result]:
    """The cases, in an order of their own."""
    if os.geteuid() == 0:  # mounts of ours are nobody else's
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None):
            raise OSError(ctypes.get_errno(), "no mount namespace of its own")
    bench = Bench(support, seed)
    try:
        bench.evaluate(HONEST)
        for name in cases(short):
            begun = time.monotonic()
            result, told = KINDS[name][0](bench)
            yield Result(name, result.status, told, result.error, time.monotonic() - begun)
    finally:
        bench.close()
