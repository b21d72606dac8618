"""What a device worker does with one request: check its scope, claim it, run it in a cell, watch it, publish.

The cell is a process group of its own. While it runs, the task looks every 25 ms whether the scope was closed (then the
group is ended and the task is REVOKED) and whether the time budget is spent (then the status is ``hang``). Not here:
judging (specgen.evaluation), queues (specgen.scheduler). Nothing here reads LLM keys or the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

import redis
import structlog
from celery.exceptions import Ignore, Reject
from celery.states import REVOKED

from specgen.crash_points import crash_point
from specgen.errors import InfrastructureError
from specgen.evaluation import second_opinion
from specgen.evaluation.cell import Device
from specgen.scheduler import process_groups
from specgen.scheduler.keys import DELIVERIES_HEADER, WAIT_HEADER, Keys, script
from specgen.scheduler.pool import count, publish_result
from specgen.settings import EvaluationPolicy
from specgen.types import QUARANTINED, EvaluationRequest, EvaluationResult, Json, Status
from workers import ahead
from workers.cells import Cell, cell_class
from workers.health import Suspicion, Turn
from workers.patience import AWAY, patiently

WATCH_S = 0.025  # between two looks at the scope
ABORT_GRACE_S, HANG_GRACE_S = 2.0, 0.5
BUDGET_MARGIN_S = 0.5  # the cell enforces the budget itself and knows more; this is for one that cannot
MAX_DELIVERIES = 3
CLAIM_S = 30

log = structlog.get_logger(__name__)


class Unfit(Exception):
    """The device is quarantined: another must have the request."""


class Aborted(Exception):
    """The scope closed while the request ran."""


@dataclass
class Server:
    """One device, in the one pool process of its worker."""

    client: redis.Redis  # answering str
    keys: Keys
    worker: str
    device: Device
    policy: EvaluationPolicy
    cache_root: Path
    turn: Turn = field(default_factory=Turn)  # shared with the parent, which probes
    suspicion: Suspicion = field(default_factory=Suspicion)
    _cell: Cell | None = None
    _spare: Cell | None = None  # a GPU's next one, which starts while this one evaluates
    _recorded: int = 0
    _cell_type: type[Cell] = field(default_factory=cell_class)

    def prepare(self) -> None:
        """End what an earlier process left on this device, and warm a cell."""
        left = process_groups.parse(cast("str | None", self.client.hget(self.keys.groups, self.worker)))
        if left is not None and process_groups.end(left):
            log.warning("stale_group_ended", worker=self.worker, pgid=left.pgid)
        self.client.hdel(self.keys.groups, self.worker)
        self._warm()

    def shutdown(self) -> None:
        """End the warm cells."""
        self._discard(HANG_GRACE_S)
        self._cell, self._spare = self._spare, None
        self._discard(HANG_GRACE_S)

    def is_closed(self, scope: str) -> bool:
        """True once the scope's boundary has passed."""
        return bool(self.client.exists(self.keys.closed(scope)))

    def publish(self, request: EvaluationRequest, result: EvaluationResult) -> None:
        """Hand the result to the controller; a Redis that restarts is waited for."""
        patiently(lambda: publish_result(self.client, self.keys, request.scope, result))

    def claim(self, request: EvaluationRequest) -> str:
        """The start claim: ``mine``, ``held`` by another worker, or ``closed`` where the boundary has passed."""
        args = self.keys.args(request.scope, request.request_id, self.worker, CLAIM_S)
        start = self.client.register_script(script("start"))
        return str(patiently(lambda: start(args=args)))

    def unclaim(self, request: EvaluationRequest) -> None:
        """Whatever came of it."""
        patiently(lambda: self.client.delete(self.keys.start(request.request_id)))

    def evaluate(self, request: EvaluationRequest, queue_s: float) -> EvaluationResult:
        """Run it alone on the device. Raises Aborted if its scope closes meanwhile; the device is free then. Raises
        Unfit where a probe that ran first found the device so."""
        if not self.turn.take(lambda: self._closed_meanwhile(request.scope)):
            raise Aborted
        try:
            if patiently(lambda: self.client.hexists(f"{self.keys.prefix}:quarantined", self.worker)):
                raise Unfit
            result = self._run(request, queue_s)
        finally:
            self.turn.give()
        self.suspicion.learn(result.status, result.error)
        return result

    def _closed_meanwhile(self, scope: str) -> bool:
        with suppress(*AWAY):
            return self.is_closed(scope)
        return False

    def _run(self, request: EvaluationRequest, queue_s: float) -> EvaluationResult:
        started = time.time()
        if second_opinion.disputed(self.cache_root, request.source):
            self._discard(HANG_GRACE_S)
            self._cell = self._start(second_opinion.by_stock(self.policy))
        cell = self._cell or self._start()
        self._cell = cell
        grace, start = HANG_GRACE_S, ahead.Start()
        try:
            start = ahead.begin(self.cache_root, request, self._renewing(request), WATCH_S)
            cell.submit(request)
            self._start_spare()
            result = self._watch(request, cell) or _hang(request)
            if second_opinion.wanted(request, result, self.policy, self.cache_root):
                result = second_opinion.settle(request, result, self._by_stock(request), self.cache_root)
        except Aborted:
            grace = ABORT_GRACE_S
            raise
        finally:
            self._discard(grace)
            start.release()
            with suppress(*AWAY):  # of aborted ones, too: ``served`` counts them as well
                spent = time.time() - started
                self.client.hincrbyfloat(self.keys.counters, f"busy_s:{request.phase.value}", spent)
        if name := start.counter(result):
            count(self.client, self.keys, name)
        return result.model_copy(
            update={
                "environment": result.environment | start.notes(),
                "worker": self.worker,
                "device": self.device.name,
                "queue_s": queue_s,
                "device_s": time.time() - started,
                "finished_at": time.time(),
            }
        )

    def _by_stock(self, request: EvaluationRequest) -> EvaluationResult | None:
        """The same once more, with nothing from the façade. None where it did not end within the budget."""
        self._discard(HANG_GRACE_S)
        try:
            self._cell = cell = self._start(second_opinion.by_stock(self.policy))
        except InfrastructureError:
            return None
        cell.submit(request)
        return self._watch(request, cell)

    def _watch(self, request: EvaluationRequest, cell: Cell) -> EvaluationResult | None:
        deadline = time.monotonic() + request.time_budget_s + BUDGET_MARGIN_S
        look = self._renewing(request)
        while time.monotonic() < deadline:
            if (result := cell.poll(WATCH_S)) is not None:
                return result
            with suppress(*AWAY):
                self._remember(cell)
            look()
        return None

    def _renewing(self, request: EvaluationRequest) -> Callable[[], None]:
        """To be called every 25 ms: raises Aborted once the scope is closed, and keeps the start claim."""
        renew_at = time.monotonic() + CLAIM_S / 3

        def look() -> None:
            nonlocal renew_at
            with suppress(*AWAY):  # the evaluation goes on without Redis; its lease is renewed elsewhere
                if self.is_closed(request.scope):
                    raise Aborted
                if time.monotonic() > renew_at:
                    self.client.expire(self.keys.start(request.request_id), CLAIM_S)
                    renew_at = time.monotonic() + CLAIM_S / 3

        return look

    def _remember(self, cell: Cell) -> None:
        if cell.pgid and cell.pgid != self._recorded and (group := process_groups.record(cell.pgid)):
            self.client.hset(self.keys.groups, self.worker, group.model_dump_json())
            self._recorded = cell.pgid

    def _start(self, policy: EvaluationPolicy | None = None) -> Cell:
        cell = self._cell_type.start(self.device, policy or self.policy, self.cache_root)
        self._remember(cell)
        return cell

    def _warm(self) -> None:
        """The next cell, ahead of its request; where that fails the request itself meets the error."""
        try:
            self._cell = self._start()
        except InfrastructureError as exc:
            log.error("cell_not_started", worker=self.worker, error=str(exc))
            self.suspicion.say(f"no cell can be started: {exc}")

    def _start_spare(self) -> None:
        """On a GPU: starting takes three times as long as evaluating a fast kernel. A core that is a device has no
        room for it."""
        if self.device.backend == "cuda" and self._spare is None:
            with suppress(InfrastructureError):  # told when it is tried again, by `warm_next`
                self._spare = self._cell_type.start(self.device, self.policy, self.cache_root)

    def warm_next(self) -> None:
        """After use."""
        if self._cell is None:
            self._cell, self._spare = self._spare, None
        if self._cell is None:
            self._warm()
        else:
            with suppress(*AWAY):
                self._remember(self._cell)

    def _discard(self, grace_s: float) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.kill(grace_s)


