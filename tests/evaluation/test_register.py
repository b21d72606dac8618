"""Registration: cost and floor, strawmen, warnings, and what cannot be registered."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from specgen.errors import ProblemError
from specgen.evaluation.problems import load_problem
from specgen.evaluation.register import Registration, examine, main, register
from specgen.types import ProblemSpec

SOURCE = """
import torch
STATED
class Model(torch.nn.Module):
    def forward(self, a):
        return FORWARD
def get_inputs():
    return [INPUT]
def get_init_inputs():
    return []
"""
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def look(forward: str, input_: str = "torch.rand(64, 64)", stated: str = "", tolerance: float = 1e-2) -> Registration:
    source = SOURCE.replace("FORWARD", forward).replace("INPUT", input_).replace("STATED", stated)
    threads = torch.get_num_threads()
    try:
        return examine(ProblemSpec(name="mine", source=source, tolerance=tolerance))
    finally:
        torch.set_num_threads(threads)


def test_a_registration_says_what_a_problem_costs() -> None:
    found = register(load_problem("T12"))
    assert found.input_bytes == 256 * 1024 * 4
    assert found.parameter_bytes == 1024 * 1024 * 4
    assert found.output_bytes == 256 * 4
    assert found.moved_bytes == found.input_bytes + found.parameter_bytes + found.output_bytes
    assert found.peak_bytes > found.moved_bytes
    assert 2 * 256 * 1024 * 1024 == found.product_flops < found.flops
    assert found.floor_bound == "memory"  # the product need not be made
    assert found.floor_ms == pytest.approx(found.moved_bytes / found.gb_s / 1e6)
    assert found.reference_ms is not None
    assert found.floor_ms < found.reference_ms
    assert found.outputs == ["float32 [256, 1]"]
    assert Registration(**json.loads(json.dumps(asdict(found)))) == found


@pytest.mark.parametrize("name", ["T15", "T18"])
def test_no_strawman_passes_where_outputs_hardly_vary_beside_their_size(name: str) -> None:
    """A sum of sigmoids is near half its terms, a softmax near nothing: within 1e-2, but not within their variation."""
    found = examine(load_problem(name))
    assert found.strawmen == []
    assert not [text for text in found.warnings if "strawman" in text]
    assert found.distributions == 3


def test_a_strawman_that_passes_on_own_inputs_only_is_warned_of() -> None:
    found = look("a.mean() * 1e-3")
    assert found.strawmen == []
    assert any("own inputs: zeros" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("forward", "straw"),
    [("torch.zeros_like(a) + 0 * a", "zeros"), ("a * 1", "copy of an input"), ("a * 0 + 3", "mean")],
)
def test_strawmen_that_are_always_right_are_named(forward: str, straw: str) -> None:
    found = look(forward)
    assert straw in found.strawmen
    assert any(f"every kind of inputs: {straw}" in text for text in found.warnings)
    assert max(found.straw_errors[straw].values()) < 1e-2


def test_a_problem_that_tells_kernels_from_straw_has_no_warning() -> None:
    found = look("a @ a")
    assert (found.strawmen, found.warnings) == ([], [])
    assert all(error > 0.1 for kinds in found.straw_errors.values() for error in kinds.values())


def test_an_output_that_changes_from_run_to_run_is_warned_of() -> None:
    # a generator of its own: the seed before forward does not reach it
    found = look("a + torch.rand(64, 64, generator=G)", stated="G = torch.Generator()")
    assert any("different outputs" in text for text in found.warnings)


def test_arithmetic_that_a_problem_states_makes_a_floor() -> None:
    stated = "NEEDED_FLOPS = 2 * 64**3"
    assert look("a @ a").needed_flops == 0
    found = look("a @ a", stated=stated)
    assert found.needed_flops == 2 * 64**3
    assert found.floor_ms >= found.needed_flops / (found.gflop_s * 1e6)
    many = look("a @ a", stated="NEEDED_FLOPS = 3 * 64**3")
    assert any("NEEDED_FLOPS" in text for text in many.warnings)


def test_a_reference_that_reads_values_is_measured_on_real_tensors() -> None:
    found = look("a * a.sum().item()")
    assert found.flops > 64 * 64
    assert found.moved_bytes == 2 * 64 * 64 * 4


def test_too_large_for_this_machine_is_said_before_anything_is_allocated() -> None:
    found = look("a.sum()", "torch.rand(1 << 41)")
    assert found.input_bytes == 1 << 43
    assert found.reference_ms is None
    assert found.floor_ms == pytest.approx(found.moved_bytes / found.gb_s / 1e6)
    assert [text for text in found.warnings if "not run: judging it needs about 49152 GiB" in text]


@WITHOUT_GPU
def test_a_gpu_problem_is_registered_from_its_shapes_where_there_is_no_gpu() -> None:
    found = examine(load_problem("T15", "cuda"))
    assert (found.device, found.limits) == ("H200", "NVIDIA's data sheet")
    assert found.parameter_bytes == 32768 * 32769 * 4
    assert found.floor_ms == pytest.approx((found.moved_bytes) / 4800e6)
    assert found.reference_ms is None
    assert found.straw_errors == {}
    assert any("no GPU" in text for text in found.warnings)


@WITHOUT_GPU
def test_a_gpu_problem_that_is_wrong_is_refused_without_a_gpu_too() -> None:
    source = SOURCE.replace("FORWARD", "a @ a").replace("INPUT", "torch.rand(3, 4)").replace("STATED", "")
    with pytest.raises(ProblemError, match="forward"):
        examine(ProblemSpec(name="bad", source=source, backend="cuda"))


def test_a_reference_that_never_ends_is_given_up() -> None:
    source = SOURCE.replace("FORWARD", "a").replace("INPUT", "torch.rand(2)").replace("STATED", "while True: pass")
    with pytest.raises(ProblemError, match="did not finish within 2 s"):
        register(ProblemSpec(name="endless", source=source), timeout_s=2)


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["E1", "--tolerance", "0.001"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["tolerance"], found["distributions"]) == ("E1", 0.001, 3)
