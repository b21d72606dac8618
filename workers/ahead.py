"""The device's side of builds ahead: is this candidate built, being built, or neither?

A device that comes while the build runs waits for it, for a while, rather than build the same twice; and no longer than
the builder lives (the kernel frees its claim). Not here: who builds
(`workers.yard`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from specgen.evaluation import stored
from specgen.evaluation.stored import Claim
from specgen.types import EvaluationRequest, EvaluationResult, Phase

WAIT_S = 30.0  # a builder on a busy machine may be slower than the device itself: what a wait can cost is bounded
BUDGET_SHARE = 0.5

log = structlog.get_logger(__name__)


@dataclass
class Start:
    """How a device finds a candidate: ``ready``, ``waited`` for, or empty. Keeps builders off it until `release`."""

    state: str = ""
    waited_s: float = 0.0
    claim: Claim | None = None

    def release(self) -> None:
        """The evaluation has ended."""
        if self.claim is not None:
            self.claim.release()

    def notes(self) -> dict[str, str]:
        """For the result's environment."""
        if not self.state:
            return {}
        return {"build_ahead": f"waited {self.waited_s:.3f} s" if self.state == "waited" else self.state}

    def counter(self, result: EvaluationResult) -> str:
        """Which counter of the pool a validation adds to: how its build was found; none where nothing was built."""
        if result.phase is not Phase.VALIDATE or result.build_route == "none":
            return ""
        return f"builds:{(self.state or 'ready') if result.build_route == 'cached' else 'missed'}"


def begin(cache_root: Path, request: EvaluationRequest, tick: Callable[[], object], tick_s: float) -> Start:
    """Before a candidate is evaluated. Calls ``tick`` while it waits; what that raises ends the waiting."""
    place = stored.entry(cache_root, request.source)
    if place.is_file():
        return Start("ready")
    began = time.monotonic()
    until = began + min(WAIT_S, BUDGET_SHARE * request.time_budget_s)
    try:
        while (claim := Claim.shared(place)) is None:
            if time.monotonic() > until:
                log.warning("build_not_awaited", candidate=request.candidate_id, waited_s=round(until - began, 1))
                return Start()
            tick()
            time.sleep(tick_s)
    except OSError as exc:  # a cache that cannot be used: build without it
        log.warning("no_build_claim", error=str(exc))
        return Start()
    waited_s = time.monotonic() - began
    if not place.is_file():
        return Start(claim=claim)
    return Start("waited" if waited_s > tick_s else "ready", waited_s, claim)
