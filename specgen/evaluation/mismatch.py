"""Words for outputs that differ: how many elements, where, by how much, and what pattern the wrong ones follow.

Text for the LLM that wrote the kernel, drawn from a sample of at most 65 536 wrong elements where values decide; places
are exact. A pattern is stated only where it holds for what was looked at, and decides nothing. Not here: what counts
as wrong (:mod:`specgen.evaluation.compare`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

_PIECE = 1 << 26
_SAMPLE = 1 << 16
_SMALL = 1 << 24  # elements of an output that is looked at as a whole
_FILLING = 0xFE  # what memory holds before a trial
_MODULI = (2, 4, 8, 16, 32, 64, 128, 256)
_ALIKE = 1e-3  # spread of ratios and offsets that counts as none


def describe(got: torch.Tensor, want: torch.Tensor, bad: torch.Tensor, where: str, kind: str, rms: float) -> str:
    """Feedback on ``bad``, a mask with at least one element. ``rms``: root mean square of ``want``."""
    count = int(bad.sum())
    first = int(bad.reshape(-1).view(torch.uint8).argmax())
    lines = [
        f"{where}: {count} of {bad.numel()} elements ({100 * count / bad.numel():.3g} %) are not {kind}",
        f"first at {_index(first, bad)}: {_both(got, want, first)}",
    ]
    if want.is_floating_point():
        lines += _errors(got, want, rms)
    hints = [*_places(bad, count, first), *_values(got, want, bad, rms), *_order(got, want, count)]
    return "\n".join([*lines, *(f"pattern: {hint}" for hint in hints[:5])])


def _index(flat: int, like: torch.Tensor) -> str:
    return str([int(part) for part in torch.unravel_index(torch.tensor(flat), like.shape)] if like.dim() else [])


def _both(got: torch.Tensor, want: torch.Tensor, at: int) -> str:
    expected, found = want.reshape(-1)[at].item(), got.reshape(-1)[at].item()
    return f"expected {expected:.8g}, got {found:.8g}"


# ------------------------------------------------------------------------------------------------ errors


def _errors(got: torch.Tensor, want: torch.Tensor, rms: float) -> list[str]:
    """The largest absolute and relative error with their places, and what is not finite."""
    worst: dict[str, tuple[float, int]] = {"absolute": (-1.0, 0), "relative": (-1.0, 0)}
    nans, infinities, start = 0, 0, 0
    for a, b in _pieces(got, want):
        error = (a.double() - b.double()).abs()
        nans += int((torch.isnan(a) & ~torch.isnan(b)).sum())
        infinities += int((torch.isinf(a) & ~torch.isinf(b)).sum())
        error = torch.where(a == b, 0.0, error).nan_to_num(nan=0.0, posinf=0.0)
        relative = error / b.double().abs().clamp(min=max(rms * 1e-3, 1e-300))
        for name, values in (("absolute", error), ("relative", relative)):
            at = int(values.argmax())
            if float(values[at]) > worst[name][0]:
                worst[name] = float(values[at]), start + at
        start += a.numel()
    (absolute, at), (ratio, there) = worst["absolute"], worst["relative"]
    lines = [f"root mean square of the expected output {rms:.6g}"]
    if nans + infinities < got.numel():
        lines = [
            f"largest absolute error {absolute:.6g} at {_index(at, got)} ({_both(got, want, at)})",
            f"largest relative error {ratio:.6g} at {_index(there, got)} ({_both(got, want, there)})",
            *lines,
        ]
    if nans or infinities:
        lines.append(f"NaN: {nans} elements, infinite: {infinities} (not among the errors above)")
    return lines


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    yield from zip(*(torch.split(tensor.reshape(-1), _PIECE) for tensor in tensors), strict=True)


# ------------------------------------------------------------------------------------------------ places


def _places(bad: torch.Tensor, count: int, first: int) -> Iterator[str]:
    """Which indices the wrong elements have, per dimension; exact."""
    if count == bad.numel():
        yield "every element is wrong"
        return
    if count == 1:
        return
    if first and count == bad.numel() - first:
        yield (
            f"every element from flat index {first} on is wrong, none before: is the grid large enough for"
            f" {bad.numel()} elements?"
        )
    for dimension, size in enumerate(bad.shape):
        others = [other for other in range(bad.dim()) if other != dimension]
        touched = bad.any(dim=others) if others else bad
        indices = touched.nonzero().reshape(-1)
        if 0 < len(indices) < size and (found := _range(indices, size)):
            whole = "all" if count == len(indices) * (bad.numel() // size) else "some"
            yield f"wrong elements have {found} of dimension {dimension} ({whole} elements there are wrong)"


def _range(indices: torch.Tensor, size: int) -> str:
    """Words for a set of indices in [0, size) that is a range or repeats; empty where it is neither."""
    low, high, count = int(indices[0]), int(indices[-1]), len(indices)
    if count == high - low + 1:
        if count == 1:
            return f"index {low} (the last one)" if high == size - 1 and low else f"index {low}"
        name = "the last" if high == size - 1 else "the first" if low == 0 else ""
        return f"{name} {count} of {size} indices ({low} to {high})".strip() if name else f"indices {low} to {high}"
    for modulus in _MODULI:
        rest = torch.unique(indices % modulus)
        few, some = len(rest), int(rest[-1]) - int(rest[0]) + 1
        if few < modulus and few == some and count >= (size // modulus) * few * 0.9:
            which = f"{int(rest[0])}" if few == 1 else f"{int(rest[0])} to {int(rest[-1])}"
            return f"indices that are {which} modulo {modulus}"
    return ""


# ------------------------------------------------------------------------------------------------ values


def _values(got: torch.Tensor, want: torch.Tensor, bad: torch.Tensor, rms: float) -> Iterator[str]:
    """What the wrong values have in common; judged by a sample of them."""
    at = _sample(bad)
    found, wanted = got.reshape(-1)[at], want.reshape(-1)[at]
    unwritten = _unwritten(found)
    if unwritten > 0:
        share = "all" if unwritten == 1 else f"{100 * unwritten:.3g} %"
        yield f"{share} of the wrong elements were never written (they hold what memory was filled with before the run)"
    if unwritten == 1 or not want.is_floating_point():
        return
    a, b = found.double().cpu(), wanted.double().cpu()
    usable = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[usable], b[usable]
    if len(a) < 4:
        return
    if bool((a == a[0]).all()) and not bool((b == b[0]).all()):
        yield "all wrong elements are 0" if a[0] == 0 else f"all wrong elements hold the same value, {float(a[0]):.6g}"
    elif (factor := _constant(a, b, rms)) is not None:
        yield (
            "wrong elements are the expected ones with the sign flipped"
            if factor == -1
            else (f"wrong elements are the expected ones times a constant factor of {factor:.6g}")
        )
    elif (offset := _spread(a - b)) is not None:
        yield f"wrong elements are the expected ones plus a constant of {offset:.6g}"
    else:
        relative = float(((a - b).abs() / b.abs().clamp(min=max(rms, 1e-300))).median())
        if relative < 0.05:
            yield f"errors are small (median {relative:.2g} of the output's scale): rounding or precision, not indices"


def _unwritten(values: torch.Tensor) -> float:
    """The share of them whose bytes are all the filling (a single byte may be a value)."""
    if values.element_size() < 2:
        return 0.0
    parts = values.contiguous().view(torch.uint8).reshape(len(values), -1)
    return float((parts == _FILLING).all(dim=1).double().mean())


def _constant(a: torch.Tensor, b: torch.Tensor, rms: float) -> float | None:
    large = b.abs() > 1e-3 * rms
    if int(large.sum()) < max(4, len(b) // 2):
        return None
    factor = _spread(a[large] / b[large])
    if factor is None or factor == 0:
        return None
    rounded = round(factor, 3)
    return rounded if math.isclose(factor, rounded, rel_tol=_ALIKE) else factor


def _spread(values: torch.Tensor) -> float | None:
    """The value that all of them have, to a thousandth; None where they differ."""
    middle = float(values.median())
    return middle if float((values - middle).abs().max()) <= _ALIKE * abs(middle) else None


def _sample(bad: torch.Tensor) -> torch.Tensor:
    """Flat indices of wrong elements: all, or an even choice of those in an even choice of all elements."""
    flat = bad.reshape(-1)
    step = -(-len(flat) // _SMALL)
    at = flat[::step].nonzero().reshape(-1) * step
    if len(at) < 64 and step > 1:
        first = int(flat.view(torch.uint8).argmax())
        at = flat[first : first + _SMALL].nonzero().reshape(-1) + first
    return at[:: -(-len(at) // _SAMPLE)]


# ------------------------------------------------------------------------------------------------ order


def _order(got: torch.Tensor, want: torch.Tensor, count: int) -> Iterator[str]:
    """The right numbers at other places."""
    if not want.is_floating_point() or want.numel() > _SMALL or count < max(4, want.numel() // 4):
        return
    flat, wanted = got.reshape(-1), want.reshape(-1)

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-3, atol=1e-5) and not torch.allclose(b, b[:1].expand_as(b))

    if want.dim() >= 2 and min(want.shape[-2:]) > 1 and same(flat, want.transpose(-1, -2).reshape(-1)):
        yield "these are the expected numbers with the last two dimensions transposed in memory"
    for shift in (1, -1):
        if same(flat[max(shift, 0) : len(flat) + min(shift, 0)], wanted[max(-shift, 0) : len(flat) + min(-shift, 0)]):
            yield f"these are the expected numbers shifted by {shift} element in memory"
