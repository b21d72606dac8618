"""Builds ahead of their turn: which of the requests that wait, how many at once, and when one is given up.

A request is looked at, never taken: its ticket, its lease and the order in which devices serve stay as they are.
Nothing of what a build says counts; what it leaves is a tar in this host's cache, put there as an evaluation puts its
own. A build that fails is forgotten, and fails again where it is judged. Not here: the process around it
(`workers.builder`), the device's side (`workers.ahead`).
"""

from __future__ import annotations

import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import structlog

from specgen.errors import InfrastructureError, SettingsError
from specgen.evaluation import stored
from specgen.evaluation.cell import Ahead, Cell, Device
from specgen.evaluation.stored import Claim
from specgen.scheduler.keys import DEVICE_QUEUES
from specgen.scheduler.waiting import Waiting
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult

LOOK_AT = 64  # requests of a queue: further ahead of the devices there is no hurry
KEPT = 10_000  # requests and candidates that are remembered
GRACE_S = 0.5
FIRST_INDEX = 1000  # no device has it: sandboxes of builds have user ids of their own
INDICES = 1000
WARM = 4  # sandboxes that wait for a build, at most
READY_S = 90.0  # one that has not imported torch by then has died: a cold file system takes half a minute
GIB = 1 << 30
BUILD_GIB = 2  # what a compiler that reads all of torch's headers needs
SHARE = 0.3  # of the memory; the devices have the rest
MOST = 16

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Target:
    """Devices of one kind on this host. ``arch`` is their CUDA architecture, as torch writes it."""

    backend: Literal["cpu", "cuda"]
    labels: tuple[str, ...]
    arch: str = ""


