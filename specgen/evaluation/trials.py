"""The inputs on which a candidate is tried: fresh secret seeds, and distributions it was not written for.

The other distributions map every value of the problem's own inputs by a secret function: zeros stay zeros and equal
values stay equal, so that symmetric, triangular or sparse inputs keep their structure and an honest kernel that uses
it still passes. A distribution under which the reference is not finite, or is itself imprecise in fp32, is left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specgen.evaluation.compare import scale_error
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import leaves, mapped

_SAMPLE = 4096


@dataclass
class Trial:
    """One set of inputs and what the reference makes of it. ``scaled``: errors count relative to the output's scale."""

    name: str
    inputs: list[Any]
    expected: Any
    seed: int  # before both forwards (dropout and the like)
    scaled: bool = False
    exact: Any = None  # the reference in float64, where it was computed


def fresh_seed() -> int:
    """A seed nobody outside this process knows."""
    return secrets.randbits(48)


def continuous(leaf: torch.Tensor) -> bool:
    """Whether a tensor holds real numbers, rather than a few codes such as -1 and +1."""
    if not leaf.is_floating_point() or leaf.numel() == 0:
        return False
    sample = leaf.reshape(-1)[:: max(1, leaf.numel() // _SAMPLE)][:_SAMPLE]
    return leaf.numel() < 16 or int(torch.unique(sample).numel()) > 4


def signed(inputs: list[Any], generator: torch.Generator) -> list[Any]:
    """Signs, a scale per tensor and a few large values, all functions of the value alone."""
    draw = torch.rand(3, generator=generator).tolist()
    frequency, scale = 500 + 500 * draw[0], 0.5 + 2.5 * draw[1]

    def change(leaf: torch.Tensor) -> torch.Tensor:
        if not continuous(leaf):
            return leaf
        phase = torch.frac(leaf * frequency + draw[2]).abs()
        sign = torch.where(phase < 0.5, -1.0, 1.0)
        large = torch.where(torch.frac(phase * 37) < 0.02, 4.0, 1.0)
        result: torch.Tensor = leaf * (sign * large * scale)
        return result.to(leaf.dtype)

    return list(mapped(inputs, change))


def spiked(inputs: list[Any], generator: torch.Generator) -> list[Any]:
    """Four values per tensor that carry a tenth of its weight each: skipping a part of the input shows."""

    def change(leaf: torch.Tensor) -> torch.Tensor:
        if not continuous(leaf) or leaf.numel() < 64:
            return leaf
        flat = leaf.reshape(-1)
        height = 0.1 * leaf.numel() * float(flat.double().abs().mean())
        result = leaf.clone()
        for at in torch.randint(0, leaf.numel(), (4,), generator=generator).tolist():
            if flat[at] != 0:
                result = torch.where(leaf == flat[at], height, result)
        return result.to(leaf.dtype)

    return list(mapped(inputs, change))


def own(reference: Reference, name: str = "fresh inputs") -> Trial:
    """A trial of the problem's own distribution under a fresh seed."""
    inputs = reference.inputs(fresh_seed())
    seed = fresh_seed()
    return Trial(name=name, inputs=inputs, expected=reference.forward(inputs, seed), seed=seed)


def other(
    reference: Reference, name: str, change: Callable[[list[Any], torch.Generator], list[Any]], tolerance: float
) -> Trial | None:
    """A trial of another distribution, or None where the reference is not fit for it."""
    generator = torch.Generator().manual_seed(fresh_seed())
    base = reference.inputs(fresh_seed())
    inputs = change(base, generator)
    if all(new is old for new, old in zip(leaves(inputs), leaves(base), strict=True)):
        return None
    seed = fresh_seed()
    expected = reference.forward(inputs, seed)
    exact = reference.double(inputs, seed)
    if exact is None or not finite(expected) or scale_error(expected, exact) > 0.05 * tolerance:
        return None
    return Trial(name=name, inputs=inputs, expected=expected, seed=seed, scaled=True, exact=exact)


def finite(value: Any) -> bool:
    """Whether all floating tensors are finite."""
    return all(bool(torch.isfinite(leaf).all()) for leaf in leaves(value) if leaf.is_floating_point())
