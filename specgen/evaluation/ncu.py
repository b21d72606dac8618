"""Nsight Compute: which metrics are asked for, the command line, and its CSV read back. Pure text, no process.

A metric's value over several launches is a sum (bytes, instructions), a mean weighted by the launches' times
(shares of a peak, hit rates, stalls), or that of the longest launch (registers, occupancy limits). Names carry units.
Not here: running ncu (:mod:`specgen.evaluation.counters`). The 24 metrics are CudaForge's; the rest are named in
docs/evaluation.md. Speedups never come from here: ncu replays kernels.
"""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

LAUNCHES = 100  # of one forward: what is counted at most
_NAMES = 200  # kernel names in one filter
_LONGEST = 100_000  # characters of a line that can be one of the table


@dataclass(frozen=True)
class Metric:
    """A counter: its name in profiles, ncu's names for it (the first that this chip has counts), and what it tells."""

    name: str
    sources: tuple[str, ...]
    over_launches: Literal["sum", "mean", "longest"]
    label: str
    unit: str
    meaning: str
    scale: float = 1.0  # from ncu's base unit (bytes, nanoseconds) to ``unit``


def _pct(name: str, label: str, meaning: str, *sources: str) -> Metric:
    return Metric(name, sources, "mean", label, "%", meaning)


def _limit(what: str, source: str) -> Metric:
    label = f"occupancy limit: {what.replace('_', ' ')}"
    name = f"occupancy_limit_{what}"
    return Metric(name, (source,), "longest", label, "blocks/SM", "the smallest limit binds")


def _stall(what: str, label: str, *reasons: str) -> Metric:
    sources = tuple(f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct" for reason in reasons)
    return _pct(f"stall_{what}_pct", f"stall: {label}", "of active warps", *sources)


_ACTIVE, _ELAPSED = "avg.pct_of_peak_sustained_active", "avg.pct_of_peak_sustained_elapsed"
_TIME = "gpu__time_duration.sum"

METRICS: tuple[Metric, ...] = (
    Metric("kernel_time_us", (_TIME,), "sum", "kernel time under ncu", "us", "cold caches, all launches", 1e-3),
    _pct("compute_throughput_pct", "compute throughput", "speed of light", f"sm__throughput.{_ELAPSED}"),
    _pct(
        "memory_throughput_pct", "memory throughput", "speed of light", f"gpu__compute_memory_throughput.{_ELAPSED}"
    ),
    Metric("sm_active_cycles", ("sm__cycles_active.avg",), "sum", "SM active cycles", "", "mean over SMs"),
    _pct("achieved_occupancy_pct", "achieved occupancy", "resident warps", f"sm__warps_active.{_ACTIVE}"),
    Metric("warp_instructions", ("sm__inst_executed.sum",), "sum", "warp instructions executed", "", "all SMs"),
    _limit("blocks", "launch__occupancy_limit_blocks"),
    _limit("registers", "launch__occupancy_limit_registers"),
    _limit("shared_memory", "launch__occupancy_limit_shared_mem"),
    _limit("warps", "launch__occupancy_limit_warps"),
    Metric(
        "registers_per_thread", ("launch__registers_per_thread",), "longest",
        "registers", "per thread", "many of them limit occupancy",
    ),
    Metric(
        "shared_memory_per_block_bytes", ("launch__shared_mem_per_block", "launch__shared_mem_per_block_allocated"),
        "longest", "shared memory", "bytes/block", "static and dynamic",
    ),
    _pct(
        "fp32_pipe_pct", "fp32 pipe", "utilisation",
        f"sm__inst_executed_pipe_fp32.{_ACTIVE}", f"sm__inst_executed_pipe_fma.{_ACTIVE}",
    ),
    _pct(
        "tensor_pipe_pct", "tensor pipe", "instructions issued to it",
        f"sm__inst_executed_pipe_tensor.{_ACTIVE}", f"sm__inst_executed_pipe_tensor_op_hmma.{_ACTIVE}",
    ),
    _pct("tensor_cycles_pct", "tensor cores", "cycles in use", f"sm__pipe_tensor_cycles_active.{_ACTIVE}"),
    Metric("dram_read_bytes", ("dram__bytes_read.sum",), "sum", "DRAM read", "bytes", "against the size of the inputs"),
    Metric(
        "dram_written_bytes", ("dram__bytes_write.sum",), "sum", "DRAM written", "bytes",
        "against the size of the outputs",
    ),
    _pct("dram_throughput_pct", "DRAM throughput", "near 100: memory bound", f"dram__throughput.{_ELAPSED}"),
    _pct("dram_interface_pct", "DRAM interface", "of its peak", f"gpu__dram_throughput.{_ELAPSED}"),
    Metric("dram_gb_s", ("dram__bytes.sum.per_second",), "mean", "DRAM bandwidth", "GB/s", "read and written", 1e-9),
    _pct("l1_throughput_pct", "L1 throughput", "of its peak", f"l1tex__throughput.{_ACTIVE}"),
    _pct("l1_hit_rate_pct", "L1 hit rate", "reuse within a block", "l1tex__t_sector_hit_rate.pct"),
    _pct("l2_throughput_pct", "L2 throughput", "of its peak", f"lts__throughput.{_ACTIVE}"),
    _pct("l2_hit_rate_pct", "L2 hit rate", "reuse between blocks", "lts__t_sector_hit_rate.pct"),
    _stall("memory_queue", "memory instruction queue", "memory_dependency", "lg_throttle"),
    _stall("long_scoreboard", "global memory", "long_scoreboard"),
    _stall("short_scoreboard", "shared memory", "short_scoreboard"),
    _stall("barrier", "barrier", "barrier"),
    _stall("branch", "branches", "branch_resolving"),
    _pct(
        "uniform_branches_pct", "uniform branches", "100: no divergence",
        "smsp__sass_average_branch_targets_threads_uniform.pct",
    ),
)  # fmt: skip
_OF_EACH_KERNEL = ("compute_throughput_pct", "memory_throughput_pct", "achieved_occupancy_pct", "registers_per_thread")


# ---------------------------------------------------------------------------------------------------- asking


def metric_names(without: Sequence[str] = ()) -> list[str]:
    """What ``--metrics`` takes; ``without``: those that this chip turned out not to have."""
    wanted = dict.fromkeys(source for metric in METRICS for source in metric.sources)
    return [name for name in wanted if name not in without]


def command(ncu: str, kernels: Sequence[str], metrics: Sequence[str], target: Sequence[str]) -> list[str]:
    """The command line for the part of ``target`` between cudaProfilerStart and -Stop; no ``kernels``: all of them."""
    words = [ncu, "--profile-from-start", "off", "--target-processes", "all", "--kernel-name-base", "function"]
    if kernels:
        words += ["--kernel-name", f"regex:^({'|'.join(kernels[:_NAMES])})$"]
    words += ["--launch-count", str(LAUNCHES), "--clock-control", "none"]
    words += ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics)]
    return [*words, *target]


