"""What the reference's forward does: arithmetic, operators by signature, and the bytes that must be moved once.

Counted on the reference only; a candidate may need less arithmetic, but it cannot avoid reading what the output
depends on and writing the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specgen.evaluation.audit import OperatorLog
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import leaves, mapped
from specgen.evaluation.trials import Trial

_CHUNKS = 8


@dataclass(frozen=True)
class Work:
    """One forward of the reference."""

    flops: float
    operators: dict[str, int]
    kinds: dict[str, float]  # of work: see audit.work_of
    input_bytes: int  # of inputs and parameters, each stored element once
    output_bytes: int

    @property
    def moved_bytes(self) -> int:
        """Inputs read once and outputs written once."""
        return self.input_bytes + self.output_bytes


def _stored(value: Any) -> int:
    return sum(min(leaf.untyped_storage().nbytes(), leaf.numel() * leaf.element_size()) for leaf in leaves(value))


def measure(reference: Reference, trial: Trial) -> Work:
    """Run the reference once under counters."""
    private = list(mapped(trial.inputs, torch.clone))
    with OperatorLog() as log:
        reference.run(private, trial.seed)
    parameters = list(reference.state().values())
    return Work(
        flops=log.work.total(),
        operators=dict(log.seen),
        kinds=dict(log.work),
        input_bytes=_stored(trial.inputs) + _stored(parameters),
        output_bytes=_stored(trial.expected),
    )


def needed_bytes(reference: Reference, trial: Trial, work: Work) -> int:
    """The part of ``moved_bytes`` that the output really depends on, tested on eighths of every input.

    For a refusal only (it runs the reference many times): an input that the reference ignores need not be read.
    """
    total = work.output_bytes
    inputs = list(trial.inputs)
    before = reference.forward(inputs, trial.seed)  # its parameters may have changed since the trial
    for number, leaf in enumerate(leaves(inputs)):
        if not leaf.is_floating_point() or leaf.numel() < 1024:
            continue
        for chunk in range(_CHUNKS):
            if _depends(reference, trial, before, number, chunk):
                total += leaf.numel() * leaf.element_size() // _CHUNKS
    return total


def _depends(reference: Reference, trial: Trial, before: Any, number: int, chunk: int) -> bool:
    position = -1

    def change(leaf: torch.Tensor) -> torch.Tensor:
        nonlocal position
        position += 1
        if position != number:
            return leaf
        flat = leaf.clone().reshape(-1)
        size = flat.numel() // _CHUNKS
        part = flat[chunk * size : (chunk + 1) * size]
        part.copy_(part * -3.0 + 7.0)
        return flat.reshape(leaf.shape)

    changed = reference.forward(list(mapped(trial.inputs, change)), trial.seed)
    pairs = zip(leaves(changed), leaves(before), strict=True)
    return any(not torch.equal(a, b) for a, b in pairs)
