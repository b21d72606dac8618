"""compute-sanitizer's report as a few lines: what is wrong, in which kernel, by which thread, at which source line.

Pure text, no process. Reports are those of its four tools; what is no report (the program's own output, summaries,
backtraces) is passed over. Not here: running it (:mod:`specgen.evaluation.sanitize`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specgen.evaluation.feedback import CANDIDATE_FILE, literals

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST = 100  # findings that the program may print
_SHOWN = 8
_LONGEST = 400  # characters of one line of a report
_PREFIX = "========="
_NO_REPORT = re.compile(
    r"^(?:COMPUTE-SANITIZER|CUDA-MEMCHECK|Saved host|Target application|(?:and|at|by|Address|Access)\b|.*Frame:)"
)
_LEVEL = re.compile(r"^(?:Error|Warning|WARN(?:ING)?|ERROR|INFO): ")
_FAILED = re.compile(r"^(?:Internal Sanitizer )?Error: (?!Race)(.*)$|^(?:Unable|Failed) to .*$")
_THREAD = re.compile(r"by thread \(([\d,]+)\) in block \(([\d,]+)\)")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_API = "Program hit "


@dataclass(frozen=True)
class Finding:
    """One report; empty where it says nothing of it. ``line`` is of ``file``; ``count`` equal ones were reported."""

    what: str
    kernel: str = ""
    file: str = ""
    line: int = 0
    thread: str = ""
    block: str = ""
    details: tuple[str, ...] = ()  # address and allocation; the other accesses of a race
    count: int = 1

    @property
    def _key(self) -> tuple[object, ...]:
        return self.what, self.kernel, self.file, self.line


def command(program: str, tool: str, target: Sequence[str]) -> list[str]:
    """The command line; ``target`` is a program and its arguments. Child processes are looked at too."""
    words = [program, "--tool", tool, "--target-processes", "all", "--print-limit", str(MOST), "--show-backtrace", "no"]
    return [*words, *target]


def parse(text: str) -> list[Finding]:
    """The findings in order, equal ones once; errors of API calls, which follow from others, last and only alone."""
    found: dict[tuple[object, ...], Finding] = {}
    for report in _reports(text):
        one = _finding(report)
        before = found.get(one._key)
        found[one._key] = replace(before, count=before.count + 1) if before else one
    kernels = [one for one in found.values() if not one.what.startswith(_API)]
    return kernels or list(found.values())


def complete(text: str) -> bool:
    """Whether the program came to its end and says how much it found."""
    return _SUMMARY.search(text) is not None


def lines(findings: Sequence[Finding], source: str = "") -> str:
    """For people and prompts; ``source`` is the candidate's file, whose lines are named where line info is there."""
    shown = [_line(one, source) for one in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        shown.append(f"... and {len(findings) - _SHOWN} more")
    return "\n".join(shown)


def failure(text: str) -> str:
    """What the program says of itself: one line, empty where it does not complain."""
    found = [match for raw in text.splitlines() if (match := _FAILED.match(raw.removeprefix(_PREFIX).strip()))]
    return (found[0][1] or found[0][0])[:_LONGEST] if found else ""


def _reports(text: str) -> list[list[str]]:
    """The lines of each report, without the marks in front of them. A report begins one blank behind its mark."""
    reports: list[list[str]] = []
    inside = False
    for raw in text.splitlines():
        if not raw.startswith(_PREFIX):
            continue
        line = raw.removeprefix(_PREFIX).strip()[:_LONGEST]
        if not line or _SUMMARY.search(line) or _FAILED.match(line) or _NO_REPORT.match(line):
            within = re.match(r"(?:and|at|by|Address|Access)\b|Device Frame", line) is not None
            if inside and within:
                reports[-1].append(line)
            inside = inside and within
        elif raw.startswith(f"{_PREFIX} ") and not raw.startswith(f"{_PREFIX}  "):
            reports.append([line])
            inside = True
        elif inside:
            reports[-1].append(line)
    return reports


def _finding(report: list[str]) -> Finding:
    first = _LEVEL.sub("", report[0])
    what, _, place = first.partition(" access at ") if first.startswith("Race reported") else (first, "", "")
    found = Finding(f"{what} access" if place else what)
    details: list[str] = []
    if place:
        found = _placed(found, place)
    for line in report[1:]:
        if (match := _THREAD.search(line)) is not None:
            found = replace(found, thread=f"({match[1]})", block=f"({match[2]})")
        elif line.startswith("at ") and not found.kernel:
            found = _placed(found, line.removeprefix("at "))
        elif not found.kernel and first.startswith("Race reported") and not line.startswith("and "):
            found = _placed(found, line)
        else:
            details.append(line)
    return replace(found, details=tuple(details[:4]))


def _placed(found: Finding, place: str) -> Finding:
    """``kernel(float *)+0x60 in cuda_source.cu:9``; older ones ``0x60 in cuda_source.cu:9:kernel(float *)``."""
    old = re.match(r"^0x[0-9a-f]+ in (?:(?P<file>[^\s:]+):(?P<line>\d+):)?(?P<kernel>.+)$", place)
    match = old or re.match(
        r"^(?P<kernel>.+?)(?:\+0x[0-9a-f]+)?(?: in (?P<file>\S+):(?P<line>\d+))?(?: \[.*\])?$", place
    )
    if match is None:
        return found
    file = (match["file"] or "").rsplit("/", 1)[-1]
    return replace(found, kernel=match["kernel"].strip(), file=file, line=int(match["line"] or 0))


def _line(one: Finding, source: str) -> str:
    words = [one.what]
    if one.kernel:
        words.append(f"in {one.kernel}")
    if one.file:
        words.append(f"at {one.file}:{one.line}{_own(one, source)}")
    if one.thread:
        words.append(f"by thread {one.thread} of block {one.block}")
    text = " ".join(words) + "".join(f"; {detail}" for detail in one.details)
    return f"{text} [{one.count} times]" if one.count > 1 else text


def _own(one: Finding, source: str) -> str:
    """The line of the candidate's file, where exactly one of its strings defines the kernel."""
    name = re.sub(r"[(<].*", "", one.kernel).rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    defined = re.compile(rf"\b{re.escape(name)}\s*\(")
    places = [(first, text) for first, text in literals(source) if name and defined.search("\n".join(text))]
    if len(places) != 1 or not 0 < one.line <= len(places[0][1]):
        return ""
    first, text = places[0]
    return f" [{CANDIDATE_FILE} line {first + one.line - 1}: {text[one.line - 1]}]"