SERVER: Server | None = None  # set by workers.device in the pool process


def serve(task: Any, payload: dict[str, Json]) -> dict[str, Json]:
    """The body of both tasks. Returns the outcome in short; the result itself goes to the scope's stream."""
    if SERVER is None:
        raise InfrastructureError("this worker has no device", "start it by `python -m workers.device`")
    begun = time.time()
    server, request = SERVER, EvaluationRequest.model_validate(payload)
    queue_s = _waited(task, request, begun)
    claim = server.claim(request)
    if claim == "closed":
        _revoke(server, task, request, terminated=False)
    if claim == "held":
        log.warning("evaluated_elsewhere", request=request.request_id)
        raise Ignore
    crash_point("evaluation.claimed")
    try:
        result = _evaluate(server, request, queue_s, int(task.request.get(DELIVERIES_HEADER) or 1))
    except Aborted:
        _revoke(server, task, request, terminated=True)
    except Unfit:
        log.warning("given_back", request=request.request_id, why="the device is quarantined")
        raise Reject("the device is quarantined", requeue=True) from None
    finally:
        server.unclaim(request)
    server.warm_next()
    return {"status": result.status.value, "speedup": result.speedup, "device_s": round(result.device_s, 3)}


def _waited(task: Any, request: EvaluationRequest, begun: float) -> float:
    """Seconds in the queue: as Redis measured them, else by the clocks of two hosts."""
    with suppress(TypeError, ValueError):
        return max(0.0, float(task.request.get(WAIT_HEADER)))
    return max(0.0, begun - request.enqueued_at) if request.enqueued_at else 0.0


