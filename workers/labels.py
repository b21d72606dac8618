"""What a device is called: its labels, by which jobs ask for it, and its identity, by which it is held.

Labels are the backend, for a GPU a short form of its model's name, and what ``SPECGEN_DEVICE_LABELS`` adds. A GPU is
asked through ``nvidia-smi``, never through CUDA: the parent of a worker must not initialise a driver.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from dataclasses import dataclass

from specgen.errors import SettingsError
from specgen.evaluation.cell import Device
from specgen.prompts import GpuFacts

LABEL = re.compile(r"[a-z0-9][a-z0-9_.-]*")
QUERY = "uuid,name,compute_cap,memory.total"
BRANDS = frozenset(("nvidia", "geforce", "tesla", "quadro", "graphics", "generation", "edition", "laptop", "gpu"))
_SIZE = re.compile(r"\d+(gb|gib)|hbm\w*|pcie|sxm\d*|nvl")
ASK_S = 10.0


def parse_device(name: str) -> Device:
    """``cpu0``, ``cpu:0``, ``<host>/cpu0`` or ``gpu1``. Raises ValueError otherwise."""
    found = re.fullmatch(r"(?:.*/)?(cpu|gpu|cuda):?(\d+)", name)
    if not found:
        raise ValueError(f"not a device: {name} (such as cpu0 or gpu1)")
    return Device(name=name, backend="cpu" if found[1] == "cpu" else "cuda", index=int(found[2]))


def worker_name(device: Device) -> str:
    """The Celery node's name, by which roles and heartbeats go."""
    kind = "cpu" if device.backend == "cpu" else "gpu"
    return f"device-{kind}{device.index}@{socket.gethostname()}"


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver names it."""

    uuid: str
    facts: GpuFacts


def gpu_label(name: str) -> str:
    """``h200`` of ``NVIDIA H200``, ``rtx4090`` of ``NVIDIA GeForce RTX 4090``; without memory size and socket."""
    words = [word.partition("-")[0] for word in name.lower().split()]
    words = [word for word in words if word not in BRANDS and not _SIZE.fullmatch(word)]
    if words[:1] == ["rtx"] and len(words) > 1 and words[1][0] == "a":
        del words[0]  # a professional card: everyone calls an RTX A6000 a6000
    return re.sub(r"[^a-z0-9]", "", "".join(words)) or "gpu"


def ask_gpu(index: int) -> Gpu | None:
    """The driver's answer about one GPU; None where there is no ``nvidia-smi``, or it does not know the GPU."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", str(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ASK_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpu(done.stdout)


def arch_list(capability: str) -> str:
    """The CUDA architecture to build for, as torch writes it; where it has such, with what only it has (wgmma)."""
    return f"{capability}a" if capability.partition(".")[0].isdigit() and float(capability) >= 9.0 else capability


def gpus_here(choice: str) -> list[Device]:
    """``all`` that the driver names, or numbers such as ``0,1``, or none. Raises SettingsError."""
    if not choice:
        return []
    if choice != "all" and not re.fullmatch(r"\d+(,\d+)*", choice):
        raise SettingsError(f"no GPUs are called {choice!r}", "all, or numbers such as 0,1")
    numbers = sorted({int(number) for number in choice.split(",")}) if choice != "all" else _numbers()
    if not numbers:
        raise SettingsError("there is no GPU here", "is the driver loaded? `nvidia-smi -L` lists them")
    return [parse_device(f"gpu{number}") for number in numbers]


def _numbers() -> list[int]:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ASK_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(word) for word in done.stdout.split() if word.isdigit()]


def parse_gpu(answer: str) -> Gpu | None:
    """The first line of what ``nvidia-smi`` answers; None where it is none."""
    fields = [field.strip() for field in answer.strip().partition("\n")[0].split(",")]
    if len(fields) != 4 or not fields[0].startswith("GPU-"):
        return None
    uuid, name, capability, memory_mib = fields
    memory = round(float(memory_mib) / 1024, 1) if re.fullmatch(r"[\d.]+", memory_mib) else None
    return Gpu(uuid, GpuFacts(name=name, compute_capability=capability, memory_gib=memory))


def labels(device: Device, gpu: Gpu | None) -> tuple[str, ...]:
    """Without doubles, the backend first. Raises SettingsError for a name that is none."""
    found = [device.backend, *([gpu_label(gpu.facts.name)] if gpu else [])]
    for text in os.environ.get("SPECGEN_DEVICE_LABELS", "").split(","):
        label = text.strip()
        if label and not LABEL.fullmatch(label):
            raise SettingsError(
                f"SPECGEN_DEVICE_LABELS: {label!r} is no label", "use lower-case letters, digits, '.', '_' and '-'"
            )
        found += [label] if label else []
    return tuple(dict.fromkeys(found))


def identity(device: Device, gpu: Gpu | None) -> str:
    """The same for every worker that would use this device."""
    kind = "cpu" if device.backend == "cpu" else "gpu"
    return gpu.uuid if gpu else f"{socket.gethostname()}/{kind}{device.index}"