@dataclass(frozen=True)
class Plan:
    """How many builds at once, and on which cores."""

    slots: int
    cores: frozenset[int]
    memory_bytes: int  # each

    @classmethod
    def of(cls, cores: Sequence[int], cpu_devices: Sequence[int], gpus: int, memory_bytes: int) -> Plan:
        """The cores that no device has: a CPU device has its own, a GPU's worker needs one for itself.

        A host of GPUs builds in any case, one at a time. One whose every core is a device does not, since builds would
        take from the devices what they save them. Raises SettingsError.
        """
        free = sorted(set(cores) - set(cpu_devices))
        if not free:
            raise SettingsError(
                "every core of this host is a device: none is left for a builder", "leave one: fewer CPU devices"
            )
        spare = len(free) - gpus
        budget = int(memory_bytes * SHARE)
        slots = max(1, min(spare, budget // (BUILD_GIB * GIB), MOST))
        each = max(BUILD_GIB * GIB, budget // slots)
        return cls(slots, frozenset(free), each)


def memory_here() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Site:
    """One build that runs. ``tags`` are the requests that it is for."""

    target: Target
    cell: Cell
    claim: Claim
    request: EvaluationRequest
    tags: set[str]
    started: float = field(default_factory=time.monotonic)


@dataclass
class Waiter:
    """A sandbox that waits for a build."""

    cell: Cell
    started: float = field(default_factory=time.monotonic)

    @property
    def ready(self) -> bool:
        """It has imported torch."""
        return self.cell.wait_ready(0.001)


class Yard:
    """All builds of one process; `look` and `reap` are called in turns. ``count`` adds one to a counter of the pool."""

    def __init__(
        self,
        waiting: Waiting,
        targets: Sequence[Target],
        plan: Plan,
        policy: EvaluationPolicy,
        cache_root: Path,
        count: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._waiting, self._targets, self._plan = waiting, targets, plan
        self._policy, self._cache_root, self._count = policy, cache_root, count
        self._warm: dict[Target, list[Waiter]] = {target: [] for target in targets}
        self._known: OrderedDict[str, str] = OrderedDict()  # tag -> candidate; empty: nothing to build
        self._settled: OrderedDict[str, None] = OrderedDict()  # candidates that need no build, or had it
        self._indices = itertools.count()
        self.sites: list[Site] = []

    def warm(self) -> None:
        """Sandboxes for the next builds of each kind, started before they are needed. Raises InfrastructureError."""
        for target, cells in self._warm.items():
            for old in [cell for cell in cells if not cell.ready and time.monotonic() - cell.started > READY_S]:
                log.warning("sandbox_not_ready", after_s=READY_S)
                cells.remove(old)
                old.cell.kill(GRACE_S)
            while len(cells) < min(WARM, self._plan.slots) and self._starting + len(self.sites) < self._plan.slots:
                cells.append(Waiter(self._start(target)))

    @property
    def _starting(self) -> int:
        """Sandboxes that import torch, which takes a core as a build does; a device may wait for a build."""
        return sum(not waiter.ready for cells in self._warm.values() for waiter in cells)

    def look(self) -> None:
        """Begin what waits, as far as there is room, and stop what nobody waits for.

        Raises redis.RedisError, and InfrastructureError where the cache cannot be used.
        """
        self._stop_unwanted()
        for target in self._targets:
            for queue in DEVICE_QUEUES:
                if self._room(target):
                    for tag in self._waiting.tags(queue, target.labels, LOOK_AT):
                        if self._room(target):
                            self._consider(tag, target)

    def reap(self) -> None:
        """Finish what is built; without waiting."""
        for site in list(self.sites):
            if (result := site.cell.poll(0.0)) is not None:
                self._end(site)
                self._settle(site.request.candidate_id)
                self._tell(site, result)

    def close(self) -> None:
        """End everything."""
        for site in list(self.sites):
            self._end(site)
        for cells in self._warm.values():
            while cells:
                cells.pop().cell.kill(GRACE_S)

    # ------------------------------------------------------------------------------------------ inside

    def _room(self, target: Target) -> bool:
        """For one more build, at once: a device that comes for the request must not wait for torch to be imported."""
        return len(self.sites) < self._plan.slots and any(waiter.ready for waiter in self._warm[target])

    def _consider(self, tag: str, target: Target) -> None:
        candidate, request = self._known.get(tag), None
        if candidate is None:
            request = self._read(tag)
            candidate = self._known[tag]
        if not candidate or candidate in self._settled:
            return
        for site in self.sites:
            if site.request.candidate_id == candidate:
                site.tags.add(tag)
                return
        if (request := request or self._read(tag)) is None:
            return
        place = stored.entry(self._cache_root, request.source)
        if place.is_file():
            self._settle(candidate)
        else:
            self._begin(target, request, tag, place)

    def _read(self, tag: str) -> EvaluationRequest | None:
        """None where the request is gone, or there is nothing to build for it."""
        try:
            request = self._waiting.request(tag)
        except ValueError as exc:
            log.warning("request_not_understood", tag=tag, error=str(exc)[:200])
            request = None
        useful = request is not None and builds_something(request.source)
        _remember(self._known, tag, request.candidate_id if request is not None and useful else "")
        return request if useful else None

    def _begin(self, target: Target, request: EvaluationRequest, tag: str, place: Path) -> None:
        try:
            claim = Claim.alone(place)
        except OSError as exc:
            raise InfrastructureError(f"{place.parent.parent} cannot be used: {exc}", "see SPECGEN_CACHE") from exc
        if claim is None:  # another builder has it, or a device
            return
        if place.is_file():  # and had it a moment ago
            claim.release()
            return
        stored.sweep(place)
        waiter = next(waiter for waiter in self._warm[target] if waiter.ready)
        self._warm[target].remove(waiter)
        waiter.cell.submit(request)
        self.sites.append(Site(target, waiter.cell, claim, request, {tag}))

    def _start(self, target: Target) -> Cell:
        index = next(self._indices) % INDICES
        device = Device(f"builder-{index}", target.backend, FIRST_INDEX + index)
        return Cell.start(device, self._policy, self._cache_root, Ahead(self._plan.memory_bytes, target.arch))

    def _stop_unwanted(self) -> None:
        if not self.sites:
            return
        wanted = self._waiting.wanted(sorted({tag for site in self.sites for tag in site.tags}))
        for site in list(self.sites):
            site.tags &= wanted
            if not site.tags:
                self._end(site)
                self._count("built_ahead:stopped")
                log.info("build_stopped", candidate=site.request.candidate_id[:12], scope=site.request.scope)

    def _end(self, site: Site) -> None:
        """The claim last: who waits for it finds the entry."""
        self.sites.remove(site)
        site.cell.kill(GRACE_S)
        site.claim.release()

    def _settle(self, candidate: str) -> None:
        _remember(self._settled, candidate, None)

    def _tell(self, site: Site, result: EvaluationResult) -> None:
        kept = stored.entry(self._cache_root, site.request.source).is_file()
        self._count("built_ahead:kept" if kept else "built_ahead:failed")
        log.info(
            "built_ahead" if kept else "not_built_ahead",
            candidate=site.request.candidate_id[:12],
            route=result.build_route,
            seconds=round(time.monotonic() - site.started, 3),
            why="" if kept else " ".join(result.error.split())[:200],
        )


def builds_something(source: str) -> bool:
    """Whether it can call torch's builds. One that hides it is built by its device, as without a builder."""
    return "cpp_extension" in source


def _remember(memory: OrderedDict[str, T], key: str, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > KEPT:
        memory.popitem(last=False)
