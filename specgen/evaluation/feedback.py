"""Error text for the LLM: the first errors with their lines and a caret, then what else was said, capped.

Lines of a compiler's messages are those of the string that the candidate gave to it; where that string stands in the
candidate's file is added. Pure text work; used by the harness (its own candidate's traceback) and the judge. Not here:
statuses, and outputs that differ (:mod:`specgen.evaluation.mismatch`).
"""

from __future__ import annotations

import ast
import ctypes
import re
import traceback
from collections.abc import Sequence

LIMIT = 4000  # characters of feedback
CANDIDATE_FILE = "candidate.py"

_ERROR_LINE = re.compile(r"^(?P<file>[^\s:()]+)[:(](?P<line>\d+).*?\b(?:fatal )?error\b\s*:?", re.IGNORECASE)
_UNPLACED = re.compile(
    r"undefined (?:reference|symbol)|multiple definition|cannot find -l|^(?:ptxas|nvlink|nvcc) (?:error|fatal)",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^(?:ninja:|FAILED:|Error building extension|\[\d+/\d+\]|cc1plus: all warnings|collect2:|Traceback "
    r"|compilation terminated|\d+ errors? detected in|\S+: (?:In|At) (?:\w+ )*(?:function|scope|instantiation)\b)"
)
_QUOTED = re.compile(r"^\s+(?:\d+\s*)?\||^\s*\^")  # gcc's source line and caret; nvcc's caret
_GENERATED = re.compile(r"pybind11_init|wrap_pybind_function")
_MANGLED = re.compile(r"\b_Z\w+")
_ASYNCHRONOUS = re.compile(
    r"^(?:CUDA kernel errors might|For debugging consider|Compile with `TORCH_USE|Search for `cuda).*\n?",
    re.MULTILINE,
)
_FRAME = re.compile(r'^  File "candidate\.py", line (\d+) in (\S+)', re.MULTILINE)
_DUMP = re.compile(r"^(?:Fatal Python error: .*|(?:Current thread|Thread) 0x[0-9a-f]+ .*)$", re.MULTILINE)


def cap(text: str, limit: int = LIMIT) -> str:
    """Head and tail of a text that is too long."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head - 30
    return f"{text[:head].rstrip()}\n[... {len(text) - head - tail} characters ...]\n{text[-tail:].lstrip()}"


# ------------------------------------------------------------------------------------------------ compilers


def from_compiler(output: str, limit: int = LIMIT, source: str = "") -> str:
    """The first compiler errors, each with the source line and the caret that follow it, then the rest without
    commands. ``source``: the candidate's file, whose lines are added."""
    lines = output.splitlines()
    picked: list[str] = []
    taken: set[int] = set()
    index = 0
    while index < len(lines) and sum(map(len, picked)) < limit * 3 // 4:
        end = _error_end(lines, index)
        if end > index:
            picked += _placed(lines[index:end], source, lines[max(0, index - 1)])
            taken |= set(range(index, end))
        index = max(end, index + 1)
    rest = [line for number, line in enumerate(lines) if number not in taken and not _NOISE.match(line)]
    tail = "\n".join(rest).strip()[-(limit // 4) :]
    if not picked:
        return cap(tail or output, limit)
    return cap("\n".join(picked) + (f"\n[and]\n{tail}" if tail else ""), limit)


def _error_end(lines: Sequence[str], index: int) -> int:
    """Where the error that begins at ``index`` ends; ``index`` itself where none begins."""
    if _UNPLACED.search(lines[index]):
        return index + 1
    if not _ERROR_LINE.match(lines[index]):
        return index
    end = index + 1
    while end < len(lines) and _QUOTED.match(lines[end]):
        end += 1
    if end == index + 1 and end + 1 < len(lines) and re.match(r"^\s*\^", lines[end + 1]):
        end += 2  # nvcc: the source line without a bar, then the caret
    return end


def _placed(error: Sequence[str], source: str, before: str) -> list[str]:
    """The error with the place in the candidate's file behind its first line."""
    match = _ERROR_LINE.match(error[0])
    if match is None or not source:
        return [_readable(error[0]), *error[1:]]
    quoted = re.sub(r"^\s*\d+\s*\|", "", error[1]) if len(error) > 1 else ""
    line = file_line(source, int(match["line"]), quoted)
    if line:
        return [f"{error[0]}  [{CANDIDATE_FILE} line {line}]", *error[1:]]
    if _GENERATED.search(before + error[0]):
        return [f"{error[0]}  [in the bindings made for functions=[...]]", *error[1:]]
    return list(error)


def file_line(source: str, number: int, quoted: str) -> int:
    """The line of the candidate's file where line ``number`` of a string, which reads ``quoted``, stands; 0: unknown.

    By the string literal that has that line at that place; else by the only line of the file that reads so.
    """
    wanted, lines = quoted.strip(), source.splitlines()
    if not wanted:
        return 0
    found = {first + number - 1 for first, text in literals(source) if text[number - 1 : number] == [wanted]}
    found = {line for line in found if line <= len(lines) and wanted in lines[line - 1]}
    if len(found) != 1:
        found = {at for at, line in enumerate(lines, 1) if line.strip() == wanted}
    return found.pop() if len(found) == 1 else 0


def literals(source: str) -> list[tuple[int, list[str]]]:
    """The string literals of a file: the line each begins on, and its own lines, stripped."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        (node.lineno, [line.strip() for line in node.value.split("\n")])
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
    ]


def _readable(line: str) -> str:
    """Directories of build products left out, C++ names demangled."""
    line = re.sub(r"/\S*/([\w.-]+\.(?:so|o)\b)", r"\1", line)
    return _MANGLED.sub(lambda match: _demangled(match[0]), line)


def _demangled(name: str) -> str:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        status = ctypes.c_int()
        found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    except (OSError, AttributeError):
        return name
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(found))


# ------------------------------------------------------------------------------------------------ running


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
    if _ASYNCHRONOUS.search(message):
        message = _ASYNCHRONOUS.sub("", message).strip()
        found.append("[kernels run after the line that launches them: the error shows at the next wait for the device]")
    if "undefined symbol" in message:
        message += "\n[declared and used, but defined in none of the sources, or with other argument types]"
    return cap("\n".join([*found[-12:], from_compiler(message, limit, source)]), limit)


def from_dump(printed: str, source: str = "", limit: int = LIMIT) -> str:
    """What a process printed before it died or was stopped: its own words, then the candidate's frames of the dump."""
    first = _DUMP.search(printed)
    words = printed[: first.start()] if first else printed
    lines = source.splitlines()
    frames = []
    for match in reversed(list(_FRAME.finditer(printed, first.start() if first else 0))):
        number = int(match[1])
        text = f"\n    {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""
        frames.append(f"{CANDIDATE_FILE}:{number} in {match[2]}{text}")
    return cap("\n".join([*frames[-12:], words.strip()[-limit // 2 :]]), limit)