# ---------------------------------------------------------------------------------------------------- kernel names

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_WORD = re.compile(r"[\s\\]*((?:\w+\s*::\s*)*[A-Za-z_]\w*)[\s\\]*")
_OPENED = {"(": ")", "<": ">"}


def kernel_names(source: str) -> list[str]:
    """The kernels that a candidate's file defines: ``__global__`` functions in its strings, and Triton's.

    Commented-out ones are left out. Names that the file puts together at run time are not found.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            found |= dict.fromkeys(_cuda_names(node.value))
        elif isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            found[node.name] = None
    return list(found)


def _is_jit(decorator: ast.expr) -> bool:
    """``@triton.jit``, ``@jit``, ``@triton.jit(...)``."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) == "jit"


def _cuda_names(text: str) -> Iterator[str]:
    text = _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    for match in re.finditer(r"\b__global__\b", text):
        if name := _name_after(text, match.end()):
            yield name


def _name_after(text: str, at: int) -> str:
    """The function declared here: the word before the parentheses that ``{`` or ``;`` follows. Attributes such as
    ``__launch_bounds__(256, 2)`` and macros stand before it."""
    while (match := _WORD.match(text, at)) is not None:
        at = match.end()
        if text[at : at + 1] == "<":
            at = _after_group(text, at)
        if text[at : at + 1] != "(":
            continue
        at = _after_group(text, at)
        rest = text[at:].lstrip(" \t\r\n\\")
        if not rest or rest[0] in "{;":
            return match[1].rsplit("::", 1)[-1].strip()
    return ""


def _after_group(text: str, at: int) -> int:
    """Where the group that opens at ``at`` has closed (with the spaces behind it)."""
    opened, closed, depth = text[at], _OPENED[text[at]], 0
    for place in range(at, len(text)):
        depth += (text[place] == opened) - (text[place] == closed)
        if depth == 0:
            return place + 1 + len(text[place + 1 :]) - len(text[place + 1 :].lstrip())
    return len(text)


# ---------------------------------------------------------------------------------------------------- reading

