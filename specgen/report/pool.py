"""The pool on one screen, and as JSON: queues, devices, and what the scheduler decided last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from specgen.scheduler.keys import ITERATIONS, PROFILE, VALIDATE
from specgen.scheduler.pool import DeviceState, PoolView, QueueState

Decisions = Sequence[dict[str, str]]  # as recorded in the stream, newest first


def as_json(view: PoolView, decisions: Decisions) -> dict[str, Any]:
    """For machines. Times in seconds; ``at`` is unix time by the server's clock."""
    return {
        "at": view.at,
        "leader": view.leader,
        "epoch": view.epoch,
        "claims": view.claims,
        "queues": [
            {"queue": q.queue, "label": q.label, "waiting": q.waiting, "oldest_s": q.oldest_s} for q in _queues(view)
        ],
        "devices": [_device(view, device) for device in _by_name(view)],
        "decisions": [{name: _value(name, text) for name, text in it.items()} for it in decisions],
    }


def screen(view: PoolView, decisions: Decisions) -> Group:
    """For people."""
    parts: list[Text | Table] = [Text(_headline(view)), queue_table(view), device_table(view)]
    if decisions:
        parts.append(decision_table(view, decisions))
    return Group(*parts)


def queue_table(view: PoolView) -> Table:
    """What waits, by queue and label."""
    table = _table("queue", "label", "waiting", "oldest", "")
    for queue in _queues(view):
        nobody = queue.waiting and queue.label and queue.label not in view.labels
        oldest = duration(queue.oldest_s) if queue.waiting else "-"
        row = (queue.queue, queue.label or "-", str(queue.waiting), oldest, "no device serves it" if nobody else "")
        table.add_row(*map(Text, row))
    return table


def device_table(view: PoolView) -> Table:
    """Devices that are alive."""
    table = _table("device", "labels", "role", "now", "heartbeat", "version")
    for device in _by_name(view):
        now = f"{device.busy} {device.scope}".strip() or "idle"
        if device.quarantined:
            now = f"QUARANTINED: {' '.join(device.quarantined.split())}"
        beat = f"{duration(view.at - device.heartbeat)} ago"
        row = (device.worker, " ".join(device.labels), device.role, now, beat, device.version)
        table.add_row(*map(Text, row))
    return table


def decision_table(view: PoolView, decisions: Decisions) -> Table:
    """The last reallocations."""
    table = _table("decided", "because", "devices", "validate/profile", "L_v/L_p", "moved", "dropped")
    for it in decisions:
        when = datetime.fromtimestamp(float(it["at"]), UTC).strftime("%H:%M:%S")
        ago = duration(view.at - float(it["at"]))
        row = (
            f"{when} UTC, {ago} ago",
            f"{it['reason']} {it['scope']}".strip(),
            it["devices"],
            f"{it['validators']}/{it['profilers']}",
            f"{it['max_validate']}/{it['max_profile']}",
            it["moved"],
            it["dropped"],
        )
        table.add_row(*map(Text, row))
    return table


def duration(seconds: float) -> str:
    """Such as 0.4 s, 12 s, 5 min, 3 h."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _headline(view: PoolView) -> str:
    usable = [device for device in view.devices if not device.quarantined]
    roles = [device.role for device in usable]
    split = ", ".join(f"{roles.count(role)} {role}" for role in ("validate", "profile", "both") if role in roles)
    busy = sum(bool(device.busy) for device in usable)
    out = len(view.devices) - len(usable)
    parts = [
        f"{len(view.devices)} devices ({split or 'none can serve'})",
        f"{busy} busy",
        f"{out} in quarantine",
        f"{view.claims} claimed for forks",
        f"scheduler: {view.leader or 'NONE, roles stay as they are'}",
    ]
    return "   ".join(parts)


def _queues(view: PoolView) -> list[QueueState]:
    """By queue and label; a queue that nobody ever used is there too, empty."""
    order = (ITERATIONS, VALIDATE, PROFILE)
    known = {queue.queue for queue in view.queues}
    every = [*view.queues, *(QueueState(name, "", 0, 0.0) for name in order if name not in known)]
    return sorted(every, key=lambda queue: (order.index(queue.queue), queue.label))


def _by_name(view: PoolView) -> list[DeviceState]:
    return sorted(view.devices, key=lambda device: device.worker)


def _value(name: str, text: str) -> Any:
    """A recorded field: Redis keeps text only."""
    return text if name in ("reason", "scope", "policy") else json.loads(text or "null")


def _device(view: PoolView, device: DeviceState) -> dict[str, Any]:
    return {
        "worker": device.worker,
        "device": device.info.get("device"),
        "host": device.info.get("host"),
        "labels": list(device.labels),
        "role": device.role,
        "state": "quarantined" if device.quarantined else "busy" if device.busy else "idle",
        "queue": device.busy,
        "scope": device.scope,
        "heartbeat_age_s": round(max(0.0, view.at - device.heartbeat), 3),
        "version": device.version,
        "quarantined": device.quarantined,
    }
