"""When a device is probed, and what follows: a device that is not fit is quarantined, shown, and probed again.

Probed when its worker starts, and when three evaluations in a row were our own fault (``infra_error``) or no cell could
be started. Under suspicion it is quarantined first, so that it takes nothing more, and released if the probe finds it
fit. The worker takes requests while its first probe runs (that takes seconds: torch is loaded), but evaluation and
probe take turns, so no timing is disturbed and a device that turns out to be unfit gives the request back. Not here:
the probe itself (`workers.probing`), Redis and subscriptions (`workers.presence`, `workers.device`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from specgen.types import Status
from workers.probing import Finding, Probe, Running

AGAIN_S = 60.0  # between two probes of a quarantined device; SPECGEN_PROBE_AGAIN_S
FAILURES = 3  # evaluations in a row with infra_error
LOOK_S = 0.02

log = structlog.get_logger(__name__)


class Turn:
    """Whose the device is: an evaluation's (the pool process) or a probe's (the parent). Made before the fork, held by
    processes, and given up by one that dies."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("specgen-turn")

    def take(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait for it; False where ``give_up`` (asked every 20 ms) says so."""
        while True:
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if give_up():
                return False
            time.sleep(LOOK_S)

    def give(self) -> None:
        """Let the other have it; harmless where it is not held."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


@dataclass
class Suspicion:
    """The pool process tells the parent that something is wrong with the device. Made before the fork."""

    _failures: int = 0
    _pipe: tuple[int, int] = field(default_factory=lambda: os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))

    def learn(self, status: Status, error: str) -> None:
        """How an evaluation ended."""
        self._failures = self._failures + 1 if status is Status.INFRA_ERROR else 0
        if self._failures >= FAILURES:
            self._failures = 0
            self.say(f"{FAILURES} evaluations in a row were infra_error, the last: {error}")

    def say(self, reason: str) -> None:
        """Have the device probed."""
        with contextlib.suppress(BlockingIOError):  # the parent has enough to read already
            os.write(self._pipe[1], (" ".join(reason.split())[:300] + "\n").encode())

    def heard(self, timeout_s: float) -> str:
        """The parent's side: the first reason that came within so long, or nothing; later ones are forgotten."""
        if not select.select([self._pipe[0]], [], [], timeout_s)[0]:
            return ""
        return os.read(self._pipe[0], 1 << 16).decode(errors="replace").split("\n")[0]


@dataclass
class Health:
    """`begin` before the worker consumes, `run` in a thread of the parent. ``isolate`` and ``release`` return once the
    worker takes nothing more, or takes requests again."""

    probe: Probe
    turn: Turn
    suspicion: Suspicion
    isolate: Callable[[str], object] = lambda _: None
    release: Callable[[], object] = lambda: None
    again_s: float = AGAIN_S
    _quarantined: bool = False
    _first: Running | None = None

    def begin(self) -> None:
        """Start the first probe; the device is its until `run` has seen the end of it."""
        self.turn.take()
        self._first = self.probe.start()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``."""
        if self._first is not None:
            self._judge(self.probe.wait(self._first))
        again_at = time.monotonic() + self.again_s
        while not stop.is_set():
            if reason := self.suspicion.heard(0.5):
                self._quarantined = True
                log.warning("device_suspected", why=reason)
                self.isolate(f"being probed: {reason}")
            if stop.is_set() or not (reason or (self._quarantined and time.monotonic() >= again_at)):
                continue
            if self.turn.take(stop.is_set):
                self._judge(self.probe.wait(self.probe.start()))
            again_at = time.monotonic() + self.again_s

    def _judge(self, finding: Finding) -> None:
        """What the probe says holds before the device is anyone's again."""
        try:
            if finding.why:
                log.error("device_unfit", why=finding.why, seconds=finding.seconds, again_in_s=self.again_s)
                self._quarantined = True
                self.isolate(finding.why)
            else:
                log.info("device_fit", seconds=finding.seconds)
                self._quarantined = False
                self.release()
        finally:
            self.turn.give()
