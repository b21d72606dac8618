"""One look at a reference: cost, outputs, and whether its tolerance tells a kernel from a strawman."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch

from specgen.evaluation.ceilings import copy_gb_s
from specgen.evaluation.compare import compare
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import describe, dtype_name, leaves, mapped
from specgen.evaluation.trials import Trial, finite, other, own, signed, spiked
from specgen.evaluation.verdict import Verdict
from specgen.evaluation.work import measure
from specgen.types import ProblemSpec, Status


def examine_reference(problem: ProblemSpec) -> dict[str, Any]:
    """The fields of a Registration. Raises Verdict (reference_error)."""
    torch.set_num_threads(1)
    reference = Reference(problem)
    trial = own(reference)
    _check(trial, reference)
    start = time.perf_counter()
    again = reference.forward(trial.inputs, trial.seed)
    reference_ms = (time.perf_counter() - start) * 1e3
    work = measure(reference, trial)
    others = [other(reference, kind.__name__, kind, problem.tolerance) for kind in (signed, spiked)]
    trials = [trial, *(item for item in others if item is not None)]
    straw = strawmen(trials, problem.tolerance)
    return {
        "name": problem.name, "sha256": problem.sha256, "backend": problem.backend, "tolerance": problem.tolerance,
        "reference_ms": reference_ms, "input_bytes": work.input_bytes, "output_bytes": work.output_bytes,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "flops": work.flops,
        "floor_ms": work.moved_bytes / (copy_gb_s(work.moved_bytes) * 1e6),
        "outputs": [f"{dtype_name(leaf.dtype)} {list(leaf.shape)}" for leaf in leaves(trial.expected)],
        "distributions": len(trials), "strawmen": straw,
        "warnings": _warnings(trials, straw, again, problem.tolerance),
    }  # fmt: skip


def _check(trial: Trial, reference: Reference) -> None:
    for what, value in (("get_inputs()", trial.inputs), ("get_init_inputs()", reference.init_inputs),
                        ("forward()", trial.expected)):  # fmt: skip
        try:
            describe(value)
        except TypeError as exc:
            raise Verdict(Status.REFERENCE_ERROR, f"the problem's {what}: {exc}") from exc
    if not list(leaves(trial.expected)):
        raise Verdict(Status.REFERENCE_ERROR, "the problem's forward() returns no tensor")


def strawmen(trials: list[Trial], tolerance: float) -> list[str]:
    """Which worthless answers every trial would accept."""
    makers = {
        "zeros": lambda trial: mapped(trial.expected, torch.zeros_like),
        "mean": lambda trial: mapped(trial.expected, _mean),
        "copy of an input": _copy,
    }
    return [
        name
        for name, make in makers.items()
        if all(compare(make(trial), trial.expected, tolerance, scaled=trial.scaled) is None for trial in trials)
    ]


def _mean(leaf: torch.Tensor) -> torch.Tensor:
    """The output's mean everywhere; a single number is left out, being its own mean."""
    if not leaf.is_floating_point() or leaf.numel() == 1:
        return torch.zeros_like(leaf)
    return torch.full_like(leaf, float(leaf.double().mean()))


def _copy(trial: Trial) -> Any:
    inputs = list(leaves(trial.inputs))

    def pick(leaf: torch.Tensor) -> torch.Tensor:
        same = [item for item in inputs if item.shape == leaf.shape and item.dtype == leaf.dtype]
        return same[0] if same else torch.zeros_like(leaf)

    return mapped(trial.expected, pick)


def _warnings(trials: list[Trial], straw: list[str], again: Any, tolerance: float) -> list[str]:
    found = [f"the tolerance {tolerance:g} accepts a strawman: {name}" for name in straw]
    if not finite(trials[0].expected):
        found.append("the reference's own output is not finite")
    if compare(again, trials[0].expected, tolerance) is not None:
        found.append("the reference gives different outputs for the same inputs and seed")
    if len(trials) == 1:
        found.append("no other input distribution fits: candidates are tried on the problem's own inputs only")
    return found
