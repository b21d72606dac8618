"""The stock of CUDA candidates through the whole evaluator, on a real GPU. Prints what it ran on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specgen.evaluation.cell import Device, evaluate
from specgen.evaluation.problems import load_problem
from specgen.llm.synthetic.gpu_stock import WRONG, Kernel, correct
from specgen.settings import EvaluationPolicy, get_settings
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, Status

pytestmark = pytest.mark.gpu
GOOD = [kernel for kernel in correct() if kernel.style in ("float4", "wgmma", "tf32", "two_kernels", "dispatch")]


@pytest.fixture(scope="module")
def gpu() -> Device:
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("no NVIDIA GPU here")
    named = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    print(named.splitlines()[0])  # noqa: T201  what it ran on
    return Device("gpu0", "cuda", 0)


def judge(gpu: Device, kernel: Kernel, phase: Phase) -> EvaluationResult:
    request = EvaluationRequest(
        request_id="r",
        job_id="j",
        iteration=0,
        candidate_id=kernel.name,
        phase=phase,
        origin=Origin.MAIN,
        source=kernel.source,
        problem=load_problem(kernel.task, "cuda"),
        label="cuda",
        time_budget_s=30.0 if kernel.status is Status.HANG else 120.0,
    )
    return evaluate(request, gpu, EvaluationPolicy(), get_settings().cache_path)


@pytest.mark.parametrize("kernel", GOOD, ids=lambda kernel: kernel.name)
def test_honest_candidates_are_valid(gpu: Device, kernel: Kernel) -> None:
    result = judge(gpu, kernel, Phase.VALIDATE)
    assert result.status is Status.VALID, (result.status, result.rule, result.error)
    print(kernel.name, round(result.speedup or 0, 2), result.build_route, round(result.build_s, 1))  # noqa: T201


@pytest.mark.parametrize("kernel", WRONG, ids=lambda kernel: kernel.name)
def test_wrong_candidates_get_their_status(gpu: Device, kernel: Kernel) -> None:
    result = judge(gpu, kernel, Phase.VALIDATE)
    assert result.status is kernel.status, (result.status, result.error)


def test_a_profile_has_counters(gpu: Device) -> None:
    kernel = next(kernel for kernel in correct("T4") if kernel.style == "float4")
    result = judge(gpu, kernel, Phase.PROFILE)
    assert result.profile is not None
    assert result.status in (Status.VALID, Status.PROFILER_UNAVAILABLE)
    if result.status is Status.VALID:
        assert (result.profile.counters["dram_read_bytes"] or 0) > 60e6
