"""The candidate's private build cache: one directory per key, complete or absent.

A build happens in a scratch directory and is renamed into place when its library is finished, so a failed, killed or
concurrent build is never taken for a done one, and nothing is ever waited for. Where the directory is read-only (the
profiling process), new builds stay in a temporary directory. Not here: what a key is made of.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

_OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Entry:
    """A finished build. ``library`` is relative to the entry's directory; so is nothing else."""

    made_by: Literal["facade", "stock"]
    library: str
    fallback: str
    output: str


@dataclass(frozen=True)
class BuildCache:
    """All builds of one candidate."""

    root: Path

    def find(self, key: str) -> tuple[Entry, Path] | None:
        """The entry and its library, if this key was built to the end."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            entry = Entry(**json.loads((self.root / key / _OUTCOME).read_text()))
            library = self.root / key / entry.library
            if library.is_file():
                return entry, library
        return None

    def scratch(self) -> Path:
        """A fresh, empty directory to build in."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="building-", dir=self.root))
        except OSError:  # read-only
            return Path(tempfile.mkdtemp(prefix="specgen-build-"))

    def keep(self, key: str, scratch: Path, entry: Entry) -> Path:
        """Make a finished build permanent; returns its library. Another process's finished build of the key wins."""
        (scratch / _OUTCOME).write_text(json.dumps(asdict(entry)))
        if scratch.parent != self.root:
            return scratch / entry.library
        try:
            os.rename(scratch, self.root / key)
        except OSError:
            found = self.find(key)
            if found is None:
                return scratch / entry.library
            shutil.rmtree(scratch, ignore_errors=True)
            return found[1]
        return self.root / key / entry.library
