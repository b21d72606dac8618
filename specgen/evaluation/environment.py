"""What a result was measured on and by which rules, recorded with it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

from specgen.evaluation.nvml import driver_version
from specgen.evaluation.supervisor import Bench
from specgen.types import ProblemSpec


@lru_cache(maxsize=1)
def compiler() -> str:
    """The C++ compiler's first version line; empty where there is none."""
    for name in ("c++", "g++"):
        if shutil.which(name):
            done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False, timeout=20)
            return (done.stdout.splitlines() or [""])[0]
    return ""


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.machine()
    return platform.machine()


def device_model(backend: str) -> str:
    """The device's name. A GPU whose context was not made yet is not asked: an early verdict needs none."""
    if backend == "cpu":
        return cpu_model()
    made = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_device_name() if made else ""


def describe_environment(bench: Bench, problem: ProblemSpec) -> dict[str, str]:
    """Versions, device, walls and tolerance."""
    found = {
        "torch": str(torch.__version__),
        "compiler": compiler(),
        "device": device_model(bench.spec.backend),
        "kernel": platform.release(),
        "sandbox": bench.spec.sandbox,
        "build": bench.spec.build if bench.support else "stock",
        "tolerance": f"{problem.tolerance:g} absolute and relative",
        "problem_sha256": problem.sha256,
    }
    if bench.spec.backend == "cuda":
        found |= {"cpu": cpu_model(), "driver": driver_version(), "cuda": str(torch.version.cuda)}
    if problem.origin:
        found["problem_origin"] = problem.origin
    return found