Values = dict[str, float | None]
_UNITS = {
    "second": 1e9, "s": 1e9, "msecond": 1e6, "ms": 1e6, "usecond": 1e3, "us": 1e3, "nsecond": 1.0, "ns": 1.0,
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One row of ncu's table: ``values`` by ncu's names, in bytes and nanoseconds."""

    kernel: str
    values: Values

    @property
    def time_ns(self) -> float:
        """Its duration; 0 where ncu did not say."""
        return self.values.get(_TIME) or 0.0


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel; ``values`` by our names."""

    name: str
    launches: int
    values: Values

    @property
    def time_us(self) -> float:
        """Of all its launches."""
        return self.values["kernel_time_us"] or 0.0


def parse(text: str) -> list[Launch]:
    """The launches in ncu's raw CSV page. Lines around the table (``==PROF==``), torn rows and a missing units row
    are no errors; a value that is none (``n/a``, ``nan``, empty) is None."""
    launches: list[Launch] = []
    header: list[str] = []
    factors: list[float] = []
    for line in text.splitlines():
        if not line.startswith('"') or len(line) > _LONGEST:
            continue
        row = next(csv.reader([line]))  # each on its own: a torn one does not swallow the next
        if row[0] == "ID":
            header, factors = row, [1.0] * len(row)
        elif len(row) != len(header):
            continue
        elif not row[0]:
            factors = [_UNITS.get(unit.split("/")[0], 1.0) for unit in row]
        else:
            cells = dict(zip(header, zip(row, factors, strict=True), strict=True))
            values = {name: _number(*cells[name]) for name in metric_names() if name in cells}
            launches.append(Launch(_clean(cells.get("Kernel Name", ("", 1.0))[0]), values))
    return launches


def _number(text: str, factor: float) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * factor if math.isfinite(value) else None


def _clean(name: str) -> str:
    """A kernel's bare name: its characters are the candidate's choice and end up in prompts."""
    return re.sub(r"\W", "", name.split("(")[0].split("<")[0].rsplit("::", 1)[-1].rsplit(" ", 1)[-1])[:80] or "kernel"


def by_kernel(launches: Sequence[Launch]) -> list[Kernel]:
    """Launches summed up per kernel, the most expensive first."""
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(launch.kernel, []).append(launch)
    kernels = [Kernel(name, len(group), _over(group)) for name, group in groups.items()]
    return sorted(kernels, key=lambda kernel: kernel.time_us, reverse=True)


def counters(launches: Sequence[Launch]) -> Values:
    """A profile's counters: over all launches, then (where there are several kernels) of the two most expensive."""
    found = _over(launches)
    kernels = by_kernel(launches)
    found |= {"kernels": float(len(kernels)), "launches": float(len(launches))}
    total = sum(kernel.time_us for kernel in kernels)
    if len(kernels) > 1 and total:
        for kernel in kernels[:2]:
            found[f"{kernel.name}: share_of_time_pct"] = 100 * kernel.time_us / total
            found |= {f"{kernel.name}: {name}": kernel.values[name] for name in _OF_EACH_KERNEL}
    return found


def _over(launches: Sequence[Launch]) -> Values:
    return {metric.name: _combined(metric, launches) for metric in METRICS}


def _combined(metric: Metric, launches: Sequence[Launch]) -> float | None:
    pairs = []
    for launch in launches:
        value = next((v for name in metric.sources if (v := launch.values.get(name)) is not None), None)
        if value is not None:
            pairs.append((launch.time_ns, value * metric.scale))
    if not pairs:
        return None
    if metric.over_launches == "sum":
        return sum(value for _, value in pairs)
    if metric.over_launches == "longest":
        return max(pairs, key=lambda pair: pair[0])[1]
    total = sum(time for time, _ in pairs)
    if not total:
        return sum(value for _, value in pairs) / len(pairs)
    return sum(time * value for time, value in pairs) / total


# ---------------------------------------------------------------------------------------------------- failures

_CAUSES = (
    ("ERR_NVGPUCTRPERM", "no permission to read the GPU's counters (ERR_NVGPUCTRPERM); load the driver with "
     "NVreg_RestrictProfilingToAdminUsers=0"),
    ("driver resource was unavailable", "another profiler or monitor (such as DCGM) holds the GPU's counters"),
    ("LibraryNotLoaded", "the driver's profiling library cannot be loaded here"),
    ("not compatible with Nsight Compute", "the driver is not compatible with this ncu"),
)  # fmt: skip
_NOT_FOUND = re.compile(r"Failed to find metric (?:regex:\^?)?([A-Za-z0-9_.]+)")


def missing_metrics(text: str) -> list[str]:
    """The metrics (or their beginnings, ncu shows a pattern) that this chip does not have and ncu stopped at."""
    bases = {match.replace("\\", "").rstrip(".") for match in _NOT_FOUND.findall(text.replace("\\.", "."))}
    return [name for name in metric_names() if any(name == base or name.startswith(base + ".") for base in bases)]


def failure(text: str) -> str:
    """Why ncu gave no counters, from what it printed: one line, empty where it names no error."""
    for words, cause in _CAUSES:
        if words in text:
            return cause
    lines = [line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR==")]
    return f"ncu: {'; '.join(lines)}"[:400] if lines else ""
