"""Which lower precision a kernel computes in, told from its errors; labels only, nothing is refused here.

An error above 1e-4 of the output's scale (signed inputs, against float64) is more than fp32 arithmetic leaves:
``reduced_precision``. What made it is then asked. Outputs that are not finite where inputs exceed fp16's largest
number and the reference is finite: ``half``. Inputs and parameters whose mantissas are short already: where the error
disappears at ten explicit bits, numbers are rounded to ten bits inside; at seven, to seven (``bfloat16``). TF32 and
fp16 both keep ten; inputs of about 2^-20, where fp16 has four, tell them apart (``half``, ``tf32``), without the biases
where those hide small inputs. Where none of this can be seen (intermediate results are rounded too, a threshold lies
between) there is no such label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specgen.evaluation.compare import scale, scale_error
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import leaves, mapped
from specgen.evaluation.trials import Trial, finite, fresh_seed, rounded
from specgen.evaluation.weights import Weights

REDUCED = 1e-4  # of the output's scale; fp32 summation stays far below
_GONE = 0.25  # an error that shrinks to this share had its cause in the bits that were taken away
_TINY = 2.0**-20  # fp16 has four bits left there
_HUGE = 2.0**20  # above fp16's 65504 for all but the smallest numbers
_RANGE_ERROR = 1.5e-2  # of what tiny inputs do to the output: fp16's is larger
_SEEN = 3e-6  # of the output's scale: tiny inputs that do less cannot be seen in fp32

Run = Callable[[Trial], Any]


def labels(reference: Reference, weights: Weights, signed: Trial, error: float, run: Run) -> tuple[str, ...]:
    """Of a candidate whose largest error on signed inputs was ``error``. ``run`` gives its outputs on a trial."""
    if error <= REDUCED:
        return ()
    if not weights.values or weights.changeable:
        kept = {name: value.clone() for name, value in weights.values.items()}
        try:
            if (found := _told(reference, weights, signed, error, run)) is not None:
                return (found, "reduced_precision")
        finally:
            weights.put(kept)
    return ("reduced_precision",)


def _told(reference: Reference, weights: Weights, signed: Trial, error: float, run: Run) -> str | None:
    if _overflows(reference, run, mapped(signed.inputs, lambda leaf: _scaled(leaf, _HUGE))):
        return "half"
    weights.put(rounded(dict(weights.values), 10))
    short = rounded(signed.inputs, 10)
    ten = _error(reference, run, short)
    if ten is not None and ten < _GONE * error:
        far = _range_error(reference, run, short)
        if far is None:  # biases are what hides tiny inputs
            weights.put({name: value * 0 if value.dim() < 2 else value for name, value in weights.values.items()})
            far = _range_error(reference, run, short)
        return None if far is None else "half" if far > _RANGE_ERROR else "tf32"
    weights.put(rounded(dict(weights.values), 7))
    seven = _error(reference, run, rounded(signed.inputs, 7))
    return "bfloat16" if seven is not None and seven < _GONE * error else None


def _scaled(leaf: torch.Tensor, factor: float) -> torch.Tensor:
    return leaf * factor if leaf.is_floating_point() else leaf


def _overflows(reference: Reference, run: Run, inputs: list[Any]) -> bool:
    """Whether outputs are not finite though the reference's are, in fp32 too."""
    seed = fresh_seed()
    expected = reference.forward(inputs, seed)
    return finite(expected) and not finite(run(Trial("a precision probe", inputs, expected, seed)))


def _error(reference: Reference, run: Run, inputs: list[Any]) -> float | None:
    seed = fresh_seed()
    exact = reference.double(inputs, seed)
    if exact is None:
        return None
    return scale_error(run(Trial("a precision probe", inputs, exact, seed)), exact)


def _range_error(reference: Reference, run: Run, inputs: list[Any]) -> float | None:
    """The error on tiny inputs relative to what they do to the output; None where that cannot be seen."""
    seed = fresh_seed()
    tiny = mapped(inputs, lambda leaf: _scaled(leaf, _TINY))
    none = mapped(inputs, lambda leaf: _scaled(leaf, 0.0))
    exact, without = reference.double(tiny, seed), reference.double(none, seed)
    if exact is None or without is None:
        return None
    got, worst = run(Trial("a precision probe", tiny, exact, seed)), 0.0
    for a, b, c in zip(leaves(got), leaves(exact), leaves(without), strict=True):
        done = scale(b - c)
        if not done > _SEEN * scale(b):
            return None
        found = float((a.double() - b.double()).abs().max()) / done
        worst = max(worst, found if found == found else float("inf"))
    return worst
