"""ElasticScheduler's core loop (Algorithm 2): at every boundary the split follows the queues' recorded maxima.

One process decides, by a lease that each of its writes is checked against; a standby may wait. Roles live in Redis, so
workers keep them while no scheduler runs, and read them again whenever they start or reconnect. Several jobs share the
pool: boundaries that came together count as one, with the larger of their maxima. A boundary is taken off its list
only with the decision that answers it. While nothing happens a step costs two scripts (``lead``, ``pulse``), however
many devices there are. Not here: the rule (`allocation`), Celery (workers/scheduler.py gives `Control`), the queues
(`transport`), what a boundary drops (`pool`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, cast

import redis
import structlog

from specgen.crash_points import crash_point
from specgen.scheduler.allocation import Labels, Load, Role, Worker, plan
from specgen.scheduler.boundaries import Boundary, Decision, Reason, merge, parse_load
from specgen.scheduler.keys import PROFILE, VALIDATE, Keys, is_away, script
from specgen.scheduler.pool import PoolView
from specgen.scheduler.service_times import ServiceTimes

LEASE_S = 10.0
LOOK_S = 60.0  # the whole pool is read again at the latest then: a worker may have come back with other labels
REPAIR_S = 10.0  # between two comparisons of roles and subscriptions
REPAIR_WORKERS = 50  # compared at a time: each is asked, and answers, by a message
STUCK_S = 30.0  # idle for that long while its queue holds requests: the worker stopped consuming
SWEEP_S = 60.0
FORGET_S = 3600.0  # a device gone for that long is a new one when it comes back
AWAY_LOG_S = 10.0
DECISIONS_KEPT = 10_000
QUEUES: dict[Role, frozenset[str]] = {
    "validate": frozenset({VALIDATE}),
    "profile": frozenset({PROFILE}),
    "both": frozenset({VALIDATE, PROFILE}),
}
NEVER = ("", "")
Policy = Literal["paper", "flexible", "service_time"]

log = structlog.get_logger(__name__)


class Control(Protocol):
    """How the scheduler reaches workers. Both calls may fail silently: repairs follow."""

    def apply_role(self, workers: list[str]) -> None:
        """Tell workers to read their role."""

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
        """Which queues each worker consumes; workers that do not answer are left out."""


@dataclass
class ElasticScheduler:
    """Call `step` again and again, or `run`. Whatever a successor needs is in Redis."""

    client: redis.Redis  # answering str
    keys: Keys
    control: Control
    policy: Policy = "paper"
    interval_s: float = 0.5
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")
    _load: Load | None = None  # None: not read from Redis yet
    _workers: tuple[Worker, ...] = ()
    _turns: dict[Labels, int] = field(default_factory=dict)
    _times: ServiceTimes = field(default_factory=ServiceTimes)
    _pulse: tuple[str, str] = NEVER
    _due: dict[str, float] = field(default_factory=dict)
    _checked: int = 0
    _unproven: set[str] = field(default_factory=set)
    _idle_since: dict[str, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``: then the lease is given up at once. A Redis that cannot be used is waited for."""
        away_at: float | None = None
        while not stop.is_set():
            try:
                self.step()
                if away_at is not None:
                    log.info("redis_back")
                away_at = None
            except (redis.RedisError, OSError) as exc:
                if not is_away(exc):
                    raise
                self._pulse = NEVER  # what was seen may not have been acted upon
                if away_at is None or time.monotonic() - away_at >= AWAY_LOG_S:
                    log.warning("redis_away", error=str(exc), roles="stay as they are")
                    away_at = time.monotonic()
                stop.wait(self.interval_s)
        self.resign()

    def step(self) -> Decision | None:
        """Wait at most ``interval_s`` for a boundary, and decide if there is a reason to."""
        if not self.lead():
            self._load, self._turns, self._pulse = None, {}, NEVER  # another's decisions count from now on
            time.sleep(self.interval_s)
            return None
        if self._load is None:
            self._load = self._last_load()
        if boundaries := self._boundaries():
            return self._at_boundary(boundaries)
        self._every("sweep", SWEEP_S, self._sweep)
        changed, starving = self._feel()
        if changed:
            self._look()
            if decision := self._reallocate("devices", Boundary(""), None):
                return decision
        self._repair(starving)
        return None

    def lead(self) -> bool:
        """Take or renew the lease; False while another scheduler holds it."""
        return bool(self._run("lead", self.name, int(LEASE_S * 1000)))

    def resign(self) -> None:
        """Give the lease up."""
        try:
            self._run("lead", self.name, 0)
        except (redis.RedisError, OSError) as exc:
            log.warning("lease_not_given_up", error=str(exc), lapses_in_s=LEASE_S)

    # ------------------------------------------------------------------------------------------ deciding

    def _at_boundary(self, boundaries: list[Boundary]) -> Decision | None:
        boundary = merge(boundaries)
        scopes = cast("list[str]", self.client.zrange(self.keys.open, 0, -1))
        jobs = {scope.rpartition("/")[0] for scope in scopes} | {one.job for one in boundaries}
        factors = self._times.learn(self._counters()) if self.policy == "service_time" else (1, 1)
        maxima = {label: (val * factors[0], prof * factors[1]) for label, (val, prof) in boundary.maxima.items()}
        self._load = Load(maxima, len(jobs))
        if self._feel()[0]:
            self._look()
        else:
            self._look_who_is_busy()
        return self._reallocate("boundary", boundary, self._turns, answered=len(boundaries))

    def _reallocate(
        self, reason: Reason, boundary: Boundary, turns: dict[Labels, int] | None, *, answered: int = 0
    ) -> Decision | None:
        """The moves that the load asks for, and their record. None where there is nothing to do, or where the lease
        turns out to be another's: then nothing was written."""
        load = self._load or Load()
        plans = plan(self._workers, load, flexible=self.policy == "flexible", turns=turns)
        moves = {worker: role for group in plans for worker, role in group.moves.items()}
        if not moves and not answered:
            return None
        if moves:
            pairs = [text for pair in moves.items() for text in pair]
            epoch = int(cast("int", self._run("assign", self.name, *pairs)))
            if epoch < 0:
                log.warning("lease_lost", unwritten="roles")
                return None
            self._pulse = (str(epoch), self._pulse[1])
            self._workers = tuple(replace(one, role=moves.get(one.name, one.role)) for one in self._workers)
            self._unproven |= set(moves)
            crash_point("roles.written")
            self.control.apply_role(list(moves))
        if answered:
            self._turns = {group.labels: group.turn for group in plans}
        return self._record(Decision.of(reason, boundary, self.policy, plans, load), answered)

    def _record(self, decision: Decision, answered: int = 0) -> Decision | None:
        fields = [text for name, value in asdict(decision).items() for text in (name, str(value))]
        if not self._run("decide", self.name, answered, DECISIONS_KEPT, *fields):
            log.warning("lease_lost", unwritten="decision")
            return None
        log.info("decision", **{name: value for name, value in asdict(decision).items() if name != "load"})
        return decision

    # ------------------------------------------------------------------------------------------- reading

    def _boundaries(self) -> list[Boundary]:
        """All that were not answered yet, oldest first. They stay on the list."""
        boundaries = self.keys.boundaries
        timeout = cast("int", self.interval_s)  # Redis takes fractions
        if self.client.blmove(boundaries, boundaries, timeout, src="RIGHT", dest="RIGHT") is None:
            return []
        return [Boundary.parse(text) for text in reversed(cast("list[str]", self.client.lrange(boundaries, 0, -1)))]

    def _feel(self) -> tuple[bool, list[str]]:
        """Whether devices came, went or changed roles since the last look, or that one is old; and who starves."""
        epoch, digest, *starving = cast("list[str]", self._run("pulse"))
        changed = (epoch, digest) != self._pulse or self._is_due("look")
        self._pulse = (epoch, digest)
        return changed, starving

    def _look_who_is_busy(self) -> None:
        """A boundary needs no more, where the devices are those of the last look."""
        busy = set(cast("list[str]", self.client.hkeys(self.keys.busy)))
        self._workers = tuple(replace(worker, busy=worker.name in busy) for worker in self._workers)

    def _look(self) -> None:
        """The devices that can serve, with their labels and roles."""
        view = PoolView.parse(self._run("state"))
        roles = cast("dict[str, Role]", self.client.hgetall(self.keys.roles))
        self._workers = tuple(
            Worker(device.worker, tuple(sorted(device.labels)), roles.get(device.worker), bool(device.busy))
            for device in view.devices
            if not device.quarantined
        )
        self._due["look"] = time.monotonic() + LOOK_S

    def _last_load(self) -> Load:
        """Of the last decision, whoever made it: taking the lease over changes nothing."""
        for _, fields in cast("list[tuple[str, dict[str, str]]]", self.client.xrevrange(self.keys.decisions, count=1)):
            if text := fields.get("load"):
                return parse_load(text)
        return Load()

    def _counters(self) -> dict[str, str]:
        return cast("dict[str, str]", self.client.hgetall(self.keys.counters))

    # ----------------------------------------------------------------------------------------- repairing

    def _repair(self, starving: list[str]) -> None:
        """Compare what workers consume with their roles, some at a time and those first that changed theirs, and look
        for workers that stopped consuming."""
        if stuck := self._stuck(starving):
            self._tell("stuck", stuck)
        if not self._is_due("repair") or not self._workers:
            return
        self._due["repair"] = time.monotonic() + REPAIR_S
        roles = {worker.name: worker.role or "both" for worker in self._workers}
        consumed = self.control.subscriptions(self._next_to_check(list(roles)))
        self._unproven -= set(consumed)
        if wrong := [name for name, queues in consumed.items() if queues != QUEUES[roles[name]]]:
            self._unproven |= set(wrong)
            self._tell("repair", wrong)

    def _next_to_check(self, workers: list[str]) -> list[str]:
        self._unproven &= set(workers)
        first = sorted(self._unproven)[:REPAIR_WORKERS]
        room = min(REPAIR_WORKERS, len(workers)) - len(first)
        start = self._checked % len(workers)
        rest = [name for name in workers[start:] + workers[:start] if name not in self._unproven][:room]
        self._checked = start + room
        return first + rest

    def _stuck(self, starving: list[str]) -> list[str]:
        now = time.monotonic()
        self._idle_since = {worker: self._idle_since.get(worker, now) for worker in starving}
        stuck = [worker for worker, since in self._idle_since.items() if now - since >= STUCK_S]
        for worker in stuck:
            self._idle_since[worker] = now
        return stuck

    def _tell(self, reason: Reason, workers: list[str]) -> None:
        log.warning("workers_repaired", reason=reason, workers=workers)
        self.control.apply_role(workers)
        roles = [worker.role or "both" for worker in self._workers]
        both = roles.count("both")
        decision = Decision.of(reason, Boundary(""), self.policy, [], self._load or Load())
        self._record(
            replace(
                decision,
                devices=len(roles),
                validators=roles.count("validate") + both,
                profilers=roles.count("profile") + both,
                moved=len(workers),
            )
        )

    def _sweep(self) -> None:
        if (forgotten := int(cast("int", self._run("forget", self.name, FORGET_S)))) > 0:
            log.info("devices_forgotten", devices=forgotten, gone_for_s=FORGET_S)

    # ------------------------------------------------------------------------------------------- helpers

    def _is_due(self, what: str) -> bool:
        """True once the time noted for it has come; at first, at once."""
        return time.monotonic() >= self._due.get(what, 0.0)

    def _every(self, what: str, interval_s: float, act: Callable[[], None]) -> None:
        if self._is_due(what):
            self._due[what] = time.monotonic() + interval_s
            act()

    def _run(self, name: str, *args: str | int | float) -> Any:
        return self.client.eval(script(name), 0, *self.keys.args(*args))
