"""Some candidates that the façade built are judged once more by stock; where the two differ, stock's verdict counts.

Until a backend's façade has its audited pairs (`build.sampling`: shipped with the product, or gathered on this
machine), every tenth candidate, by its hash, is evaluated a second time before its verdict is given, with everything
built by stock: it costs that candidate a stock build, and nobody else anything. A difference is logged, kept in the
result's environment and in the cache, and the candidate is built by stock from then on. Not here: the evaluation.
"""

from __future__ import annotations

import fcntl
import json
import logging
import re
from importlib import metadata
from pathlib import Path

from specgen.evaluation import stored
from specgen.evaluation.build import sampling
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Phase, Status

log = logging.getLogger(__name__)

# Of these a second run by stock says nothing: the verdict is stock's already, nothing was built, or time ran out.
_UNQUESTIONED = {Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.NO_MODELNEW, Status.NO_CODE, Status.HANG}
_WORDED = {Status.LOAD_ERROR, Status.RUNTIME_ERROR}  # others tell of inputs that differ from run to run
_VARYING = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?|/\S+/")
_NOTE = "second_opinion"


def wanted(request: EvaluationRequest, result: EvaluationResult, policy: EvaluationPolicy, cache_root: Path) -> bool:
    """Whether this result waits for stock's."""
    return (
        policy.build == "auto"
        and request.phase is Phase.VALIDATE
        and result.build_route in ("facade", "cached")
        and result.status.kind == "candidate"
        and result.status not in _UNQUESTIONED
        and sampling.chosen(request.candidate_id, policy.audit_rate)
        and not disputed(cache_root, request.source)
        and not _enough(request.problem.backend, cache_root)
    )


def by_stock(policy: EvaluationPolicy) -> EvaluationPolicy:
    """The same with every build by stock."""
    return policy.model_copy(update={"build": "stock"})


def settle(
    request: EvaluationRequest, first: EvaluationResult, second: EvaluationResult | None, cache_root: Path
) -> EvaluationResult:
    """The official result of the two; ``second`` is None where the stock evaluation did not end."""
    if second is None or second.status.kind != "candidate" or second.status in (Status.HANG, Status.COMPILE_TIMEOUT):
        how = f"none: {second.status}" if second else "none: stock took too long"
        return _noted(first, how)
    agree = first.status is second.status and (first.status not in _WORDED or _words(first) == _words(second))
    row = {"candidate": request.candidate_id, "agree": agree, "facade": first.status, "stock": second.status}
    _keep(_file(request.problem.backend, cache_root), row)
    if agree:
        return _noted(first, "stock agrees")
    log.error("the façade and stock disagree on %s: %s and %s", request.candidate_id, first.status, second.status)
    _mark(request, cache_root, row | {"facade_error": first.error, "stock_error": second.error})
    return _noted(second, f"stock disagrees with the façade's {first.status}: {first.error[:300]}")


def disputed(cache_root: Path, source: str) -> bool:
    """Whether the routes disagreed about this candidate: it is built by stock."""
    return _dispute(cache_root, source).exists()


def _enough(backend: str, cache_root: Path) -> bool:
    """Pairs enough and none disagreed: audited with the product, or on this machine."""
    if sampling.audited(backend, _torch()):
        return True
    rows = _rows(_file(backend, cache_root))
    return len(rows) >= sampling.ENOUGH and all(rows)


def _rows(path: Path) -> list[bool]:
    try:
        return [bool(json.loads(line)["agree"]) for line in path.read_text().splitlines()]
    except (OSError, ValueError, KeyError):
        return []


def _file(backend: str, cache_root: Path) -> Path:
    return cache_root / "audits" / f"{sampling.record_name(backend, _torch()).replace(' ', '-')}.jsonl"


def _keep(path: Path, row: dict[str, object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(row) + "\n")
    except OSError as exc:
        log.warning("a second opinion was not kept: %s", exc)


def _mark(request: EvaluationRequest, cache_root: Path, row: dict[str, object]) -> None:
    place = _dispute(cache_root, request.source)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(row, indent=1))


def _dispute(cache_root: Path, source: str) -> Path:
    return stored.entry(cache_root, source).with_name("disputed.json")


def _noted(result: EvaluationResult, note: str) -> EvaluationResult:
    return result.model_copy(update={"environment": result.environment | {_NOTE: note}})


def _words(result: EvaluationResult) -> str:
    """The message without what differs from run to run."""
    return _VARYING.sub("#", result.error)


def _torch() -> str:
    """Its version, without importing it (this runs in a device worker)."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"
