"""Facts of GPUs by the names that nvidia-smi gives them."""

from __future__ import annotations

import pytest

from specgen.evaluation.floors import datasheet
from specgen.prompts import GpuFacts, described
from specgen.prompts.gpus import SHARED_KIB, SHEETS, sheet

NAMES = {  # nvidia-smi's name: multiprocessors, GB/s, dense bf16 (or fp16) TFLOP/s
    "NVIDIA H200": (132, 4800, 989.5),
    "NVIDIA H100 80GB HBM3": (132, 3350, 989.5),
    "NVIDIA H100 PCIe": (114, 2000, 756.5),
    "NVIDIA H100 NVL": (132, 3900, 835.5),
    "NVIDIA A100-SXM4-80GB": (108, 2039, 312),
    "NVIDIA A100-SXM4-40GB": (108, 1555, 312),
    "NVIDIA A100 80GB PCIe": (108, 1935, 312),
    "NVIDIA L40S": (142, 864, 362),
    "NVIDIA L4": (58, 300, 121),
    "NVIDIA A10": (72, 600, 125),
    "NVIDIA GeForce RTX 4090": (128, 1008, 165.2),
    "Tesla T4": (40, 320, 65),
}
UNKNOWN = (
    "NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA L40", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA T400", "NVIDIA GH200 480GB", "unknown",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_known_gpu_is_described_in_full(name: str) -> None:
    facts = described(GpuFacts(name, memory_gib=12.5))
    peaks = dict(facts.tflop_s)
    assert (facts.multiprocessors, facts.bandwidth_gb_s) == NAMES[name][:2]
    assert peaks.get("bf16, fp16", peaks.get("fp16")) == NAMES[name][2]
    assert facts.memory_gib == 12.5  # what the driver says stands
    shared = SHARED_KIB[facts.compute_capability]
    assert (facts.shared_kib_per_multiprocessor, facts.shared_kib_per_block) == shared
    labels = [label for label, _ in facts.rows()]
    assert len(labels) == 10
    assert "peak arithmetic (TFLOP/s, dense)" in labels
    rates = [rate for _, rate in facts.tflop_s]
    assert rates == sorted(rates)


def test_each_data_sheet_is_one_gpus() -> None:
    assert len(SHEETS) == len(NAMES) == 12
    assert len({id(sheet(name)) for name in NAMES}) == 12


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_gpu_that_is_not_known_is_what_its_driver_says(name: str) -> None:
    facts = GpuFacts(name, "9.0", memory_gib=10.0)
    assert described(facts) == facts


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_prompts_and_the_judge_read_the_same_data_sheet(name: str) -> None:
    peaks, facts = datasheet(name), described(GpuFacts(name))
    assert peaks is not None
    assert facts.bandwidth_gb_s == peaks.gb_s
    told = dict(facts.tflop_s)
    assert [1000 * told[key] for key in ("fp32", "tf32", "bf16, fp16")] == pytest.approx(
        [peaks.gflop_s[key] for key in ("fp32", "tf32", "bf16")]
    )
