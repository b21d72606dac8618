"""The inputs on which a candidate is tried: fresh secret seeds, and distributions it was not written for.

The other distributions map every value of the problem's own inputs by a secret function: zeros stay zeros and equal
values stay equal, so that symmetric, triangular or sparse inputs keep their structure and an honest kernel that uses
it still passes. Where the reference is not finite, itself imprecise in fp32, or magnifies the rounding that the
tolerance admits, the same is drawn again more gently, and left out only if that does not help.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specgen.evaluation.compare import VARIATION, agree
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import leaves, mapped

_SAMPLE = 4096
STRENGTHS = (1.0, 0.3, 0.1, 0.02, 0.004, 0.001)  # drawn again, each time gentler, where the reference is not fit
TEN_BITS_PASS = 5e-3  # tolerances from here on admit TF32 and fp16 inputs with room to spare
REFERENCE_SHARE = 0.05  # of the tolerance, that the reference's own fp32 error may take


@dataclass
class Trial:
    """One set of inputs and what the reference makes of it. ``scaled``: errors count relative to the output's scale."""

    name: str
    inputs: list[Any]
    expected: Any
    seed: int  # before both forwards (dropout and the like)
    scaled: bool = False
    exact: Any = None  # the reference in float64, where it was computed
    strength: float = 1.0  # of what was done to the problem's own inputs


def fresh_seed() -> int:
    """A seed nobody outside this process knows."""
    return secrets.randbits(48)


def continuous(leaf: torch.Tensor) -> bool:
    """Whether a tensor holds real numbers, rather than a few codes such as -1 and +1."""
    if not leaf.is_floating_point() or leaf.numel() == 0:
        return False
    # no even steps: those of a triangular matrix may all lie in a column of zeros
    places = torch.randint(leaf.numel(), (_SAMPLE,), generator=torch.Generator().manual_seed(leaf.numel()))
    sample = leaf.reshape(-1)[places.to(leaf.device)]
    return leaf.numel() < 16 or int(torch.unique(sample).numel()) > 4


def largest(tolerance: float, products: bool) -> float:
    """The largest value put among inputs: one that fp16 can hold, where the tolerance admits it and it is of use.

    Only matrix products are faster in fp16. Everything else meets the full height, which a reduction over much data
    needs: half of the rows of a mean were right to the tolerance without it.
    """
    return 2.0**15 if products and tolerance >= TEN_BITS_PASS else float("inf")


def spike_height(leaf: torch.Tensor, strength: float, most: float) -> float:
    """A tenth of the summed magnitude of a tensor, at full strength."""
    return min(most, 0.1 * strength * leaf.numel() * float(leaf.double().abs().mean()))


def signed(
    inputs: list[Any], generator: torch.Generator, strength: float = 1.0, most: float = float("inf")
) -> list[Any]:
    """Signs, a scale per tensor and a few large values, all functions of the value alone."""
    del most  # some twelve times the problem's own values
    draw = torch.rand(3, generator=generator).tolist()
    frequency, scale = 500 + 500 * draw[0], 0.5 + 2.5 * draw[1] * strength

    def change(leaf: torch.Tensor) -> torch.Tensor:
        if not continuous(leaf):
            return leaf
        phase = torch.frac(leaf * frequency + draw[2]).abs()
        sign = torch.where(phase < 0.5, -1.0, 1.0)
        large = torch.where(torch.frac(phase * 37) < 0.02, 1.0 + 3.0 * strength, 1.0)
        result: torch.Tensor = leaf * (sign * large * scale)
        return result.to(leaf.dtype)

    return list(mapped(inputs, change))


def spiked(
    inputs: list[Any], generator: torch.Generator, strength: float = 1.0, most: float = float("inf")
) -> list[Any]:
    """Four values per tensor that carry a tenth of its weight each: skipping a part of the input shows."""

    def change(leaf: torch.Tensor) -> torch.Tensor:
        if not continuous(leaf) or leaf.numel() < 64:
            return leaf
        flat = leaf.reshape(-1)
        height = spike_height(leaf, strength, most)
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


Change = Callable[[list[Any], torch.Generator, float, float], list[Any]]


def other(
    reference: Reference, name: str, change: Change, tolerance: float, most: float = float("inf")
) -> Trial | None:
    """A trial of another distribution, or None where the reference is not fit for any strength of it.

    ``most``: see :func:`largest`.
    """
    for strength in STRENGTHS:
        trial = _drawn(reference, name, change, strength, most)
        if trial is None:
            return None
        if _fit(trial, tolerance) and _conditioned(reference, trial, tolerance):
            return trial
    return None


def _drawn(reference: Reference, name: str, change: Change, strength: float, most: float) -> Trial | None:
    generator = torch.Generator().manual_seed(fresh_seed())
    base = reference.inputs(fresh_seed())
    inputs = change(base, generator, strength, most)
    if all(new is old for new, old in zip(leaves(inputs), leaves(base), strict=True)):
        return None
    seed = fresh_seed()
    expected = reference.forward(inputs, seed)
    exact = reference.double(inputs, seed)
    return Trial(name, inputs, expected, seed, scaled=True, exact=exact, strength=strength)


def _fit(trial: Trial, tolerance: float) -> bool:
    """Whether the reference is right there itself: to a twentieth of what a candidate may be off by."""
    if trial.exact is None or not finite(trial.expected):
        return False
    exact = like(trial.exact, trial.expected)
    share = REFERENCE_SHARE
    return agree(trial.expected, exact, share * tolerance, scaled=True, variation=share * VARIATION)


def _conditioned(reference: Reference, trial: Trial, tolerance: float) -> bool:
    """Where the tolerance admits TF32: whether inputs and parameters of ten bits meet a quarter of it."""
    if tolerance < TEN_BITS_PASS:
        return True
    model = copy.deepcopy(reference.model)
    if isinstance(model, torch.nn.Module):
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(rounded(value, 10))
    short = reference.double(rounded(trial.inputs, 10), trial.seed, model)
    share = 0.25
    return short is None or agree(short, trial.exact, share * tolerance, scaled=True, variation=share * VARIATION)


def rounded(value: Any, bits: int) -> Any:
    """Every fp32 tensor rounded to so many explicit bits of mantissa."""
    drop = 23 - bits

    def change(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.dtype != torch.float32:
            return leaf
        whole = leaf.detach().contiguous().view(torch.int32).add(1 << (drop - 1)) >> drop << drop
        return whole.view(torch.float32).reshape(leaf.shape)

    return mapped(value, change)


def like(exact: Any, expected: Any) -> Any:
    """float64 outputs in the dtypes of the reference's own."""
    if isinstance(exact, torch.Tensor):
        return exact.to(expected.dtype)
    if isinstance(exact, dict):
        return {key: like(value, expected[key]) for key, value in exact.items()}
    if isinstance(exact, list | tuple):
        items = [like(a, b) for a, b in zip(exact, expected, strict=True)]
        return items if isinstance(exact, list) else tuple(items)
    return exact


def finite(value: Any) -> bool:
    """Whether all floating tensors are finite."""
    return all(bool(torch.isfinite(leaf).all()) for leaf in leaves(value) if leaf.is_floating_point())
