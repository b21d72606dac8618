"""What a prompt says about the device. Facts come in as a value; `cpu_facts` reads those of this machine (Linux)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FLAGS = "sse4_2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_tile amx_bf16 asimd sve sve2"


@dataclass(frozen=True)
class CpuFacts:
    """A CPU. Cache sizes in KiB, None where unknown; ``threads`` is how many a kernel is given (one pinned core)."""

    model_name: str
    cores: int
    simd: tuple[str, ...] = ()
    l1d_kib: int | None = None
    l2_kib: int | None = None
    l3_kib: int | None = None
    threads: int = 1

    def rows(self) -> list[tuple[str, str]]:
        """Label and value, the unknown left out."""
        caches = {"L1d cache": self.l1d_kib, "L2 cache": self.l2_kib, "L3 cache (shared)": self.l3_kib}
        return [
            ("CPU", self.model_name),
            ("cores a kernel runs on", f"{self.threads} (of {self.cores})"),
            ("SIMD", ", ".join(self.simd) or "unknown"),
            *((label, f"{size} KiB") for label, size in caches.items() if size),
        ]


@dataclass(frozen=True)
class GpuFacts:
    """A GPU; None where unknown."""

    name: str
    compute_capability: str = ""  # such as 9.0
    multiprocessors: int | None = None
    memory_gib: float | None = None
    bandwidth_gb_s: float | None = None
    l2_mib: float | None = None
    shared_kib_per_multiprocessor: int | None = None
    shared_kib_per_block: int | None = None
    registers_per_multiprocessor: int | None = None
    tflop_s: tuple[tuple[str, float], ...] = ()  # peaks by precision, dense

    def rows(self) -> list[tuple[str, str]]:
        """Label and value, the unknown left out."""
        values = {
            "compute capability": self.compute_capability or None,
            "multiprocessors": self.multiprocessors,
            "memory (GiB)": self.memory_gib,
            "memory bandwidth (GB/s)": self.bandwidth_gb_s,
            "L2 cache (MiB)": self.l2_mib,
            "shared memory per multiprocessor (KiB)": self.shared_kib_per_multiprocessor,
            "shared memory per block, opt-in (KiB)": self.shared_kib_per_block,
            "registers per multiprocessor": self.registers_per_multiprocessor,
            "peak arithmetic (TFLOP/s, dense)": ", ".join(f"{kind} {rate:g}" for kind, rate in self.tflop_s) or None,
        }
        return [("GPU", self.name), *((label, f"{value}") for label, value in values.items() if value)]


def cpu_facts(root: Path = Path("/")) -> CpuFacts:
    """This machine's, from /proc and /sys under ``root``; what cannot be read is unknown, never an error."""
    info = _text(root / "proc/cpuinfo")
    model = re.search(r"^(?:model name|Processor|CPU part)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    caches = _caches(root / "sys/devices/system/cpu/cpu0/cache")
    return CpuFacts(
        model_name=model[1].strip() if model else "unknown",
        cores=len(re.findall(r"^processor\s*:", info, re.MULTILINE)) or 1,
        simd=tuple(name for name in FLAGS.split() if name in has),
        l1d_kib=caches.get("1Data"),
        l2_kib=caches.get("2Unified"),
        l3_kib=caches.get("3Unified"),
    )


def _caches(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        size = re.match(r"(\d+)([KM]?)", _text(index / "size"))
        if size:
            kib = int(size[1]) * (1024 if size[2] == "M" else 1)
            found[_text(index / "level").strip() + _text(index / "type").strip()] = kib
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
