"""Floors: the numbers, and what is counted of a reference without its data."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from specgen.evaluation.ceilings import Ceilings
from specgen.evaluation.floors import datasheet, floor, usable_gflop_s
from specgen.evaluation.problems import builtin_names, load_problem
from specgen.evaluation.reference import Reference
from specgen.evaluation.tracer import trace, trace_run
from specgen.evaluation.verdict import Verdict
from specgen.types import ProblemSpec

SIZE = st.floats(0, 1e15)
RATE = st.floats(1e-3, 1e9)
MIB = 1 << 20


def problem(forward: str, inputs: str = "torch.rand(512, 512)", more: str = "", init: str = "pass") -> ProblemSpec:
    source = f"""
import torch
{more}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, *given):
        a = given[0]
        {forward}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""
    return ProblemSpec(name="mine", source=source)


@given(SIZE, SIZE, RATE, RATE)
def test_a_floor_is_the_larger_part(nbytes: float, flops: float, gb_s: float, gflop_s: float) -> None:
    found = floor(nbytes, flops, gb_s, gflop_s)
    assert found.ms >= 0
    if 0 < found.ms < 1e-300:
        return  # subnormal numbers round
    assert found.ms == (found.arithmetic_ms if found.bound == "arithmetic" else found.memory_ms)
    assert math.isclose(floor(2 * nbytes, 2 * flops, gb_s, gflop_s).ms, 2 * found.ms)
    assert math.isclose(floor(nbytes, flops, 2 * gb_s, 2 * gflop_s).ms, found.ms / 2)


def test_a_floor_has_units() -> None:
    found = floor(4.8e9, 989.5e9, 4800, 989_500)  # a second's worth of neither: a thousandth
    assert (found.memory_ms, found.arithmetic_ms) == (1.0, 1.0)


@pytest.mark.parametrize("rates", [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)])
def test_rates_that_are_none_are_refused(rates: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="positive rates"):
        floor(1, 1, *rates)


def test_devices_are_known_by_name() -> None:
    assert (found := datasheet("NVIDIA H200")) is not None
    assert found.gb_s == 4800
    assert datasheet("NVIDIA A100-SXM4-80GB") is not None
    assert datasheet("A device of the future") is None


def test_a_strict_tolerance_costs_products() -> None:
    assert usable_gflop_s(bf16=900, fp32=60, tolerance=1e-2) == 900
    assert usable_gflop_s(bf16=900, fp32=60, tolerance=1e-4) == 300
    assert usable_gflop_s(bf16=60, fp32=60, tolerance=1e-4) == 60


def test_gigabytes_are_counted_without_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = trace(load_problem("T1", "cuda"))
    assert found.input_bytes == 32768 * 32768 * 4 + 32768 * 4
    assert found.peak_bytes > 2 * found.input_bytes
    assert found.moved_bytes == found.input_bytes + 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB: under 1 GiB


@pytest.mark.parametrize("name", ["T3", "T14", "T20"])
def test_products_agree_with_torchs_counter_on_real_tensors(name: str) -> None:
    reference = Reference(load_problem(name))
    inputs = reference.inputs(1)
    with FlopCounterMode(display=False) as counter:
        reference.run(inputs, 1)
    found = trace(load_problem(name))
    assert found.product_flops == counter.get_total_flops()
    assert found == trace_run(reference, inputs)


def test_elementwise_operators_count_their_elements() -> None:
    found = trace(problem("return (a + 1).relu().sum()", "torch.rand(3, 5)"))
    assert (found.flops, found.product_flops, found.operators) == (45, 0, 3)


def test_the_peak_is_what_is_alive_at_once() -> None:
    found = trace(problem("return (((a + 1) * 2) - 3).sum()"))
    assert found.peak_bytes == 3 * MIB  # the input, one operand, one result


@pytest.mark.parametrize(
    ("forward", "inputs", "read"),
    [
        ("return a + 1", "torch.rand(512, 512), torch.rand(512, 512)", MIB),  # one is ignored
        ("return a[:128] + 1", "torch.rand(512, 512)", MIB // 4),
        ("return torch.zeros_like(a)", "torch.rand(512, 512)", 0),
        ("return torch.nn.functional.embedding(given[1], a)", "torch.rand(1024, 256), torch.zeros(8).long()", 8 * 1032),
        ("return a + 1", "torch.rand(512, 1).expand(512, 512)", 2048),  # an expanded input stores one column
        ("return a @ a.T", "torch.rand(512, 512)", MIB),
    ],
)
def test_only_what_is_read_must_be_moved(forward: str, inputs: str, read: int) -> None:
    found = trace(problem(forward, inputs))
    assert found.read_bytes == read
    assert found.moved_bytes == read + found.output_bytes


def test_parameters_are_told_from_inputs() -> None:
    found = trace(problem("return self.w @ a", init="self.w = torch.nn.Parameter(torch.rand(256, 512))"))
    assert (found.input_bytes, found.parameter_bytes, found.read_bytes) == (MIB, MIB // 2, MIB + MIB // 2)


def test_a_constructor_that_reads_values_is_no_obstacle() -> None:
    found = trace(problem("return a * self.w", init="self.w = torch.linspace(0, 1, 3)[1].item()"))
    assert found.flops == 512 * 512


def test_a_forward_that_reads_values_cannot_be_traced() -> None:
    with pytest.raises(Verdict, match="forward"):
        trace(problem("return a * a.sum().item()"))


@pytest.mark.parametrize("stated", ["-1", "'many'", "True", "float('inf')", "float('nan')"])
def test_needed_arithmetic_must_be_a_number(stated: str) -> None:
    with pytest.raises(Verdict, match="NEEDED_FLOPS"):
        trace(problem("return a + 1", more=f"NEEDED_FLOPS = {stated}"))


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_what_built_in_problems_state_is_no_more_than_they_do(backend: str) -> None:
    for name in builtin_names():
        found = trace(load_problem(name, backend))  # type: ignore[arg-type]
        assert found.needed_flops <= found.flops, name


def test_a_triangular_product_needs_a_sixth() -> None:
    n = 512
    pairs = sum((j - i + 1) for i in range(n) for j in range(i, n))  # k from i to j
    assert trace(load_problem("T6")).needed_flops == trace(load_problem("T7")).needed_flops == 2 * pairs


def test_tracing_ends_at_its_limit() -> None:
    with pytest.raises(Verdict, match="too long"):
        trace(problem("return a + 1"), limit_s=0)


def test_threads_and_flags_are_left_alone() -> None:
    threads = torch.get_num_threads()
    trace(load_problem("T2"))
    assert torch.get_num_threads() == threads


def test_what_was_measured_is_kept_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ceilings(tmp_path, "host/cpu0")
    rates = (first.gb_s(1 << 20), first.gb_s(5 << 20), first.gflop_s(), first.usable_gflop_s(1e-4))
    assert all(rate > 0 for rate in rates)
    assert rates[3] >= rates[2]  # several bfloat16 products for one of fp32, where those are faster

    monkeypatch.setattr("specgen.evaluation.machines.stopwatch", None)  # nothing can be measured any more
    again = Ceilings(tmp_path, "host/cpu0")
    assert (again.gb_s(1 << 20), again.gb_s(5 << 20), again.gflop_s(), again.usable_gflop_s(1e-4)) == rates
    with pytest.raises(TypeError):
        Ceilings(tmp_path, "host/cpu1").gflop_s()
    next((tmp_path / "ceilings").iterdir()).write_text("[1, 2]")
    with pytest.raises(TypeError):
        Ceilings(tmp_path, "host/cpu0").gflop_s()
