"""Values that are new on every timed run, so that nothing remembered, precomputed or scaled from before is right.

Every real number of a set of inputs (or of a model's parameters) is multiplied by a secret function of itself between
a half and one: signs, zeros and equal values stay, and so do symmetric, triangular and sparse structure and the range;
no linear or multilinear result follows from an earlier one. Now and then a few values carry a tenth of the whole
weight each (spikes): who skips a part of the input is wrong. The judge computes on its own copy; the candidate's copy
can be compared with it afterwards. Not here: when this happens (:mod:`specgen.evaluation.timing`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from specgen.evaluation.tensors import Parcel, leaves
from specgen.evaluation.trials import continuous, spike_height
from specgen.evaluation.wire import close_all

SPIKE_SHARE = 3  # one run in so many has spikes
_SPIKES = 2  # values of each tensor
_RANDOM = random.SystemRandom()


def refresh(base: torch.Tensor, out: torch.Tensor, largest: float) -> None:
    """``out = base * (1 - frac(|base| * f + p) / 2)`` with secret f and p; ``largest``: of the base's magnitudes."""
    frequency, phase = _RANDOM.uniform(500, 1000) / largest, _RANDOM.random()
    work = out if out.dtype == torch.float32 else torch.empty_like(base, dtype=torch.float32)
    torch.mul(base, frequency, out=work) if base.dtype == torch.float32 else work.copy_(base).mul_(frequency)
    work.abs_().add_(phase).frac_().mul_(-0.5).add_(1.0)
    if work is out:
        out.mul_(base)
    else:
        out.copy_(work.mul_(base.to(torch.float32)))


def spike(base: torch.Tensor, out: torch.Tensor, height: float) -> None:
    """All elements that equal one of a few secret elements become very large, with their sign."""
    flat = base.reshape(-1)
    for _ in range(_SPIKES):
        value = flat[_RANDOM.randrange(base.numel())]
        if value != 0:
            out.masked_fill_(base == value, height if value > 0 else -height)


class Renewed:
    """One nested value: as it was given, and as it is now on the judge's side."""

    def __init__(self, value: Any, private: Any = None, redraw: Callable[[], Any] | None = None) -> None:
        """``private``: the judge's own copy, where it has one; ``redraw``: for values that are no real numbers."""
        if private is None:
            kept = Parcel.of(value)  # the same kind of memory as the candidate's: the reference is timed on it
            close_all([kept.fd])
            private = kept.value
        self.private = private
        self.redraw = redraw
        self.rebase(value)

    def rebase(self, value: Any) -> None:
        """What new values are made from, from now on."""
        self.base = value
        self.pairs = [
            (base, now, float(base.abs().max()))
            for base, now in zip(leaves(value), leaves(self.private), strict=True)
            if continuous(base)
        ]
        self.heights: list[float] = []

    def renew(self, spikes: float = 0.0, most: float = float("inf")) -> None:
        """New values. ``spikes``: their strength, 0 for none; ``most``: no spike is larger."""
        with torch.no_grad():
            if not self.pairs and self.redraw is not None:
                self._take(self.redraw())
            for base, now, largest in self.pairs:
                if 0 < largest < float("inf"):
                    refresh(base, now, largest)
            if spikes:
                self._spike(spikes, most)

    def _take(self, fresh: Any) -> None:
        for to, source in zip(leaves(self.private), leaves(fresh), strict=True):
            if to.shape == source.shape:
                to.copy_(source)

    def _spike(self, strength: float, most: float) -> None:
        if not self.heights:
            self.heights = [spike_height(base, 1.0, float("inf")) for base, *_ in self.pairs]
        for (base, now, _), height in zip(self.pairs, self.heights, strict=True):
            if base.numel() >= 64:
                spike(base, now, min(most, strength * height))
