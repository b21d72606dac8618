"""R6, R7, R10: single requests to the devices, as an iteration worker sends them, with nothing else going on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from typing import Any, cast

from benchmarks.faults.audit import leftovers
from benchmarks.faults.cases import Case, Result
from benchmarks.faults.kills import role_of
from benchmarks.faults.system import System, children_of
from specgen.scheduler.pool import RedisPool
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, Status

HANG_BUDGET_S = 1.0
HANG = {"sleep_s": 600, "ignore_sigterm": True, "children": 2, "deaf": True}
ANSWER_S = 60.0


class Scope:
    """A scope of its own: submit, await results, close."""

    def __init__(self, system: System, name: str) -> None:
        from workers.app import send_request  # reads the settings, which the system has put into the environment

        self.system, self.job = system, f"{name}-{uuid.uuid4().hex[:8]}"
        self._send = send_request

    def _run(self, *requests: EvaluationRequest, close: bool = False) -> None:
        async def work() -> None:
            pool = RedisPool(self.system.valkey.url, self._send)
            try:
                if close:
                    await pool.close(f"{self.job}/0")
                for request in requests:
                    await pool.submit(request)
            finally:
                await pool.aclose()

        asyncio.run(work())

    def submit(self, order: dict[str, Any], budget_s: float = 30.0, phase: Phase = Phase.VALIDATE) -> str:
        """Enqueue an evaluation that does as ordered; its id."""
        request = EvaluationRequest(
            request_id=uuid.uuid4().hex,
            job_id=self.job,
            iteration=0,
            candidate_id=uuid.uuid4().hex,
            phase=phase,
            origin=Origin.MAIN,
            source=json.dumps(order),
            problem=ProblemSpec(name="p", source="x"),
            time_budget_s=budget_s,
        )
        self._run(request)
        return request.request_id

    def results(self) -> dict[str, EvaluationResult]:
        """What was published, by request."""
        entries = cast("Any", self.system.redis.xrange(self.system.keys.results(f"{self.job}/0")))
        found = [EvaluationResult.model_validate_json(fields["result"]) for _, fields in entries]
        return {result.request_id: result for result in found}

    def starts(self, request_id: str) -> list[float]:
        """When its evaluation was begun, each time (unix seconds)."""
        lines = [line.split() for line in self.system.log.read_text().splitlines()] if self.system.log.exists() else []
        return [float(line[4]) for line in lines if line[0] == "start" and line[1] == request_id]

    def close(self) -> None:
        """The boundary."""
        self._run(close=True)


def recovery_case(system: System, case: Case) -> Result:
    """R6: a worker dies with its request; seconds until it is evaluated again. ``gone``: the worker stays away, so that
    another one has to take the message over; ``restarted``: its successor of the same name does; ``pool process``: only
    the evaluating process dies, as by a crashing driver."""
    result, scope = Result(case.key, case.line, case.kind), Scope(system, "recovery")
    for _ in range(case.faults):
        _die_once(system, scope, case.kind, result)
        system.wait(lambda: len(system.view().devices) == system.size.devices, ANSWER_S)
    scope.close()
    return result


def _die_once(system: System, scope: Scope, kind: str, result: Result) -> None:
    phase = Phase.PROFILE if result.faults % 2 else Phase.VALIDATE  # of one there is often a single device
    request = scope.submit({"sleep_s": 1.0, "deaf": False}, phase=phase)
    system.wait(lambda: scope.starts(request), ANSWER_S, 0.01)
    worker = next((one.worker for one in system.view().devices if one.busy), None)
    if worker is None:
        result.notes.append("nobody was busy with the request")
        return
    name, died = role_of(worker), time.time()
    parent = system.children[name].process.pid
    if kind == "gone":
        system.held.add(name)
    if kind == "pool process":
        os.kill(children_of(parent)[0], signal.SIGKILL)
    else:
        os.killpg(parent, signal.SIGKILL)
    result.faults += 1
    if system.wait(lambda: len(scope.starts(request)) > 1, ANSWER_S, 0.02):
        result.samples.append(scope.starts(request)[1] - died)
    else:
        result.notes.append(f"stuck: {request} was not begun again within {ANSWER_S:g} s")
    result.schedule.append(f"{name} killed during {phase}, begun again after {result.samples[-1:]} s")
    system.held.discard(name)
    if not system.wait(lambda: request in scope.results(), ANSWER_S):
        result.notes.append(f"lost: {request} has no result")


def hang_case(system: System, case: Case) -> Result:
    """R7: evaluations that never end, with children, deaf to SIGTERM: by how much each overruns its budget."""
    result, scope = Result(case.key, case.line, case.kind), Scope(system, "hang")
    wanted = [scope.submit(HANG, HANG_BUDGET_S) for _ in range(case.faults)]
    system.wait(lambda: len(scope.results()) >= len(wanted), ANSWER_S + case.faults * 2)
    for request in wanted:
        answer = scope.results().get(request)
        if answer is None or answer.status is not Status.HANG:
            result.notes.append(f"lost: {request} gave {answer.status if answer else 'nothing'}")
        else:
            result.samples.append(answer.device_s - HANG_BUDGET_S)
    result.faults = len(wanted)
    scope.close()
    if not system.wait(lambda: not leftovers(system), 10, 0.5):
        result.notes.append(f"left: {leftovers(system)}")
    result.counts["left"] = len(system.orphans())
    return result


def poison_case(system: System, case: Case) -> Result:
    """R10: a message that kills its worker every time."""
    result, scope = Result(case.key, case.line, case.kind), Scope(system, "poison")
    for _ in range(case.faults):
        _poison(system, scope, result)
    scope.close()
    return result


def _poison(system: System, scope: Scope, result: Result) -> None:
    request = scope.submit({"kill_worker": True})
    system.wait(lambda: request in scope.results(), ANSWER_S * 2)
    answer, deliveries = scope.results().get(request), len(scope.starts(request))
    told = answer is not None and answer.status is Status.INFRA_ERROR and "quarantined" in answer.error
    result.faults += 1
    result.counts["told"] = result.count("told") + told
    result.counts["after_three"] = result.count("after_three") + (deliveries == 3)
    result.schedule.append(f"{deliveries} deliveries, {answer.error if answer else 'no answer'}")
    if not told or deliveries != 3:
        result.notes.append(f"not as it should be: {result.schedule[-1]}")
