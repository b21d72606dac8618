"""compute-sanitizer on one forward of a candidate: what touches memory that is not its own, races, or misses a barrier.

On request only: kernels run tens of times slower under it. The candidate is built anew with line info, and torch's
allocator gives every tensor memory of its own, so that the next tensor's is out of bounds. Its report is for people
and for the LLM; no verdict depends on it. Not here: the report's format (:mod:`specgen.evaluation.sanitizer`), the
sandbox (:mod:`specgen.evaluation.tools`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from specgen.evaluation import sanitizer, tools
from specgen.evaluation.supervisor import CellSpec
from specgen.evaluation.tools import LIMIT_S, Subject

NO_SANITIZER = "no compute-sanitizer on this machine; it comes with the CUDA toolkit"
_NAME = "compute-sanitizer"
_ENVIRONMENT = {
    "NVCC_APPEND_FLAGS": "-lineinfo",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
}


@dataclass(frozen=True)
class Report:
    """``found`` is one line per finding; ``unavailable`` says why nobody looked. Both empty: nothing was found."""

    tool: str
    found: str = ""
    unavailable: str = ""
    seconds: float = 0.0
    output: str = ""  # what the program printed

    @property
    def text(self) -> str:
        """For people and prompts, with the tool's name in front."""
        said = f"unavailable: {self.unavailable}" if self.unavailable else self.found or "nothing found"
        return f"{_NAME} {self.tool}: {said}"


def find_sanitizer() -> str:
    """The compute-sanitizer of this machine; empty where there is none."""
    return tools.find(_NAME, *tools.installed("compute-sanitizer/*/compute-sanitizer"))


def collect(
    subject: Subject, spec: CellSpec, tool: str, limit_s: float = LIMIT_S, program: str | None = None
) -> Report:
    """The report of one of ``sanitizer.TOOLS``. Never raises for what goes wrong in or around the program, which
    takes at most ``limit_s``; the device is busy meanwhile. ``program`` is the compute-sanitizer to use."""
    start = time.monotonic()
    program = find_sanitizer() if program is None else program
    if not program:
        return Report(tool, unavailable=NO_SANITIZER)
    try:
        found = _look(replace(subject, build=b""), spec, tool, program, start + limit_s)
    except (OSError, RuntimeError, TypeError) as exc:  # RuntimeError: device memory, too
        found = Report(tool, unavailable=f"{_NAME} could not be started: {' '.join(str(exc).split())}"[:400])
    return replace(found, seconds=time.monotonic() - start)


def _look(subject: Subject, spec: CellSpec, tool: str, program: str, deadline: float) -> Report:
    what = tools.Tool(_NAME, program, _ENVIRONMENT, warmups=0)
    with tools.around(subject, spec, what, deadline) as runs:
        printed = runs.run(sanitizer.command(program, tool, []))
    output = f"{printed.out}\n{printed.errors}"
    found = sanitizer.parse(printed.out)
    if found:
        return Report(tool, sanitizer.lines(found, subject.source), output=output)
    reason = printed.ended or sanitizer.failure(printed.out)
    if not reason and printed.candidate_failed:
        reason = f"it found nothing before the candidate failed: {printed.candidate_failed}"
    if not reason and not sanitizer.complete(printed.out):
        reason = f"{_NAME} printed no report: {' '.join(printed.errors.split())[-300:]}"
    return Report(tool, unavailable=reason, output=output)
