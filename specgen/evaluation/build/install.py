"""Puts the evaluator's builds in place of torch's, inside the candidate's process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from specgen.evaluation.build.log import BuildLog


def install(
    cache_dir: Path, *, mode: Literal["auto", "stock"], support: Path | None, timeout_s: float | None = None
) -> BuildLog:
    """Replace ``load_inline`` and ``load`` for everything that runs in this process from now on.

    ``cache_dir`` is private to the candidate; ``support`` is what :func:`ensure_support` returned (None: stock only);
    ``timeout_s`` limits each build. The replaced functions raise BuildFailed, BuildTimeout or CompilerKilled.
    """
    raise NotImplementedError
