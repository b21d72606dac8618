"""ElasticScheduler's core loop (Algorithm 2): at every boundary the split follows the queues' recorded maxima.

One process decides, by a lease; a standby may wait. Roles live in Redis, so workers keep them while no scheduler runs,
and read them again whenever they start or reconnect. Several jobs share the pool: boundaries that came together count
as one, with the larger of their maxima. Not here: Celery (workers/scheduler.py gives `Control`), the queues
(`transport`), what a boundary drops (`pool`).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Protocol, cast

import redis
import structlog

from specgen.scheduler.allocation import Role, Split, allocate, assign
from specgen.scheduler.keys import PROFILE, VALIDATE, Keys, script
from specgen.scheduler.pool import DeviceState, PoolView

LEASE_S = 10.0
REPAIR_S = 10.0  # between two comparisons of roles and subscriptions
STUCK_S = 30.0  # idle for that long while its queue holds requests: the worker stopped consuming
DECISIONS_KEPT = 10_000
QUEUES: dict[Role, frozenset[str]] = {
    "validate": frozenset({VALIDATE}),
    "profile": frozenset({PROFILE}),
    "both": frozenset({VALIDATE, PROFILE}),
}

log = structlog.get_logger(__name__)


class Control(Protocol):
    """How the scheduler reaches workers. Both calls may fail silently: repairs follow."""

    def apply_role(self, workers: list[str]) -> None:
        """Tell workers to read their role."""

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
        """Which queues each worker consumes; workers that do not answer are left out."""


@dataclass(frozen=True)
class Boundary:
    """Maxima since the last reallocation, as ``lua/close.lua`` hands them over."""

    scope: str
    l_val: int
    l_prof: int
    dropped: int = 0


@dataclass(frozen=True)
class Decision:
    """One reallocation, as recorded in the stream ``<prefix>:decisions``. ``scope`` is empty where devices came or
    went, or a repair was needed (``policy`` says which: ``paper``, ``flexible``; ``reason`` why)."""

    at: float  # unix seconds
    reason: str  # boundary | devices | repair | stuck
    scope: str
    policy: str
    devices: int
    validators: int
    profilers: int
    max_validate: int
    max_profile: int
    moved: int
    dropped: int


@dataclass
class ElasticScheduler:
    """Call `step` again and again, or `run`. All state but the watch on stuck workers is in Redis."""

    client: redis.Redis  # answering str
    keys: Keys
    control: Control
    policy: str = "paper"
    interval_s: float = 0.5
    name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")
    _last: Boundary = field(default_factory=lambda: Boundary("", 0, 0))
    _repaired: float = 0.0
    _idle_since: dict[str, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``: then the lease is given up at once. A Redis that cannot be reached is waited for."""
        while not stop.is_set():
            try:
                self.step()
            except (redis.ConnectionError, redis.TimeoutError) as exc:
                log.warning("redis_unreachable", error=str(exc))
                stop.wait(self.interval_s)
        self.resign()

    def step(self) -> Decision | None:
        """Wait at most ``interval_s`` for a boundary, and decide if there is a reason to."""
        if not self.lead():
            time.sleep(self.interval_s)
            return None
        boundaries = self._boundaries()
        view = self._view()
        if boundaries:
            self._last = merge(boundaries)
            return self.reallocate(view, "boundary", self._last)
        if self._out_of_place(view):
            return self.reallocate(view, "devices", self._last)
        self._repair(view)
        return None

    def lead(self) -> bool:
        """Take or renew the lease; False while another scheduler holds it."""
        if self.client.set(self.keys.leader, self.name, nx=True, px=int(LEASE_S * 1000)):
            return True
        if self.client.get(self.keys.leader) != self.name:
            return False
        return bool(self.client.pexpire(self.keys.leader, int(LEASE_S * 1000)))

    def resign(self) -> None:
        """Give the lease up."""
        try:
            if self.client.get(self.keys.leader) == self.name:
                self.client.delete(self.keys.leader)
        except (redis.ConnectionError, redis.TimeoutError) as exc:
            log.warning("lease_not_given_up", error=str(exc), lapses_in_s=LEASE_S)

    def reallocate(self, view: PoolView, reason: str, boundary: Boundary) -> Decision:
        """Algorithm 2's Allocate and the moves that follow from it."""
        split = allocate(boundary.l_val, boundary.l_prof, len(view.devices), flexible=self.policy == "flexible")
        known = self._known_roles()
        current: dict[str, Role | None] = {device.worker: known.get(device.worker) for device in view.devices}
        roles = assign(split, current, [device.worker for device in view.devices if device.busy])
        moved = [worker for worker, role in roles.items() if current[worker] != role]
        if moved:
            with self.client.pipeline() as pipe:
                pipe.hset(self.keys.roles, mapping={worker: roles[worker] for worker in moved})
                pipe.incr(self.keys.epoch)
                pipe.execute()
            self.control.apply_role(moved)
        decision = self._decision(reason, boundary, split, len(moved))
        self._record(decision)
        return decision

    # -------------------------------------------------------------------------------------------- inside

    def _boundaries(self) -> list[Boundary]:
        first = self.client.brpop([self.keys.boundaries], timeout=self.interval_s)
        if first is None:
            return []
        more = self.client.rpop(self.keys.boundaries, 1000) or []
        texts = [cast("tuple[str, str]", first)[1], *cast("list[str]", more)]
        return [Boundary(**json.loads(text)) for text in texts]

    def _view(self) -> PoolView:
        return PoolView.parse(self.client.eval(script("state"), 0, *self.keys.args()))

    def _known_roles(self) -> dict[str, Role]:
        return cast("dict[str, Role]", self.client.hgetall(self.keys.roles))

    def _out_of_place(self, view: PoolView) -> bool:
        """Devices came or went: the roles of those that are there are not what their number asks for."""
        known = self._known_roles()
        present: dict[str, Role | None] = {device.worker: known.get(device.worker) for device in view.devices}
        split = allocate(self._last.l_val, self._last.l_prof, len(view.devices), flexible=self.policy == "flexible")
        roles = list(present.values())
        have = (roles.count("validate"), roles.count("profile"), roles.count("both"))
        return have != (split.validators, split.profilers, split.shared)

    def _repair(self, view: PoolView) -> None:
        """Compare what workers consume with their roles, and look for workers that stopped consuming."""
        stuck = self._stuck(view)
        if time.monotonic() - self._repaired < REPAIR_S and not stuck:
            return
        self._repaired = time.monotonic()
        consumed = self.control.subscriptions([device.worker for device in view.devices])
        wrong = [d.worker for d in view.devices if d.worker in consumed and consumed[d.worker] != QUEUES[d.role]]
        for reason, workers in (("repair", wrong), ("stuck", stuck)):
            if workers:
                log.warning("workers_repaired", reason=reason, workers=workers)
                self.control.apply_role(workers)
                split = allocate(self._last.l_val, self._last.l_prof, len(view.devices))
                self._record(self._decision(reason, Boundary("", 0, 0), split, len(workers)))

    def _stuck(self, view: PoolView) -> list[str]:
        now = time.monotonic()
        waiting = {VALIDATE: view.validate_queue, PROFILE: view.profile_queue}

        def starves(device: DeviceState) -> bool:
            return not device.busy and any(waiting[queue] for queue in QUEUES[device.role])

        self._idle_since = {d.worker: self._idle_since.get(d.worker, now) for d in view.devices if starves(d)}
        stuck = [worker for worker, since in self._idle_since.items() if now - since >= STUCK_S]
        for worker in stuck:
            self._idle_since[worker] = now
        return stuck

    def _decision(self, reason: str, boundary: Boundary, split: Split, moved: int) -> Decision:
        return Decision(
            at=time.time(),
            reason=reason,
            scope=boundary.scope if reason == "boundary" else "",
            policy=self.policy,
            devices=split.devices,
            validators=split.validators + split.shared,
            profilers=split.profilers + split.shared,
            max_validate=boundary.l_val,
            max_profile=boundary.l_prof,
            moved=moved,
            dropped=boundary.dropped if reason == "boundary" else 0,
        )

    def _record(self, decision: Decision) -> None:
        log.info("decision", **asdict(decision))
        fields = {name: str(value) for name, value in asdict(decision).items()}
        self.client.xadd(self.keys.decisions, dict(fields.items()), maxlen=DECISIONS_KEPT)


def merge(boundaries: list[Boundary]) -> Boundary:
    """Boundaries that came together, as one: the larger maxima, all that was dropped, the latest scope."""
    return Boundary(
        scope=boundaries[-1].scope,
        l_val=max(boundary.l_val for boundary in boundaries),
        l_prof=max(boundary.l_prof for boundary in boundaries),
        dropped=sum(boundary.dropped for boundary in boundaries),
    )
