"""Before a candidate is blamed: is what it was given still as it was, and does the compiler compile?

A candidate that does not compile, load or run may be right and the machine wrong: the build support was removed or
written over under it, the compiler was taken away or is broken. The judge looks at both before it passes on a failure
that its candidate reported or died of, and answers ``infra_error`` where they are not whole. A wrong value needs no
such look. Not here: processes killed from outside (:mod:`specgen.evaluation.peer` reads that from how they ended).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from specgen.evaluation.build.retention import IN_USE
from specgen.evaluation.verdict import Verdict
from specgen.types import Status

_NEEDS_LOOK = frozenset({Status.COMPILE_ERROR, Status.LOAD_ERROR, Status.RUNTIME_ERROR, Status.DEVICE_FAULT})
_KNOWN_GOOD = "#include <vector>\nint main() { std::vector<int> v(3, 1); return int(v.size()) - 3; }\n"
_LIMIT_S = 60.0


class Alibi:
    """What the candidate was given, as it was when its judge started. ``support`` may be empty."""

    def __init__(self, support: str) -> None:
        self._support = Path(support) if support else None
        self._before = self._fingerprint()

    def checked(self, verdict: Verdict) -> Verdict:
        """The verdict, or ``infra_error`` with what is broken and what it would have been."""
        if verdict.status not in _NEEDS_LOOK:
            return verdict
        broken = self.broken(compiler=verdict.status is Status.COMPILE_ERROR)
        return Verdict(Status.INFRA_ERROR, f"{broken} ({verdict.status} does not count)") if broken else verdict

    def broken(self, *, compiler: bool) -> str:
        """What is no longer whole, in words; empty if nothing. A look at the compiler takes 0.2 s."""
        if self._fingerprint() != self._before:
            return "the build support was changed or removed during the evaluation"
        return _compiler_fault() if compiler else ""

    def _fingerprint(self) -> str:
        """Of the support's files: names, sizes, times, inodes."""
        digest = hashlib.sha256()
        if self._support is not None:
            for folder, folders, files in os.walk(self._support):
                folders.sort()
                for name in sorted(set(files) - {IN_USE}):
                    try:
                        found = os.lstat(os.path.join(folder, name))
                    except OSError:
                        continue
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
