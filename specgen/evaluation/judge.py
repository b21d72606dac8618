"""The judge of one cell: holds the reference, the seeds, the comparison, the clock and the verdict.

It runs in a process of its own (forked from the zygote, which has imported torch and run nothing) and talks to the
candidate's process through :class:`~specgen.evaluation.peer.Peer` alone. Its own failures are infrastructure and
are never blamed on the candidate. The order of steps is docs/evaluation.md's. Not here: starting and killing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import Any

import torch

from specgen.evaluation.assess import Assessment
from specgen.evaluation.environment import describe_environment
from specgen.evaluation.peer import Peer
from specgen.evaluation.supervisor import Bench
from specgen.evaluation.verdict import HostLock, Verdict
from specgen.evaluation.wire import receive_frame, send_frame
from specgen.types import EvaluationRequest, EvaluationResult, Status

log = logging.getLogger(__name__)
_START_LIMIT_S = 120.0


def serve(bench: Bench) -> int:
    """Wait for the sandbox, then for one request; answer it. Returns the exit code."""
    peer = Peer(bench)
    broken: Verdict | None = None
    try:
        peer.hello(_START_LIMIT_S)
        send_frame(bench.worker, json.dumps({"ready": True}).encode())
        _warm(bench, peer)
    except Verdict as verdict:
        broken = verdict
    try:
        request = EvaluationRequest.model_validate_json(receive_frame(bench.worker))
    except (EOFError, OSError):
        return 0  # nobody asks any more
    result = judge(bench, peer, request, broken)
    send_frame(bench.worker, b'{"result": ' + result.model_dump_json().encode() + b"}")
    return 0


def _warm(bench: Bench, peer: Peer) -> None:
    """Both contexts on a GPU and its library of products, while nobody waits, and while nobody is timed there: a device
    worker starts its next cell when one evaluates. Raises infra_error."""
    if bench.spec.backend != "cuda" or bench.spec.only_build:
        return
    with HostLock(bench.spec.device_name).building():
        with contextlib.suppress(RuntimeError, AssertionError):  # fails again, and with words, in the judgement
            torch.mm(*(torch.ones(8, 8, device="cuda") for _ in range(2)))
            torch.cuda.synchronize()
        peer.take_device(_START_LIMIT_S)


def judge(bench: Bench, peer: Peer, request: EvaluationRequest, broken: Verdict | None = None) -> EvaluationResult:
    """The result of one request, whatever happens."""
    start = time.monotonic()
    assessment = Assessment(bench, peer, request)
    fields: dict[str, Any] = {"status": Status.VALID}
    try:
        if broken is not None:
            raise broken
        if bench.spec.only_build:
            assessment.build()
        fields |= assessment.run()
    except Verdict as verdict:
        fields = {"status": verdict.status, "error": verdict.error, "rule": verdict.rule}
    except Exception as exc:
        log.exception("judge failed")
        fields = {"status": Status.INFRA_ERROR, "error": f"the judge failed: {type(exc).__name__}: {exc}"[:1000]}
    fields["error"] = assessment.sanitized(fields["status"], fields.get("error", ""))
    now = time.time()
    return EvaluationResult(
        request_id=request.request_id,
        candidate_id=request.candidate_id,
        phase=request.phase,
        build_route=assessment.build_route,
        build_s=assessment.build_s,
        device_s=time.monotonic() - start,
        queue_s=max(0.0, now - (time.monotonic() - start) - request.enqueued_at) if request.enqueued_at else 0.0,
        device=bench.spec.device_name,
        finished_at=now,
        environment=describe_environment(bench, request.problem) | assessment.notes,
        **fields,
    )
