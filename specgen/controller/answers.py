"""From an LLM's answer to a candidate source (docs/llm.md, "From an answer to a file").

An answer holds several blocks, nested or unclosed fences, prose around them, or none. The candidate is the last block
that parses as Python and defines `ModelNew`. Pure functions of the text. Not here: whether the candidate works.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from specgen.types import Status

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*?)[ \t]*$")
_THINK = "(?:think|thinking|thought|reasoning|scratchpad)"
_THOUGHT = re.compile(rf"^[ \t]*<{_THINK}>.*?</{_THINK}>|\A(?:(?!<{_THINK}>).)*?</{_THINK}>", re.DOTALL | re.MULTILINE)
_UNENDED = re.compile(rf"\s*<{_THINK}>")
_TAG = r"</?[A-Za-z_][\w-]*(?:[ \t][^<>\n]*)?>"
_TAGGED_FENCE = re.compile(rf"^([ \t]*{_TAG})[ \t]*(?=`{{3,}}|~{{3,}})|(?<=```)[ \t]*(?={_TAG}[ \t]*$)", re.MULTILINE)
_CODE_START = re.compile(r"^(?:import |from \w|class \w|def \w|@\w|\"\"\"|#)", re.MULTILINE)
_TAG_LINE = re.compile(rf"^[ \t]*{_TAG}[ \t]*$", re.MULTILINE)
_CPP_SIGNS = re.compile(r"^\s*#include\b|__global__|\btorch::Tensor\b", re.MULTILINE)
_OPENING = re.compile(r"\s*(?:`{3,}|~{3,})[ \t]*(?:python|py)?[ \t]*\n")
_MAX_ENDS: Final = 12  # fences tried as the end of one block
PREFILL: Final = "```python\n"
"""What a fork's content continues."""


@dataclass(frozen=True)
class Answer:
    """A candidate source, or why there is none. Exactly one of ``source`` and ``status`` is set.

    ``truncated``: the block was not closed when the token limit (or the end of a broken stream) cut it off.
    """

    source: str | None
    status: Status | None
    truncated: bool = False

    def __post_init__(self) -> None:
        if (self.source is None) == (self.status is None):
            raise ValueError("an answer has either a source or a status")
        if self.status not in (None, Status.NO_CODE, Status.NO_MODELNEW):
            raise ValueError(f"{self.status} is no status of an answer")


@dataclass(frozen=True)
class _Block:
    text: str
    tag: str
    closed: bool


def extract(content: str, *, truncated: bool = False, prefilled: bool = False) -> Answer:
    """The candidate in ``content``: the answer's text, without separately streamed reasoning.

    ``truncated``: the generation ended at the token limit or broke off. ``prefilled``: the content of a fork, which
    begins inside an opened block. A block with `class ModelNew` that does not parse is taken where no better one is
    there: its syntax error is the feedback. Statuses: NO_CODE, or NO_MODELNEW for code without the class.
    """
    content = content.replace("\r\n", "\n").lstrip("\ufeff")
    if prefilled:
        content = content if _OPENING.match(content) else PREFILL + content
    else:
        content = _THOUGHT.sub("", content)
        if _UNENDED.match(content):
            return Answer(None, Status.NO_CODE)  # all of it is reasoning
    blocks = list(_blocks(_TAGGED_FENCE.sub(lambda match: f"{match[1] or ''}\n", content)))
    for block in blocks:
        if defines_model(block.text):
            return Answer(block.text, None, truncated and not block.closed)
    for block in blocks:
        if _claims_model(block):
            return Answer(block.text, None, truncated and not block.closed)
    bare = _unfenced(content) if not any(block.tag for block in blocks) else None
    if bare is not None:
        return Answer(bare, None, truncated)
    has_code = any(block.text.strip() for block in blocks) or _CPP_SIGNS.search(content)
    return Answer(None, Status.NO_MODELNEW if has_code else Status.NO_CODE, truncated and bool(has_code))


def defines_model(source: str) -> bool:
    """Does ``source`` parse as Python and define `ModelNew` at module level (within `if` or `try` too)?"""
    if "ModelNew" not in source:
        return False
    tree = _parse(source)
    return tree is not None and any(_binds_model(node) for node in _module_level(tree.body))


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # not Python: the answer to the question asked


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _module_level(getattr(node, part, []))


def _binds_model(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name == "ModelNew"
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "ModelNew" for target in node.targets
    )


def _claims_model(block: _Block) -> bool:
    return re.search(r"^class ModelNew\b", block.text, re.MULTILINE) is not None


def _blocks(content: str) -> Iterator[_Block]:
    """Every reading of the fences as blocks, the last opening first; for one opening the reading that parses and
    defines the class, else the nearest end. A closing fence with words behind it ends a block if nothing else does."""
    lines = content.split("\n")
    fences = [(number, match) for number, line in enumerate(lines) if (match := _FENCE.match(line))]
    for index in range(len(fences) - 1, -1, -1):
        number, opening = fences[index]
        ends = [n for n, match in fences[index + 1 :] if _ends(opening, match)][:_MAX_ENDS]
        readings = [_cut(lines, number, end, opening) for end in ends] or [_cut(lines, number, None, opening)]
        worded = [n for n, match in fences[index + 1 :] if match[3] and match[2].startswith(opening[2])][:_MAX_ENDS]
        last = (_cut(lines, number, end, opening) for end in worded)
        yield next((block for block in (*readings, *last) if defines_model(block.text)), readings[0])


def _ends(opening: re.Match[str], match: re.Match[str]) -> bool:
    return not match[3] and match[2].startswith(opening[2])


def _cut(lines: list[str], start: int, end: int | None, opening: re.Match[str]) -> _Block:
    indent = opening[1]
    body = [line.removeprefix(indent) for line in lines[start + 1 : end]]
    text = "\n".join(body).rstrip("\n")
    return _Block(text + "\n" if text else "", opening[3], end is not None)


def _unfenced(content: str) -> str | None:
    """An answer that is bare Python, perhaps behind a line of prose or between lone tags."""
    text = _TAG_LINE.sub("", content)
    for count, match in enumerate(_CODE_START.finditer(text)):
        if count == 8:
            break
        if defines_model(text[match.start() :]):
            return text[match.start() :].strip("\n") + "\n"
    return None


class FirstBlock:
    """Watches a fork's content for the end of the block it began in, so that the fork can be stopped there."""

    def __init__(self) -> None:
        self._text = ""
        self._scanned = 0
        self._done = False

    def feed(self, text: str) -> str | None:
        """Take more content; returns the complete code once, as soon as its closing fence has arrived.

        A fence inside an open triple-quoted string (a docstring with an example) does not close the block. A repeated
        opening fence at the very beginning is dropped.
        """
        if self._done:
            return None
        self._text += text
        for match in _CLOSING.finditer(self._text, self._scanned):
            opening = _OPENING.match(self._text)
            start = opening.end() if opening else 0
            if match.end() <= start or (start == 0 and not self._text[: match.start()].strip()):
                continue  # the repeated opening
            code = self._text[start : match.start()]
            if not _within_string(code):
                self._done = True
                return code.rstrip("\n") + "\n"
            self._scanned = match.end()
        self._scanned = max(self._scanned, self._text.rfind("\n") + 1)
        return None


_CLOSING = re.compile(r"^[ \t]*```", re.MULTILINE)


def _within_string(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError as exc:
        return "unterminated triple-quoted" in (exc.msg or "")
    except (ValueError, RecursionError, MemoryError):
        return False
    return False
