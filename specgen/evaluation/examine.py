"""One look at a problem: cost, floor, and whether its tolerance tells a kernel from a strawman.

Where the device is present and has the memory the reference runs, tried as a candidate will be; without it (a CUDA
problem on a machine without a GPU) memory, arithmetic and floor come from its shapes alone.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from specgen.evaluation.compare import agree, scale_error
from specgen.evaluation.floors import floor
from specgen.evaluation.machines import free_bytes, limits, present, times_ms
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import describe, leaves, mapped
from specgen.evaluation.tracer import Trace, trace, trace_run
from specgen.evaluation.trials import Trial, finite, largest, other, own, signed, spiked
from specgen.evaluation.verdict import Verdict
from specgen.types import ProblemSpec, Status

_TIMING_BUDGET_S = 0.5
_TRACE_LIMIT_S = 10.0


def examine_reference(problem: ProblemSpec) -> dict[str, Any]:
    """The fields of a Registration. Raises Verdict (reference_error)."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # fp32 is fp32, as for products
    if not present(problem.backend):
        note = "no GPU here: nothing was run, the floor is a data sheet's"
        return _costs(problem, trace(problem)) | {"warnings": [note]}
    try:
        shapes: Trace | None = trace(problem, _TRACE_LIMIT_S)
    except Verdict:
        shapes = None  # it depends on values, takes long, or is wrong: the run on real tensors tells
    if shapes is not None and (note := _too_large(problem, shapes)):
        return _costs(problem, shapes) | {"warnings": [note]}
    cost, found = _run(problem, shapes)
    return _costs(problem, cost) | found


def _costs(problem: ProblemSpec, cost: Trace) -> dict[str, Any]:
    rates = limits(problem.backend, cost.moved_bytes, problem.tolerance)
    least = floor(cost.moved_bytes, cost.needed_flops, rates.gb_s, rates.gflop_s)
    return {
        "name": problem.name, "origin": problem.origin, "sha256": problem.sha256, "backend": problem.backend,
        "tolerance": problem.tolerance, "device": rates.device, "limits": rates.source,
        "gb_s": rates.gb_s, "gflop_s": rates.gflop_s,
        "input_bytes": cost.input_bytes, "parameter_bytes": cost.parameter_bytes, "output_bytes": cost.output_bytes,
        "peak_bytes": cost.peak_bytes, "moved_bytes": cost.moved_bytes, "outputs": list(cost.outputs),
        "flops": cost.flops, "product_flops": cost.product_flops, "needed_flops": cost.needed_flops,
        "floor_ms": least.ms, "floor_bound": least.bound,
    }  # fmt: skip


def _run(problem: ProblemSpec, shapes: Trace | None) -> tuple[Trace, dict[str, Any]]:
    reference = Reference(problem)
    _crosses("get_init_inputs()", reference.init_inputs)
    trial = own(reference)
    _crosses("get_inputs()", trial.inputs)
    _check(trial, reference)
    again = reference.forward(trial.inputs, trial.seed)
    private = list(mapped(trial.inputs, torch.clone))
    cost = shapes or trace_run(reference, private)
    reference_ms = times_ms(lambda: reference.run(private, trial.seed), problem.backend, _TIMING_BUDGET_S)
    most = largest(problem.tolerance, cost.product_flops > 0)
    others = [other(reference, kind.__name__, kind, problem.tolerance, most) for kind in (signed, spiked)]
    trials = [trial, *(item for item in others if item is not None)]
    errors = straw_errors(trials)
    accepted = {name: [_passes(name, item, problem.tolerance) for item in trials] for name in errors}
    return cost, {
        "reference_ms": statistics.median(reference_ms), "distributions": len(trials),
        "strawmen": [name for name, passed in accepted.items() if all(passed)], "straw_errors": errors,
        "warnings": _warnings(trials, accepted, again, problem.tolerance) + _stated(cost),
    }  # fmt: skip


def _crosses(what: str, value: object) -> None:
    try:
        describe(value)
    except TypeError as exc:
        raise Verdict(Status.REFERENCE_ERROR, f"{what}: {exc}") from exc


def _too_large(problem: ProblemSpec, cost: Trace) -> str:
    """Why nothing is run; empty where it fits. Several trials lie beside each other, one is computed in float64."""
    free = free_bytes(problem.backend)
    held = 4 * cost.input_bytes + 8 * cost.output_bytes + 2 * cost.parameter_bytes
    needed = 2 * cost.peak_bytes + held
    if needed <= free:
        return ""
    return f"not run: judging it needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free here"


def _check(trial: Trial, reference: Reference) -> None:
    for what, value in (("get_inputs()", trial.inputs), ("get_init_inputs()", reference.init_inputs),
                        ("forward()", trial.expected)):  # fmt: skip
        try:
            describe(value)
        except TypeError as exc:
            raise Verdict(Status.REFERENCE_ERROR, f"the problem's {what}: {exc}") from exc
    if not list(leaves(trial.expected)):
        raise Verdict(Status.REFERENCE_ERROR, "the problem's forward() returns no tensor")


def straw_errors(trials: list[Trial]) -> dict[str, dict[str, float]]:
    """Of each strawman, by distribution: the largest error relative to the output's scale."""
    return {name: {trial.name: scale_error(make(trial), trial.expected) for trial in trials} for name, make in _STRAW}


def _passes(name: str, trial: Trial, tolerance: float) -> bool:
    return agree(dict(_STRAW)[name](trial), trial.expected, tolerance, scaled=trial.scaled)


def _zeros(trial: Trial) -> Any:
    return mapped(trial.expected, torch.zeros_like)


def _means(trial: Trial) -> Any:
    """The output's mean everywhere; a single number is left out, being its own mean."""

    def mean(leaf: torch.Tensor) -> torch.Tensor:
        if not leaf.is_floating_point() or leaf.numel() <= 1:
            return torch.zeros_like(leaf)
        return torch.full_like(leaf, float(leaf.double().mean()))

    return mapped(trial.expected, mean)


def _copy(trial: Trial) -> Any:
    inputs = list(leaves(trial.inputs))

    def pick(leaf: torch.Tensor) -> torch.Tensor:
        same = [item for item in inputs if item.shape == leaf.shape and item.dtype == leaf.dtype]
        return same[0] if same else torch.zeros_like(leaf)

    return mapped(trial.expected, pick)


_STRAW = (("zeros", _zeros), ("mean", _means), ("copy of an input", _copy))


def _warnings(trials: list[Trial], accepted: dict[str, list[bool]], again: Any, tolerance: float) -> list[str]:
    always = [name for name, passed in accepted.items() if all(passed)]
    at_first = [name for name, passed in accepted.items() if passed[0] and name not in always]
    found = [f"the tolerance {tolerance:g} accepts a strawman on every kind of inputs: {name}" for name in always]
    found += [
        f"the tolerance {tolerance:g} accepts a strawman on the problem's own inputs: {name}; other inputs refuse it"
        for name in at_first
    ]
    if not finite(trials[0].expected):
        found.append("the reference's own output is not finite")
    if not agree(again, trials[0].expected, tolerance):
        found.append("the reference gives different outputs for the same inputs and seed")
    if len(trials) == 1:
        found.append("no other input distribution fits: candidates are tried on the problem's own inputs only")
    return found


def _stated(cost: Trace) -> list[str]:
    if cost.needed_flops <= cost.flops:
        return []
    return [f"NEEDED_FLOPS is {cost.needed_flops:.4g}, more than the reference's own {cost.flops:.4g} operations"]
