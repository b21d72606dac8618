"""Before a candidate is blamed: is what it was given still as it was, and does the compiler compile?

A candidate that does not compile, load or run may be right and the machine wrong: the build support was removed or
written over under it, the compiler was taken away or is broken. The judge looks at both before it passes on a failure
that its candidate reported or died of, and answers ``infra_error`` where they are not whole. A wrong value needs no
such look. Not here: processes killed from outside (:mod:`specgen.evaluation.peer` reads that from how they ended).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile

from specgen.evaluation.build.retention import IN_USE
from specgen.evaluation.verdict import Verdict
from specgen.types import Status

_NEEDS_LOOK = frozenset(
    {
        Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.LOAD_ERROR, Status.RUNTIME_ERROR, Status.DEVICE_FAULT,
        Status.HANG,
    }
)  # fmt: skip
_KNOWN_GOOD = "#include <vector>\nint main() { std::vector<int> v(3, 1); return int(v.size()) - 3; }\n"
_NEEDS_COMPILER = frozenset({Status.COMPILE_ERROR, Status.LOAD_ERROR})
_LIMIT_S = 60.0
_KNOWN: dict[str, tuple[int, str]] = {}  # inode and fingerprint of support directories, as they were found


def remember(support: str) -> None:
    """In the zygote, once it has a support directory: judges forked from it know it as it was then."""
    if support:
        _KNOWN[support] = _inode(support), _fingerprint(support)


def renew(support: str) -> bool:
    """Whether a directory that was remembered must be made or found again. Takes 4 ms.

    It is removed where it is damaged; not where another worker has made it anew.
    """
    if support not in _KNOWN or _fingerprint(support) == _KNOWN[support][1]:
        return False
    if _inode(support) == _KNOWN[support][0]:
        shutil.rmtree(support, ignore_errors=True)
    return True


class Alibi:
    """What the candidate was given, as it was when its worker's zygote, or its judge, started."""

    def __init__(self, support: str) -> None:
        """``support`` may be empty: the stock route."""
        self._support = support
        self._before = _KNOWN[support][1] if support in _KNOWN else _fingerprint(support)

    def checked(self, verdict: Verdict) -> Verdict:
        """The verdict, or ``infra_error`` with what is broken and what it would have been."""
        if verdict.status not in _NEEDS_LOOK:
            return verdict
        broken = self.broken(compiler=verdict.status in _NEEDS_COMPILER)
        return Verdict(Status.INFRA_ERROR, f"{broken} ({verdict.status} does not count)") if broken else verdict

    def broken(self, *, compiler: bool) -> str:
        """What is no longer whole, in words; empty if nothing. A look at the compiler takes 0.2 s."""
        if _fingerprint(self._support) != self._before:
            return "the build support was changed or removed"
        return _compiler_fault() if compiler else ""


def _inode(support: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(support).st_ino
    return 0


def _fingerprint(support: str) -> str:
    """Of the files: names, sizes, times, inodes."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(support) if support else ():
        folders.sort()
        for name in sorted(set(files) - {IN_USE}):
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns} {found.st_ino}\n".encode())
    return digest.hexdigest()


def _compiler_fault() -> str:
    """Compile and link a program that is known to be right, as candidates are compiled."""
    name = os.environ.get("CXX", "c++")
    program = shutil.which(name)
    if program is None:
        return f"the C++ compiler {name} is gone"
    with tempfile.TemporaryDirectory(prefix="specgen-alibi-") as folder:
        try:
            done = subprocess.run(
                [program, "-x", "c++", "-", "-o", f"{folder}/program"], input=_KNOWN_GOOD, capture_output=True,
                text=True, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as exc:
            return f"the C++ compiler {name} cannot be run: {exc}"
    if done.returncode == 0:
        return ""
    return f"the C++ compiler {name} does not compile: {' '.join(done.stderr.split())[:300]}"
