"""Hardware counters of a candidate's forward, by ncu.

The judge calls :func:`collect` after the timed window. Counters inform the search; they decide nothing, so every
failure (no ncu, no permission, a pass that does not end, a candidate that fails under the profiler) is a reason in
words and never the candidate's fault: the result is ``profiler_unavailable`` with its timings.
Not here: the table's format (:mod:`specgen.evaluation.ncu`), the sandbox (:mod:`specgen.evaluation.tools`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specgen.evaluation import ncu, tools
from specgen.evaluation.supervisor import CellSpec
from specgen.evaluation.tools import LIMIT_S, Subject

NO_NCU = "no ncu on this machine; it comes with the CUDA toolkit"
_ATTEMPTS = 4  # one for each time ncu stops at metrics that this chip does not have
__all__ = ["LIMIT_S", "NO_NCU", "Counted", "Subject", "collect", "find_ncu"]


@dataclass(frozen=True)
class Counted:
    """What came of it: counters, or the reason why there are none. ``note`` says what is particular about them."""

    counters: ncu.Values = field(default_factory=dict)
    kernels: tuple[ncu.Kernel, ...] = ()
    unavailable: str = ""
    note: str = ""
    seconds: float = 0.0
    output: str = ""  # what ncu printed, capped


def find_ncu() -> str:
    """The ncu of this machine; empty where there is none."""
    return tools.find("ncu", *tools.installed("nsight-compute/*/ncu"))


def collect(subject: Subject, spec: CellSpec, limit_s: float = LIMIT_S, program: str | None = None) -> Counted:
    """Counters of one forward, or why there are none. Never raises for what goes wrong in or around ncu.

    Takes 6 to 20 s on an H200, at most ``limit_s``; the device is busy meanwhile. ``program`` is the ncu to use.
    """
    start = time.monotonic()
    program = find_ncu() if program is None else program
    try:
        found = _counted(subject, spec, program, start + limit_s) if program else Counted(unavailable=NO_NCU)
    except (OSError, RuntimeError, TypeError) as exc:  # RuntimeError: device memory, too
        found = Counted(unavailable=f"ncu could not be started: {' '.join(str(exc).split())}"[:400])
    return replace(found, seconds=time.monotonic() - start)


def _counted(subject: Subject, spec: CellSpec, program: str, deadline: float) -> Counted:
    with tools.around(subject, spec, tools.Tool("ncu", program), deadline) as runs:
        return _Run(runs).run()


class _Run:
    """The attempts for one subject."""

    def __init__(self, runs: tools.Runs) -> None:
        self.runs = runs
        self.absent: list[str] = []  # metrics that this chip does not have

    def run(self) -> Counted:
        """First the candidate's own kernels; if none of them ran, whatever did."""
        names = ncu.kernel_names(self.runs.subject.source)
        launches, output, reason = self._attempts(names)
        note = ""
        if names and not launches and not reason:
            launches, output, reason = self._attempts([])
            seen = ", ".join(kernel.name for kernel in ncu.by_kernel(launches)[:8])
            note = f"none of the file's kernels ({', '.join(names[:8])}) ran; counted instead: {seen}"
        if not launches:
            return Counted(unavailable=reason or "no kernel ran in the profiled forward", output=output)
        if len(launches) == ncu.LAUNCHES:
            note = f"{note}; the first {ncu.LAUNCHES} launches only".removeprefix("; ")
        return Counted(ncu.counters(launches), tuple(ncu.by_kernel(launches)), note=note, output=output)

    def _attempts(self, names: Sequence[str]) -> tuple[list[ncu.Launch], str, str]:
        """Launches, output, reason: again without the metrics that ncu stops at."""
        launches, output, reason = self._once(names)
        for _ in range(_ATTEMPTS):
            absent = [name for name in ncu.missing_metrics(output) if name not in self.absent]
            if launches or not absent:
                break
            self.absent += absent
            launches, output, reason = self._once(names)
        return launches, output, reason

    def _once(self, names: Sequence[str]) -> tuple[list[ncu.Launch], str, str]:
        words = ncu.command(self.runs.tool.program, names, ncu.metric_names(self.absent), [])
        printed = self.runs.run(words)
        launches = ncu.parse(printed.out)
        output = f"{printed.out}\n{printed.errors}"
        if launches:
            return launches, output, ""
        if printed.ended:
            return [], output, printed.ended
        if failed := printed.candidate_failed:
            return [], output, f"the candidate failed under ncu: {failed}"
        reason = ncu.failure(output)
        if not reason and "No kernels were profiled" not in output and "==PROF==" not in output:
            reason = f"ncu printed no table: {' '.join(printed.errors.split())[-300:]}"
        return [], output, reason
