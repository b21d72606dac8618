"""Whether outputs agree with the reference's: trees first, then dtype, shape, finiteness and values.

``|got - want| <= tolerance + tolerance * |want|`` on the problem's own inputs, as KernelBench; on other distributions
the output's own scale (root mean square) takes the place of the absolute term. On any inputs an error above a quarter
of the output's standard deviation is wrong, however generous the tolerance: a sum of 32768 sigmoids hardly varies
beside its size, and its mean is no answer. Large tensors are compared piece by piece, so that a comparison needs
little memory beside what it compares. Not here: what made the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from specgen.evaluation.mismatch import describe
from specgen.evaluation.tensors import dtype_name, leaves
from specgen.types import Status

_PIECE = 1 << 26
VARIATION = 0.25  # of the output's standard deviation: what no tolerance may exceed
_CONSTANT = 1e-5  # below this share of its size an output's variation is rounding, and says nothing
_FEW = 16  # elements that have no standard deviation to speak of


@dataclass(frozen=True)
class Difference:
    """Why outputs do not agree. ``text`` is feedback for the LLM."""

    status: Status
    text: str


_UNTOLD = Difference(Status.WRONG_VALUE, "")


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same parts of several tensors of one shape, at most 2^26 elements each."""
    if not tensors[0].numel():
        return
    flat = [tensor.reshape(-1) for tensor in tensors]
    yield from zip(*(torch.split(tensor, _PIECE) for tensor in flat), strict=True)


def scale(leaf: torch.Tensor) -> float:
    """Root mean square of a tensor (0 for an empty one)."""
    total = sum(float(part.double().square().sum()) for (part,) in pieces(leaf))
    return float((total / leaf.numel()) ** 0.5) if leaf.numel() else 0.0


def _largest_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in pieces(got, want))


def scale_error(got: Any, want: Any) -> float:
    """The largest error of any output tensor relative to that output's scale."""
    worst = 0.0
    for a, b in zip(leaves(got), leaves(want), strict=True):
        if a.is_floating_point() and a.numel():
            worst = max(worst, _largest_error(a, b) / max(scale(b), 1e-30))
    return worst


def max_abs_error(got: Any, want: Any) -> float:
    """The largest absolute error of any floating output tensor."""
    errors = [
        _largest_error(a, b)
        for a, b in zip(leaves(got), leaves(want), strict=True)
        if a.is_floating_point() and a.numel()
    ]
    return max(errors, default=0.0)


def spread(leaf: torch.Tensor) -> tuple[float, float] | None:
    """Mean and standard deviation; None where the output is constant, or too small to tell."""
    if leaf.numel() < _FEW or not leaf.is_floating_point():
        return None
    mean = sum(float(part.double().sum()) for (part,) in pieces(leaf)) / leaf.numel()
    square = sum(float((part.double() - mean).square().sum()) for (part,) in pieces(leaf)) / leaf.numel()
    deviation = float(square**0.5)
    return (mean, deviation) if _CONSTANT * (mean**2 + square) ** 0.5 < deviation < float("inf") else None


@dataclass(frozen=True)
class _Limits:
    tolerance: float
    scaled: bool
    variation: float
    words: bool = True  # whether a difference is described


def agree(got: Any, want: Any, tolerance: float, *, scaled: bool = False, variation: float = VARIATION) -> bool:
    """:func:`compare` for who needs no words: they take dozens of kernels, each loaded at its first use on a GPU."""
    return _tree(got, want, _Limits(tolerance, scaled, variation, words=False), "output") is None


def compare(
    got: Any, want: Any, tolerance: float, *, scaled: bool = False, variation: float = VARIATION
) -> Difference | None:
    """None if the outputs agree. ``variation``: of the output's standard deviation, what is wrong in any case."""
    return _tree(got, want, _Limits(tolerance, scaled, variation), "output")


