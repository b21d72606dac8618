"""The support library of the façade: compiled once against the real ATen, loaded by every candidate's process."""

from __future__ import annotations

from pathlib import Path


def ensure_support(cache_root: Path) -> Path:
    """Build what the façade needs unless it is there (about 30 s once); returns its directory under ``cache_root``.

    Idempotent and safe for concurrent processes. Raises EnvironmentLacking without a C++ compiler.
    """
    raise NotImplementedError
