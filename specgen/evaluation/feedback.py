"""Error text for the LLM: the first errors with line numbers and a caret, then the tail, capped.

Pure text work; used by the harness (its own candidate's traceback) and the judge. Not here: statuses.
"""

from __future__ import annotations

import re
import traceback

LIMIT = 4000  # characters of feedback
CANDIDATE_FILE = "candidate.py"

_ERROR_LINE = re.compile(r"^(?P<file>[^\s:()]+)[:(](?P<line>\d+).*?\b(?:fatal )?error\b\s*:?", re.IGNORECASE)
_LINKER = re.compile(r"undefined (?:reference|symbol)|multiple definition|cannot find -l", re.IGNORECASE)
_NOISE = re.compile(r"^(?:ninja:|FAILED:|\[\d+/\d+\]|cc1plus: all warnings|collect2:|Traceback )")


def cap(text: str, limit: int = LIMIT) -> str:
    """Head and tail of a text that is too long."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head - 30
    return f"{text[:head].rstrip()}\n[... {len(text) - head - tail} characters ...]\n{text[-tail:].lstrip()}"


def from_compiler(output: str, limit: int = LIMIT) -> str:
    """The first compiler errors, each with the source line and the caret that follow it, then the tail."""
    lines = output.splitlines()
    picked: list[str] = []
    index = 0
    while index < len(lines) and sum(map(len, picked)) < limit // 2:
        line = lines[index]
        if _ERROR_LINE.match(line) or _LINKER.search(line):
            picked.append(line)
            while index + 1 < len(lines) and re.match(r"^\s+(?:\d+\s*)?\||^\s*\^", lines[index + 1]):
                index += 1
                picked.append(lines[index])
        index += 1
    if not picked:
        return cap(output, limit)
    tail = "\n".join(line for line in lines if not _NOISE.match(line))[-(limit // 4) :]
    head = "\n".join(picked)
    return cap(head if tail.strip() in head else f"{head}\n[tail]\n{tail.strip()}", limit)


def from_exception(error: BaseException, source: str, limit: int = LIMIT) -> str:
    """What a user would see of an exception: the candidate's own frames with their lines, then the error."""
    if isinstance(error, SyntaxError) and error.filename == CANDIDATE_FILE:
        shown = "".join(traceback.format_exception_only(error))
        return cap(shown, limit)
    lines = source.splitlines()
    found: list[str] = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename != CANDIDATE_FILE or frame.lineno is None:
            continue
        text = lines[frame.lineno - 1] if 0 < frame.lineno <= len(lines) else ""
        found.append(f"{CANDIDATE_FILE}:{frame.lineno} in {frame.name}\n    {text.strip()}")
        start, end = frame.colno, frame.end_colno
        if start is not None and end is not None and start < end <= len(text):
            found.append("    " + " " * (start - len(text) + len(text.lstrip())) + "^" * min(40, end - start))
    message = "".join(traceback.format_exception_only(error)).strip()
    return cap("\n".join([*found[-12:], from_compiler(message, limit)]), limit)
