"""Who is killed, and how. Each strike is seeded and returns what it did, for the case's schedule."""

from __future__ import annotations

import contextlib
import os
import signal
from random import Random
from typing import cast

from benchmarks.faults.system import System, children_of
from specgen.scheduler import process_groups

KINDS = ("child", "validating", "profiling", "iteration", "scheduler")


def strike(system: System, kind: str, rng: Random) -> str | None:
    """Kill one of ``kind``; None where there is none at this moment."""
    if kind in ("validating", "profiling", "child"):
        phase = {"validating": "validate", "profiling": "profile"}.get(kind)
        busy = [device.worker for device in system.view().devices if device.busy and phase in (None, device.busy)]
        if not busy:
            return None
        worker = rng.choice(sorted(busy))
        return _child(system, worker, rng) if kind == "child" else _device(system, worker, rng)
    name = "scheduler" if kind == "scheduler" else f"iterations-{rng.randrange(system.size.iteration_workers)}"
    return _kill(system, name)


def _kill(system: System, name: str) -> str | None:
    child = system.children[name]
    if child.process.poll() is not None:
        return None
    os.killpg(child.process.pid, signal.SIGKILL)
    return f"{name} killed"


def role_of(worker: str) -> str:
    """``device-cpu1@host`` is the child ``device-1``."""
    return "device-" + worker.partition("@")[0].removeprefix("device-cpu")


def _device(system: System, worker: str, rng: Random) -> str | None:
    """The pool process (a crashing driver), its parent (out of memory), or both (the container ends)."""
    name = role_of(worker)
    parent, what = system.children[name].process, rng.choice(("pool process", "parent", "whole"))
    if parent.poll() is not None:
        return None
    if what == "whole":
        return _kill(system, name)
    victims = children_of(parent.pid)[:1] if what == "pool process" else [parent.pid]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"{name} {what} killed" if victims else None


def _child(system: System, worker: str, rng: Random) -> str | None:
    """The evaluation's leader alone, or its group."""
    text = cast("str | None", system.redis.hget(system.keys.groups, worker))
    group = process_groups.parse(text)
    if group is None:
        return None
    what = rng.choice(("leader", "group"))
    try:
        (os.kill if what == "leader" else os.killpg)(group.pgid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"evaluation of {worker.partition('@')[0]}: {what} killed"