def _tree(got: Any, want: Any, limits: _Limits, where: str) -> Difference | None:
    if isinstance(want, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return Difference(Status.WRONG_SHAPE, f"{where}: expected a tensor, got {type(got).__name__}")
        return _tensor(got, want, limits, where)
    if isinstance(want, dict):
        if not isinstance(got, dict) or list(got) != list(want):
            return Difference(Status.WRONG_SHAPE, f"{where}: expected a dict with keys {list(want)[:10]}")
        pairs = [(f"{where}[{key!r}]", got[key], want[key]) for key in want]
    elif isinstance(want, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            count = len(got) if isinstance(got, list | tuple) else type(got).__name__
            return Difference(Status.WRONG_SHAPE, f"{where}: expected {len(want)} values, got {count}")
        pairs = [(f"{where}[{index}]", got[index], want[index]) for index in range(len(want))]
    else:
        return _scalar(got, want, limits.tolerance, where)
    for name, a, b in pairs:
        found = _tree(a, b, limits, name)
        if found is not None:
            return found
    return None


def _scalar(got: Any, want: Any, tolerance: float, where: str) -> Difference | None:
    if isinstance(want, float) and isinstance(got, float | int):
        same = abs(got - want) <= tolerance + tolerance * abs(want)
    else:
        same = type(got) is type(want) and bool(got == want)
    return None if same else Difference(Status.WRONG_VALUE, f"{where}: expected {want!r}, got {got!r}"[:300])


def _tensor(got: torch.Tensor, want: torch.Tensor, limits: _Limits, where: str) -> Difference | None:
    tolerance, scaled = limits.tolerance, limits.scaled
    if got.shape != want.shape:
        return Difference(Status.WRONG_SHAPE, f"{where}: expected shape {list(want.shape)}, got {list(got.shape)}")
    if got.dtype != want.dtype:
        names = f"expected {dtype_name(want.dtype)}, got {dtype_name(got.dtype)}"
        return Difference(Status.WRONG_DTYPE, f"{where}: {names}")
    if not want.is_floating_point() and not want.is_complex():
        bad = got != want
        return _values(got, want, bad, where, "exactly", limits) if bool(bad.any()) else None
    floor = tolerance * scale(want) + 1e-12 if scaled else tolerance
    if all(torch.allclose(a, b, rtol=tolerance, atol=floor, equal_nan=True) for a, b in pieces(got, want)):
        return _beside_variation(got, want, limits, where)
    if not limits.words:
        return _UNTOLD
    close = torch.isclose(got, want, rtol=tolerance, atol=floor, equal_nan=True)
    strange = ~torch.isfinite(got) & torch.isfinite(want)
    if bool(strange.any()):
        found = _values(got, want, strange, where, "finite", limits)
        return Difference(Status.NOT_FINITE, found.text)
    kind = f"within {tolerance:g} of the output's scale" if scaled else f"within {tolerance:g} + {tolerance:g}*|want|"
    return _values(got, want, ~close, where, kind, limits)


def _beside_variation(got: torch.Tensor, want: torch.Tensor, limits: _Limits, where: str) -> Difference | None:
    """An error that hides what the output says, though it is small beside the output's size."""
    known = spread(want)
    if known is None:
        return None
    mean, deviation = known

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        allowed = limits.variation * deviation + limits.tolerance * (b - mean).abs()
        return ((a - b).abs() > allowed) & (a != b)

    if not any(bool(wrong(a, b).any()) for a, b in pieces(got, want)):
        return None
    kind = f"within {limits.variation:g} of the output's standard deviation ({deviation:.4g})"
    return _values(got, want, wrong(got, want), where, kind, limits)


def _values(
    got: torch.Tensor, want: torch.Tensor, bad: torch.Tensor, where: str, kind: str, limits: _Limits
) -> Difference:
    if not limits.words:
        return _UNTOLD
    rms = scale(want) if want.is_floating_point() else 0.0
    if got.is_cuda and got.numel() <= _PIECE:
        # words take some thirty kernels, of which each is loaded at its first use; with them a verdict of wrong values
        # took 3 s longer than others on an H200
        got, want, bad = got.cpu(), want.cpu(), bad.cpu()
    return Difference(Status.WRONG_VALUE, describe(got, want, bad, where, kind, rms))
