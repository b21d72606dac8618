"""What reaches ElasticScheduler at a boundary, and what it records of a decision. Not here: who decides (`elastic`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import structlog

from specgen.scheduler.allocation import GroupPlan, Load

Reason = Literal["boundary", "devices", "repair", "stuck"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Boundary:
    """For each label the maxima (L_v, L_p) since the scope was opened, as ``lua/close.lua`` hands them over."""

    scope: str
    maxima: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dropped: int = 0

    @classmethod
    def parse(cls, text: str) -> Boundary:
        """A boundary that cannot be read counts as one without maxima: it must not stop the scheduler."""
        try:
            found = json.loads(text)
            maxima = {str(label): (int(val), int(prof)) for label, (val, prof) in found["maxima"].items()}
            return cls(str(found["scope"]), maxima, int(found["dropped"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            log.error("boundary_not_understood", text=text[:200])
            return cls("")

    @property
    def job(self) -> str:
        """Whose it is."""
        return self.scope.rpartition("/")[0]

    @property
    def total(self) -> tuple[int, int]:
        """L_v and L_p over all labels."""
        return sum(val for val, _ in self.maxima.values()), sum(prof for _, prof in self.maxima.values())


@dataclass(frozen=True)
class Decision:
    """One reallocation, as recorded in the stream ``<prefix>:decisions`` (the entry's id is unique, and `at`, its time
    by the server's clock, is added there). ``scope`` is empty where devices came or went, or a repair was needed
    (``policy`` says which: ``paper``, ``flexible``, ``service_time``; ``reason`` why)."""

    reason: Reason
    scope: str
    policy: str
    devices: int
    validators: int
    profilers: int
    max_validate: int
    max_profile: int
    moved: int
    dropped: int
    groups: str = "[]"  # JSON: [labels, devices, validators, profilers, moved] of each
    load: str = ""  # JSON: what the split was computed from; a successor goes on with it

    @classmethod
    def of(cls, reason: Reason, boundary: Boundary, policy: str, plans: list[GroupPlan], load: Load) -> Self:
        """With the totals over all groups of devices."""
        l_val, l_prof = boundary.total
        maxima = {label: [int(val), int(prof)] for label, (val, prof) in load.maxima.items()}
        return cls(
            reason=reason,
            scope=boundary.scope,
            policy=policy,
            devices=sum(group.split.devices for group in plans),
            validators=sum(group.split.validators + group.split.shared for group in plans),
            profilers=sum(group.split.profilers + group.split.shared for group in plans),
            max_validate=l_val,
            max_profile=l_prof,
            moved=sum(len(group.moves) for group in plans),
            dropped=boundary.dropped,
            groups=json.dumps([_short(group) for group in plans]),
            load=json.dumps({"maxima": maxima, "jobs": load.jobs}),
        )


def _short(group: GroupPlan) -> list[Any]:
    split = group.split
    return [list(group.labels), split.devices, split.validators + split.shared, split.profilers + split.shared,
            len(group.moves)]  # fmt: skip


def merge(boundaries: list[Boundary]) -> Boundary:
    """Boundaries that came together, as one: of each label the larger maxima, all that was dropped, the last scope."""
    maxima: dict[str, tuple[int, int]] = {}
    for boundary in boundaries:
        for label, (l_val, l_prof) in boundary.maxima.items():
            val, prof = maxima.get(label, (0, 0))
            maxima[label] = (max(val, l_val), max(prof, l_prof))
    return Boundary(boundaries[-1].scope, maxima, sum(boundary.dropped for boundary in boundaries))


def parse_load(text: str) -> Load:
    """Of a recorded decision."""
    found = json.loads(text)
    maxima = {label: (int(val), int(prof)) for label, (val, prof) in found["maxima"].items()}
    return Load(maxima, int(found["jobs"]))
