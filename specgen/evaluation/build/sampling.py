"""Which fast builds are built again by stock, to see that the verdict is the same, and until when.

A pair is one source by both routes: same end, same behaviour, same messages. A backend whose façade agreed with stock
in 100 pairs (`audited.json`, made by ``python -m benchmarks.build --audit``) needs no sampling; a façade that was
changed since, or another version of torch, does. Not here: building or comparing (`specgen.evaluation.second_opinion`).
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Literal

Backend = Literal["cpu", "cuda"]

ENOUGH = 100  # pairs without a disagreement
_HERE = Path(__file__).parent
_RECORDS = _HERE / "audited.json"
_SHAPING = ("operators.py", "screen.py", "facade.py", "request.py")
_CUDA_ONLY = ("cuda.h", "cuda.inl")


@lru_cache(maxsize=2)
def audit_hash(backend: str) -> str:
    """Of everything that shapes a fast build for a backend (16 hex digits)."""
    digest = hashlib.sha256()
    files = [*_HERE.glob("include/**/*"), *_HERE.glob("native/*"), *(_HERE / name for name in _SHAPING)]
    for path in sorted(files):
        if path.is_file() and (backend == "cuda" or path.name not in _CUDA_ONLY):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def release(torch_version: str) -> str:
    """2.13 of 2.13.1+cu130: patches of one release have one C++ interface."""
    return ".".join(torch_version.split("+")[0].split(".")[:2])


def record_name(backend: str, torch_version: str) -> str:
    """What a record is filed under."""
    return f"{backend} {audit_hash(backend)} torch {release(torch_version)}"


def audited(backend: str, torch_version: str, records: Path | None = None) -> bool:
    """Whether this façade has its pairs for this backend and torch."""
    try:
        found = json.loads((records or _RECORDS).read_text()).get(record_name(backend, torch_version), {})
    except (OSError, ValueError):
        return False
    return int(found.get("pairs", 0)) >= ENOUGH and int(found.get("disagreements", 1)) == 0


def record(backend: str, torch_version: str, pairs: int, disagreements: int, records: Path | None = None) -> None:
    """Keep an audit's result; older façades of the backend and torch are forgotten."""
    try:
        kept = json.loads((records or _RECORDS).read_text())
    except (OSError, ValueError):
        kept = {}
    torch = f"torch {release(torch_version)}"
    kept = {name: row for name, row in kept.items() if not (name.startswith(f"{backend} ") and name.endswith(torch))}
    kept[record_name(backend, torch_version)] = {"pairs": pairs, "disagreements": disagreements}
    (records or _RECORDS).write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def chosen(candidate_id: str, rate: float) -> bool:
    """Every 1/rate-th candidate, always the same ones."""
    return int(hashlib.sha256(f"sampled {candidate_id}".encode()).hexdigest()[:8], 16) < rate * 0x1_0000_0000