def _evaluate(server: Server, request: EvaluationRequest, queue_s: float, deliveries: int) -> EvaluationResult:
    """Evaluate and publish; an error of ours is published too, so that the controller need not wait for it."""
    try:
        quarantined = deliveries > MAX_DELIVERIES
        result = _quarantined(server, request, deliveries) if quarantined else server.evaluate(request, queue_s)
    except (Aborted, Unfit):
        raise
    except Exception as exc:
        server.suspicion.learn(Status.INFRA_ERROR, str(exc))
        server.publish(request, _failed(request, f"{type(exc).__name__}: {exc}"))
        raise
    crash_point("evaluation.publishing")
    server.publish(request, result)
    crash_point("evaluation.published")
    return result


def _revoke(server: Server, task: Any, request: EvaluationRequest, *, terminated: bool) -> NoReturn:
    """Mark the task REVOKED in the backend and to event listeners, and end it without a result."""
    task.backend.mark_as_revoked(task.request.id, "scope closed", request=task.request, store_result=True)
    task.send_event("task-revoked", terminated=terminated, signum=None, expired=False, retry=False)
    if terminated:
        count(server.client, server.keys, "aborted")
    log.info("aborted", request=request.request_id, scope=request.scope, was_running=terminated, state=REVOKED)
    server.warm_next()
    raise Ignore


def _failed(request: EvaluationRequest, why: str, status: Status = Status.INFRA_ERROR) -> EvaluationResult:
    return EvaluationResult(
        request_id=request.request_id,
        candidate_id=request.candidate_id,
        phase=request.phase,
        status=status,
        error=why,
        finished_at=time.time(),
    )


def _quarantined(server: Server, request: EvaluationRequest, deliveries: int) -> EvaluationResult:
    count(server.client, server.keys, "quarantined")
    told = _failed(request, f"quarantined: its worker was lost {deliveries - 1} times while evaluating it")
    return told.model_copy(update={"labels": (QUARANTINED,)})


def _hang(request: EvaluationRequest) -> EvaluationResult:
    return _failed(request, f"did not finish within its budget of {request.time_budget_s:g} s", Status.HANG)
