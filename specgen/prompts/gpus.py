"""What data sheets say of GPUs, by the names that nvidia-smi gives them. Dense rates: sparsity is not counted.

Sources: NVIDIA's data sheets ("H200 Tensor Core GPU", "H100 Tensor Core GPU", "A100", "L40S", "L4", "A10", "T4") and
architecture white papers (Hopper, Ampere, Ada: multiprocessors, L2, GeForce rates with fp32 accumulation); shared
memory and registers by compute capability from the CUDA C++ Programming Guide. A GPU that is not here is described by
what its driver says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from specgen.prompts.device import GpuFacts


@dataclass(frozen=True)
class Sheet:
    """``name``: a pattern of the driver's name. ``tflop_s``: peaks by precision, tensor cores where they do it."""

    name: str
    capability: str
    multiprocessors: int
    memory_gb: int  # as sold
    bandwidth_gb_s: float
    l2_mib: float
    tflop_s: tuple[tuple[str, float], ...]


SHARED_KIB = {  # per multiprocessor, and what one block may have of it
    "7.5": (64, 64),
    "8.0": (164, 163),
    "8.6": (100, 99),
    "8.9": (100, 99),
    "9.0": (228, 227),
}
REGISTERS = 65_536  # 32-bit, per multiprocessor, of all of them
_HOPPER_SXM = (("fp32", 67.0), ("tf32", 494.7), ("bf16, fp16", 989.5), ("fp8", 1979.0))
_A100 = (("fp32", 19.5), ("tf32", 156.0), ("bf16, fp16", 312.0))

SHEETS = (
    Sheet(r"\bH200(?! NVL)", "9.0", 132, 141, 4800, 50, _HOPPER_SXM),
    Sheet(
        r"\bH100 NVL", "9.0", 132, 94, 3900, 50,
        (("fp32", 60.0), ("tf32", 417.5), ("bf16, fp16", 835.5), ("fp8", 1670.5)),
    ),
    Sheet(
        r"\bH100 PCIe", "9.0", 114, 80, 2000, 50,
        (("fp32", 51.0), ("tf32", 378.0), ("bf16, fp16", 756.5), ("fp8", 1513.0)),
    ),
    Sheet(r"\bH100(?: 80GB| SXM|-SXM)", "9.0", 132, 80, 3350, 50, _HOPPER_SXM),
    Sheet(r"\bA100-SXM4-80GB|\bA100-SXM-80GB", "8.0", 108, 80, 2039, 40, _A100),
    Sheet(r"\bA100-SXM4-40GB|\bA100-SXM-40GB", "8.0", 108, 40, 1555, 40, _A100),
    Sheet(r"\bA100 80GB PCIe", "8.0", 108, 80, 1935, 40, _A100),
    Sheet(
        r"\bL40S\b", "8.9", 142, 48, 864, 96,
        (("fp32", 91.6), ("tf32", 183.0), ("bf16, fp16", 362.0), ("fp8", 733.0)),
    ),
    Sheet(
        r"\bL4\b", "8.9", 58, 24, 300, 48, (("fp32", 30.3), ("tf32", 60.0), ("bf16, fp16", 121.0), ("fp8", 242.5))
    ),
    Sheet(r"\bA10\b", "8.6", 72, 24, 600, 6, (("fp32", 31.2), ("tf32", 62.5), ("bf16, fp16", 125.0))),
    Sheet(
        r"\bRTX 4090\b(?! D| Laptop)", "8.9", 128, 24, 1008, 72,
        (("fp32", 82.6), ("tf32", 82.6), ("bf16, fp16", 165.2), ("fp8", 330.3)),
    ),
    Sheet(r"\bT4\b", "7.5", 40, 16, 320, 4, (("fp32", 8.1), ("fp16", 65.0))),
)  # fmt: skip


def sheet(name: str) -> Sheet | None:
    """Of the GPU that nvidia-smi calls so; None where it is not known."""
    return next((one for one in SHEETS if re.search(one.name, name)), None)


def described(facts: GpuFacts) -> GpuFacts:
    """What the driver did not say, from the data sheet. A slice of a GPU (MIG) has no data sheet."""
    known = sheet(facts.name)
    if known is None or "MIG" in facts.name:
        return facts
    shared, block = SHARED_KIB[known.capability]
    return replace(
        facts,
        compute_capability=facts.compute_capability or known.capability,
        multiprocessors=facts.multiprocessors or known.multiprocessors,
        memory_gib=facts.memory_gib or round(known.memory_gb * 1e9 / 2**30, 1),
        bandwidth_gb_s=facts.bandwidth_gb_s or known.bandwidth_gb_s,
        l2_mib=facts.l2_mib or known.l2_mib,
        shared_kib_per_multiprocessor=facts.shared_kib_per_multiprocessor or shared,
        shared_kib_per_block=facts.shared_kib_per_block or block,
        registers_per_multiprocessor=facts.registers_per_multiprocessor or REGISTERS,
        tflop_s=facts.tflop_s or known.tflop_s,
    )
