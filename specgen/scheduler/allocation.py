"""Resource reallocation (§6.2.1, Algorithm 2's Allocate): how many devices validate, how many profile, and which.

Pure: no clock, no Redis. Not here: when it is called and how a worker learns its role (`elastic`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["validate", "profile", "both"]


@dataclass(frozen=True)
class Split:
    """How many devices serve which queue. ``shared`` devices serve both, profiling first."""

    validators: int
    profilers: int
    shared: int = 0

    @property
    def devices(self) -> int:
        """All of them."""
        return self.validators + self.profilers + self.shared


def allocate(l_val: int, l_prof: int, devices: int, *, flexible: bool = False) -> Split:
    """The split after an iteration whose queues were at most ``l_val`` and ``l_prof`` long.

    G_prof = ⌊G/2⌋ if L_v + L_p = 0, else min(G-1, max(1, ⌈G·L_p/(L_v+L_p)⌉)); G_val = G - G_prof. One device, for which
    that leaves no profiler, serves both queues; so does every device where ``flexible``.

    Raises ValueError for negative arguments.
    """
    if l_val < 0 or l_prof < 0 or devices < 0:
        raise ValueError(f"lengths and devices are not negative: {l_val}, {l_prof}, {devices}")
    if devices <= 1 or flexible:
        return Split(0, 0, devices)
    total = l_val + l_prof
    share = -(-devices * l_prof // total) if total else devices // 2
    profilers = min(devices - 1, max(1, share))
    return Split(devices - profilers, profilers)


def assign(split: Split, current: Mapping[str, Role | None], busy: Collection[str] = ()) -> dict[str, Role]:
    """A role for every worker of ``current``, such that the split holds and as few as possible change theirs.

    Workers without a role, or that serve both, fill gaps first, then idle ones, then busy ones (which change once they
    are done); ties go by name. Raises ValueError unless ``split.devices`` is the number of workers.
    """
    if split.devices != len(current):
        raise ValueError(f"a split of {split.devices} devices for {len(current)} workers")
    wanted: dict[Role, int] = {"validate": split.validators, "profile": split.profilers, "both": split.shared}
    roles: dict[str, Role] = {}
    for worker in sorted(current, key=lambda name: (name not in busy, name)):  # the busy keep theirs first
        role = current[worker]
        if role is not None and wanted[role] > 0:
            roles[worker] = role
            wanted[role] -= 1
    open_roles = [role for role, count in wanted.items() for _ in range(count)]
    moving = sorted((name for name in current if name not in roles), key=lambda name: (name in busy, name))
    return roles | dict(zip(moving, open_roles, strict=True))


def capacity(free: int, queued: int, claims: int) -> int:
    """C of one split (Algorithm 1, line 10): free devices less what already waits or is being generated for them."""
    return max(0, free - queued - claims)


def fork_count(c_val: int, c_prof: int, *, max_k: int, at_least_one: bool) -> int:
    """K = max(1, min(C.val, C.prof)), capped; without ``at_least_one`` it may be 0. ``lua/claim.lua`` does the same."""
    k = min(c_val, c_prof)
    return min(max(1, k) if at_least_one else k, max_k)
