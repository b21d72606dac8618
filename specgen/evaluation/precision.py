"""Which lower precision a kernel computes in, told from its errors; labels only, nothing is refused here.

An error above 1e-4 of the output's scale (signed inputs, against float64) is more than fp32 arithmetic leaves:
``reduced_precision``. What made it is then asked with inputs and parameters whose mantissas are short already: where
the error disappears at ten explicit bits, numbers are rounded to ten bits inside; at seven, to seven (``bfloat16``).
TF32 and fp16 both keep ten; fp16 has a short range, so inputs of about 2^-20 tell them apart (``half``, ``tf32``).
Where nothing of this can be seen (a bias hides small inputs, intermediate results are rounded too) no such label is
given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specgen.evaluation.compare import scale, scale_error
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import leaves, mapped
from specgen.evaluation.trials import Trial, fresh_seed, rounded
from specgen.evaluation.weights import Weights

REDUCED = 1e-4  # of the output's scale; fp32 summation stays far below
_GONE = 0.25  # an error that shrinks to this share had its cause in the bits that were taken away
_TINY = 2.0**-20  # fp16 has four bits left there
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
    weights.put(rounded(dict(weights.values), 10))
    ten = _error(reference, run, rounded(signed.inputs, 10))
    far = _range_error(reference, run, rounded(signed.inputs, 10))
    if far is not None and far > _RANGE_ERROR:
        return "half"
    if ten is not None and ten < _GONE * error:
        return None if far is None else "tf32"
    weights.put(rounded(dict(weights.values), 7))
    seven = _error(reference, run, rounded(signed.inputs, 7))
    return "bfloat16" if seven is not None and seven < _GONE * error else None


def _error(reference: Reference, run: Run, inputs: list[Any]) -> float | None:
    seed = fresh_seed()
    exact = reference.double(inputs, seed)
    if exact is None:
        return None
    return scale_error(run(Trial("a precision probe", inputs, exact, seed)), exact)


def _range_error(reference: Reference, run: Run, inputs: list[Any]) -> float | None:
    """The error on tiny inputs relative to what they do to the output; None where that cannot be seen."""
    seed = fresh_seed()
    tiny = mapped(inputs, lambda leaf: leaf * _TINY if leaf.is_floating_point() else leaf)
    none = mapped(inputs, lambda leaf: leaf * 0 if leaf.is_floating_point() else leaf)
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
