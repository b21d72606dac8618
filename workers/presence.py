"""A device worker as the pool knows it: member, holder of its device, heartbeat, role, quarantine. The parent's side.

One thread says every two seconds that all of this still holds, and finds out what no longer does: another version in
the pool, another holder of the device, a worker that stopped consuming. Not here: subscriptions (`workers.device`).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import redis
import structlog

import specgen
from specgen.errors import EnvironmentLacking
from specgen.evaluation.cell import Device
from specgen.prompts import cpu_facts
from specgen.scheduler.elastic import QUEUES
from specgen.scheduler.keys import UNACKED_INDEX, Keys, is_away, script
from specgen.scheduler.members import Membership
from specgen.settings import Settings
from workers.claims import DeviceClaim
from workers.ending import REFUSED, give_up
from workers.labels import Gpu, identity, labels, worker_name
from workers.watchdog import AFTER_S, Watchdog, waiting

HEARTBEAT_S = 2.0

log = structlog.get_logger(__name__)


class Presence:
    """Registration, heartbeat and role of this worker in Redis. Thread-safe."""

    def __init__(self, settings: Settings, device: Device, gpu: Gpu | None = None, watchdog_s: float = AFTER_S) -> None:
        self.client = redis.Redis.from_url(settings.redis, decode_responses=True)
        self.keys = Keys(settings.prefix, settings.pool.order)
        self.name = worker_name(device)
        self.labels = labels(device, gpu)
        self.info = json.dumps(_about(device, gpu, self.labels))
        self.membership = Membership(self.client, self.keys, self.name, "device worker")
        self.claim = _claim(self.client, self.keys, settings, device, gpu)
        self._watchdog, self._served = Watchdog(watchdog_s), -1
        self._interval_s = min(HEARTBEAT_S, watchdog_s / 2)
        self._stop, self._stopping = threading.Event(), False
        self._fresh = True
        self._reason = ""  # of the quarantine

    def enter(self) -> None:
        """Take the device and join the pool. Raises EnvironmentLacking where either is refused, and holds neither
        then."""
        self.claim.take()
        try:
            self.membership.join()
        except BaseException:
            self.claim.release()
            raise

    def register(self) -> str:
        """Say that this device is there; returns its role. On a fresh start, what its predecessor held goes back."""
        if self._fresh:
            restored = self.client.eval(script("register"), 0, *self.keys.args(self.name, UNACKED_INDEX))
            log.info("registered", worker=self.name, labels=self.labels, restored=restored)
            self._fresh = False
        return self.role()

    def role(self) -> str:
        """One heartbeat; returns ``validate``, ``profile``, ``both``, or ``none`` while quarantined."""
        role = str(self.client.eval(script("heartbeat"), 0, *self.keys.args(self.name, self.info)))
        if self._reason and role != "none":  # a Redis that was wiped forgot it
            self._set_quarantine(self._reason)
            return "none"
        return role

    def quarantine(self, reason: str) -> bool:
        """Take nothing more, for this reason; without one, be released. True if that is a change."""
        self._reason = reason
        return self._set_quarantine(reason)

    def stopping(self) -> None:
        """A warm shutdown began: the worker takes nothing more, and that is right."""
        self._stopping = True

    def leave(self) -> None:
        """This device is gone; its role stays, and what it was sent but never started goes back at once."""
        self._stop.set()
        try:
            self.client.eval(script("leave"), 0, *self.keys.args(self.name, UNACKED_INDEX))
            self.membership.leave()
        except redis.RedisError as exc:
            log.warning("not_unregistered", worker=self.name, error=str(exc))
        self.claim.release()

    def start_heartbeat(self, reset: Callable[[], object], served: Callable[[], int]) -> None:
        """Every two seconds, until `leave`; a Redis that cannot be reached is tried again.

        ``reset`` takes the subscription up afresh; ``served`` counts the requests that this process has taken.
        """
        threading.Thread(target=self._beat, args=(reset, served), name="heartbeat", daemon=True).start()

    # -------------------------------------------------------------------------------------------- inside

    def _set_quarantine(self, reason: str) -> bool:
        with self.client.pipeline() as pipe:
            if reason:  # the newest reason counts
                pipe.eval(script("quarantine"), 0, *self.keys.args(self.name, ""))
            pipe.eval(script("quarantine"), 0, *self.keys.args(self.name, reason))
            *lifted, changed = pipe.execute()
        return bool(changed) and not any(lifted)

    def _beat(self, reset: Callable[[], object], served: Callable[[], int]) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                role = self.role()
                self.membership.beat()
                if not self.claim.renew():
                    give_up(f"{self.name}: another worker holds the device now", self.leave)
                self._watch(role, reset, served())
            except EnvironmentLacking as exc:
                give_up(exc.message, self.leave, REFUSED)
            except (redis.RedisError, OSError) as exc:
                log.warning("no_heartbeat", worker=self.name, error=str(exc), redis_away=is_away(exc))

    def _watch(self, role: str, reset: Callable[[], object], served: int) -> None:
        idle = served == self._served and not self.client.hexists(self.keys.busy, self.name)
        self._served = served
        queues = QUEUES[role] if role in QUEUES else frozenset[str]()
        lengths = cast("dict[str, str]", self.client.hgetall(f"{self.keys.prefix}:lengths"))
        starves = idle and not self._stopping and waiting(lengths, queues, self.labels) > 0
        verdict = self._watchdog.look(time.monotonic(), starves=starves)
        if verdict == "reset":
            log.warning("not_consuming", worker=self.name, then="role and connection taken up afresh")
            reset()
        elif verdict == "end":
            give_up(f"{self.name} is connected but does not consume", self.leave)


def _claim(client: redis.Redis, keys: Keys, settings: Settings, device: Device, gpu: Gpu | None) -> DeviceClaim:
    """Machine-wide for a GPU; a core's lock file lies with its pool's other files, where there is a place for them."""
    name, worker = identity(device, gpu), worker_name(device)
    if device.backend != "cpu":
        return DeviceClaim(client, keys, name, worker)
    home = settings.home_path if os.access(settings.home_path, os.W_OK) else None
    return DeviceClaim(client, keys, name, worker, pool=f"{settings.redis} {settings.prefix}", folder=home)


def _about(device: Device, gpu: Gpu | None, names: tuple[str, ...]) -> dict[str, Any]:
    """What the pool is told of this device; ``facts`` is what prompts say of it."""
    facts = cpu_facts() if device.backend == "cpu" else gpu.facts if gpu else None
    return {
        "device": device.name,
        "backend": device.backend,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "facts": asdict(facts) if facts else None,
        "labels": list(names),
        "version": specgen.__version__,
        "uuid": gpu.uuid if gpu else "",
    }
