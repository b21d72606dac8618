"""Trigger class *fence*: a complete code block with a language tag (§6.1.1, class 2).

Not here: what stands in the block, except whether the same block was seen before. A tag is one of a programming
language: `text`, `json` or `bash` blocks hold no kernel and do not fire.

A block is left open by many traces (the model changes its mind half way). A new tagged opening inside an open block
therefore starts afresh; only a markdown block nests.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

NOT_CODE: Final = frozenset(
    {"text", "txt", "plaintext", "plain", "none", "output", "console", "log", "logs", "terminal", "stdout", "stderr"}
    | {"markdown", "md", "mdx", "json", "jsonl", "json5", "yaml", "yml", "toml", "ini", "cfg", "csv", "tsv", "xml"}
    | {"html", "diff", "patch", "bash", "sh", "shell", "zsh", "fish", "powershell", "ps1", "bat", "cmd"}
    | {"shellsession", "latex", "tex", "math", "mermaid", "dot", "graphviz", "ascii", "pseudo", "pseudocode"}
    | {"algorithm", "traceback", "error"}
)
"""Tags of blocks that hold no program, or only commands."""

_MARKDOWN: Final = frozenset({"markdown", "md", "mdx"})
_DEPTH: Final = 8

_OPEN = re.compile(
    r"[ \t>]*(?:(?:[-*+]|\d{1,2}[.)])[ \t]+)?(`{3,}+"
    r"|~{3,}+)[ \t]*\{?\.?([A-Za-z][\w+#.-]*)?[^`\n]*\n?\Z"
)
_OPEN_LATE = re.compile(r"(?<!`)(`{3,}+)([A-Za-z][\w+#.-]*)[ \t]*\n\Z")


@dataclass
class _Block:
    mark: str  # the fence itself, such as three backticks
    tag: str
    content: int = 0  # checksum of what it holds so far
    size: int = 0  # characters
    blank: bool = True


@dataclass(frozen=True)
class Edge:
    """A line that opens or closes a block. ``tag`` and ``end`` (characters into the line) where it completes one."""

    opens: bool
    tag: str = ""
    end: int = 0


class Fences:
    """The open blocks at this point of the trace."""

    def __init__(self) -> None:
        self._open: list[_Block] = []
        self._seen: dict[int, None] = {}

    @property
    def inside(self) -> bool:
        """True within a block."""
        return bool(self._open)

    def content(self, text: str) -> None:
        """More of what the open block holds."""
        block = self._open[-1]
        block.content = zlib.crc32(text.encode("utf-8", "replace"), block.content)
        block.size += len(text)
        block.blank = block.blank and text.isspace()

    def edge(self, line: str, *, line_start: bool) -> Edge | None:
        """What ``line``, which holds a fence, does; None where it is ordinary text."""
        if self._open and line_start and self._closes(line):
            return self._close(line)
        match = _OPEN.match(line) if line_start else None
        if match is None and not self._open:
            match = _OPEN_LATE.search(line)
        if match is None:
            return None
        return self._start(match[1], (match[2] or "").lower())

    def _closes(self, line: str) -> bool:
        text, mark = line.strip(), self._open[-1].mark
        return text.startswith(mark) and not text.strip(mark[0])

    def _close(self, line: str) -> Edge:
        block = self._open.pop()
        fires = bool(block.tag) and block.tag not in NOT_CODE and not block.blank
        if fires and not remember(self._seen, (block.content << 32) + block.size):
            fires = False
        return Edge(opens=False, tag=block.tag if fires else "", end=len(line.rstrip()))

    def _start(self, mark: str, tag: str) -> Edge | None:
        if self._open and not tag:
            return None  # a shorter or other bare fence within a block is its content
        if self._open and self._open[-1].tag not in _MARKDOWN:
            self._open.pop()
        if len(self._open) < _DEPTH:
            self._open.append(_Block(mark, tag))
        return Edge(opens=True)


def remember(seen: dict[int, None], key: int, limit: int = 4096) -> bool:
    """True the first time ``key`` is met among the last ``limit`` ones."""
    if key in seen:
        return False
    if len(seen) >= limit:
        del seen[next(iter(seen))]
    seen[key] = None
    return True
