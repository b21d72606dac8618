"""Design spaces: the decisions a kernel embodies, what each may be, and moves from one design to another.

Pure: randomness is an argument. A design is written into its kernel as one comment (``# design: task=T4 algo=...``),
so that a prompt that shows a kernel carries its design, and the model that reads it needs no memory (§2, feedback).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One value of a decision. ``phrase`` names it in prose, ``quality`` in [0, 1] is how good it usually is."""

    value: str
    phrase: str
    quality: float


@dataclass(frozen=True)
class Axis:
    """One decision. ``label`` names it in plans; ``constant`` is its name in code where the value is a number."""

    name: str
    label: str
    options: tuple[Option, ...]
    constant: str = ""

    def __getitem__(self, value: str) -> Option:
        return next(option for option in self.options if option.value == value)

    @property
    def values(self) -> tuple[str, ...]:
        """All values, in the order given."""
        return tuple(option.value for option in self.options)

    @property
    def worst(self) -> str:
        """The value of the lowest quality."""
        return min(self.options, key=lambda option: option.quality).value

    def sample(self, rng: random.Random, *, careful: bool) -> str:
        """Good values more often if ``careful``, poor ones more often if not."""
        weights = [0.25 + option.quality if careful else 1.25 - option.quality for option in self.options]
        return rng.choices(self.values, weights)[0]

    def lacks(self, value: str) -> float:
        """How much quality the best value has over this one."""
        return max(option.quality for option in self.options) - self[value].quality

    def better(self, value: str, rng: random.Random) -> str:
        """A value of higher quality, or the same where there is none."""
        higher = [option.value for option in self.options if option.quality > self[value].quality]
        return rng.choice(higher) if higher else value

    def worse(self, value: str, rng: random.Random) -> str:
        """A value of lower quality, or the same where there is none."""
        lower = [option.value for option in self.options if option.quality < self[value].quality]
        return rng.choice(lower) if lower else value


@dataclass(frozen=True)
class Design:
    """Values for some or all decisions of a space, in the space's order."""

    choices: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, axis: str) -> str:
        return dict(self.choices)[axis]

    def __contains__(self, axis: object) -> bool:
        return any(name == axis for name, _ in self.choices)

    def __len__(self) -> int:
        return len(self.choices)

    def with_choice(self, axis: str, value: str) -> Design:
        """The same with one decision taken or changed."""
        if axis in self:
            return Design(tuple((name, value if name == axis else old) for name, old in self.choices))
        return Design((*self.choices, (axis, value)))


@dataclass(frozen=True)
class DesignSpace:
    """All designs of one task."""

    task: str
    axes: tuple[Axis, ...]

    def __getitem__(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)

    def sample(self, rng: random.Random, *, careful: bool) -> Design:
        """A whole design, without regard to any other."""
        return Design(tuple((axis.name, axis.sample(rng, careful=careful)) for axis in self.axes))

    def extreme(self, *, best: bool) -> Design:
        """The design of the highest (or lowest) quality on every axis."""
        pick = max if best else min
        return Design(tuple((a.name, pick(a.options, key=lambda option: option.quality).value) for a in self.axes))

    def complete(self, partial: Design, base: Design | None, keep: float, rng: random.Random) -> Design:
        """Fill in what ``partial`` leaves open: from ``base`` with probability ``keep``, else carelessly."""
        choices = []
        for axis in self.axes:
            careless = axis.sample(rng, careful=False)
            kept = rng.random() < keep
            if axis.name in partial:
                choices.append((axis.name, partial[axis.name]))
            else:
                choices.append((axis.name, base[axis.name] if base is not None and kept else careless))
        return Design(tuple(choices))

    def move(self, base: Design, rng: random.Random, *, improve: float, sidestep: float, guided: float = 0.0) -> Design:
        """One or two decisions changed: to a better value, a random one, or (the rest) a worse one. With probability
        ``guided``, instead, the decision that is furthest from its best value, to a better one."""
        if guided and rng.random() < guided:
            held = max(self.axes, key=lambda axis: axis.lacks(base[axis.name]))
            return base.with_choice(held.name, held.better(base[held.name], rng))
        design = base
        open_axes = [axis for axis in self.axes if axis.better(base[axis.name], rng) != base[axis.name]]
        for _ in range(rng.choice((1, 1, 2))):
            roll = rng.random()
            axis = rng.choice(open_axes if open_axes and roll < improve else list(self.axes))
            value = design[axis.name]
            if roll < improve:
                value = axis.better(value, rng)
            elif roll < improve + sidestep:
                value = axis.sample(rng, careful=True)
            else:
                value = axis.worse(value, rng)
            design = design.with_choice(axis.name, value)
        return design

    def comment(self, design: Design) -> str:
        """The line that a kernel carries."""
        return f"# design: task={self.task} " + " ".join(f"{name}={value}" for name, value in design.choices)

    def comments_in(self, text: str) -> Iterator[Design]:
        """The designs of this space that ``text`` carries, in order. Incomplete or unknown ones are passed over."""
        for match in _COMMENT.finditer(text):
            pairs = dict(pair.split("=", 1) for pair in match[2].split() if "=" in pair)
            known = [(axis.name, pairs.get(axis.name, "")) for axis in self.axes]
            if match[1] == self.task and all(value in self[name].values for name, value in known):
                yield Design(tuple(known))


_COMMENT = re.compile(r"# design: task=(\w+) ([^\n]{1,400})")
