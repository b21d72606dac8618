"""Resource reallocation (§6.2.1, Algorithm 2's Allocate): how many devices validate, how many profile, and which.

Pure: no clock, no Redis. `allocate` is the paper's formula. A pool that many jobs share needs three things more:
devices of different labels are allocated separately (`plan`), a split that is nearly right is left alone (`settle`),
and as few workers as possible move (`assign`). Not here: when it is called, how a worker learns its role (`elastic`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

Role = Literal["validate", "profile", "both"]
Labels = tuple[str, ...]
Length = int | Fraction  # waiting requests, or (by service time) the milliseconds that they will take

EXACT_UP_TO = 10  # devices: one job's pool of that size follows Algorithm 2 to the letter
BAND_SHARE = 8  # the dead band of a pool is this part of its devices, and half a device at least
TURN_BACK = Fraction(3, 2)  # of the band: what moves workers back that moved at the last boundary


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


@dataclass(frozen=True)
class Worker:
    """A device as the allocation sees it. ``role`` is None where it never had one."""

    name: str
    labels: Labels
    role: Role | None = None
    busy: bool = False


@dataclass(frozen=True)
class Load:
    """What a boundary asks the split for: for each label the maxima L_v and L_p since its scope was opened, and how
    many jobs share the pool."""

    maxima: Mapping[str, tuple[Length, Length]] = field(default_factory=dict)
    jobs: int = 0


@dataclass(frozen=True)
class GroupPlan:
    """The split of the devices that have the same labels, and the workers whose role changes. ``turn`` is how many
    devices more profile than before (by the roles of those that had one)."""

    labels: Labels
    split: Split
    moves: Mapping[str, Role]
    turn: int


def allocate(l_val: Length, l_prof: Length, devices: int, *, flexible: bool = False) -> Split:
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
    share = int(-(-devices * l_prof // total)) if total else devices // 2
    profilers = min(devices - 1, max(1, share))
    return Split(devices - profilers, profilers)


def dead_band(devices: int, jobs: int) -> Fraction:
    """How far the ideal share may be from the split before workers move, in devices.

    None for up to ten devices that one job has to itself, where the paper's rule holds to the letter. Maxima of many
    jobs come from windows of different lengths; the difference is noise.
    """
    if jobs <= 1 and devices <= EXACT_UP_TO:
        return Fraction(0)
    return max(Fraction(1, 2), Fraction(devices, BAND_SHARE))


def distance(l_val: Length, l_prof: Length, devices: int, profilers: int) -> Fraction:
    """How far G·L_p/(L_v+L_p) lies outside the interval that rounds up to ``profilers``, in devices. 0 where `allocate`
    gives that many, and on the interval's lower edge."""
    total = l_val + l_prof
    ideal = Fraction(devices * l_prof) / Fraction(total) if total else Fraction(devices // 2)
    above = ideal - profilers if profilers < devices - 1 else Fraction(0)
    below = profilers - 1 - ideal if profilers > 1 else Fraction(0)
    return max(Fraction(0), above, below)


def settle(l_val: Length, l_prof: Length, current: Sequence[Role | None], band: Fraction) -> Split:
    """`allocate`'s split, or the one nearest to it that needs no move where that one is within ``band`` of the ideal.

    Workers without a role, or that serve both queues, take one in either case.
    """
    devices, profilers = len(current), current.count("profile")
    target = allocate(l_val, l_prof, devices)
    undecided = devices - profilers - current.count("validate")
    nearest = min(max(target.profilers, profilers), profilers + undecided)
    fits = 1 <= nearest < devices and distance(l_val, l_prof, devices, nearest) <= band
    return Split(devices - nearest, nearest) if band > 0 and fits and devices > 1 else target


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


def groups(workers: Collection[Worker]) -> dict[Labels, list[Worker]]:
    """Workers by the set of labels that they have."""
    found: dict[Labels, list[Worker]] = {}
    for worker in sorted(workers, key=lambda one: one.name):
        found.setdefault(tuple(sorted(set(worker.labels))), []).append(worker)
    return dict(sorted(found.items()))


def demand(
    maxima: Mapping[str, tuple[Length, Length]], sizes: Mapping[Labels, int]
) -> dict[Labels, tuple[Length, Length]]:
    """L_v and L_p of each group of devices: the sum over the labels that it serves.

    A label that several groups serve counts in each in proportion to devices: its requests go to whichever device is
    free, so that is how they spread. Of one group, whose sum is over all that waits, that is Algorithm 2's input.
    """
    wanted: dict[Labels, tuple[Length, Length]] = dict.fromkeys(sizes, (0, 0))
    for label, (l_val, l_prof) in maxima.items():
        serving = [labels for labels in sizes if label in labels]
        total = sum(sizes[labels] for labels in serving)
        for labels in serving:
            part = Fraction(sizes[labels], total)
            val, prof = wanted[labels]
            wanted[labels] = (val + l_val * part, prof + l_prof * part)
    return wanted


def plan(
    workers: Collection[Worker],
    load: Load,
    *,
    flexible: bool = False,
    turns: Mapping[Labels, int] | None = None,
) -> list[GroupPlan]:
    """What each group of devices does after a boundary with that load. ``turns`` is what the groups did at the last
    one (`GroupPlan.turn`); None, where there is no boundary and only devices came or went, moves the fewest.

    Where several jobs share the pool and nothing of a group's labels came, its split stays: an empty window of one job
    says nothing about the others. One job gets the even split then, as in the paper.
    """
    by_labels = groups(workers)
    wanted = demand(load.maxima, {labels: len(group) for labels, group in by_labels.items()})
    plans = []
    for labels, group in by_labels.items():
        current = {worker.name: worker.role for worker in group}
        turn = None if turns is None else turns.get(labels, 0)
        split = _split(wanted[labels], list(current.values()), load.jobs, flexible, turn)
        roles = assign(split, current, [worker.name for worker in group if worker.busy])
        moves = {name: role for name, role in roles.items() if current[name] != role}
        gained = sum(role == "profile" for name, role in moves.items() if current[name] is not None)
        lost = sum(role != "profile" and current[name] == "profile" for name, role in moves.items())
        plans.append(GroupPlan(labels, split, moves, gained - lost))
    return plans


def _split(
    wanted: tuple[Length, Length], current: list[Role | None], jobs: int, flexible: bool, turn: int | None
) -> Split:
    l_val, l_prof = wanted
    devices, profilers = len(current), current.count("profile")
    if flexible or devices <= 1:
        return allocate(l_val, l_prof, devices, flexible=flexible)
    band = dead_band(devices, jobs)
    if jobs > 1 and not l_val + l_prof:
        band = Fraction(devices)
    back = turn is not None and turn * (allocate(l_val, l_prof, devices).profilers - profilers) < 0
    if turn is None or back:
        band *= TURN_BACK
    return settle(l_val, l_prof, current, band)


def capacity(free: int, queued: int, claims: int) -> int:
    """C of one split (Algorithm 1, line 10): free devices less what already waits or is being generated for them."""
    return max(0, free - queued - claims)


def fork_count(c_val: int, c_prof: int, *, max_k: int, at_least_one: bool) -> int:
    """K = max(1, min(C.val, C.prof)), capped; without ``at_least_one`` it may be 0. ``lua/claim.lua`` does the same."""
    k = min(c_val, c_prof)
    return min(max(1, k) if at_least_one else k, max_k)
