"""Cuts a streamed text into units: sentences in prose, lines in code. The same units whatever the chunking.

Not here: what a unit means. A unit's end depends only on the text from its start, never on where a chunk ended, and
each character is looked at a bounded number of times, so the parser is linear in the trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_UNIT: Final = 2000
"""Characters after which a unit without an end is cut; bounds the memory."""

_WORDS: Final = bytes(code if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_BREAK = re.compile(r"""[\n.!?](?:(?<=\n)|(?<!e\.g\.)(?<!i\.e\.)(?<!\bvs\.)["')\]*`]{0,3}\s)""")
_OVERLAP: Final = 6  # characters of a sentence's end that may still be incomplete at a chunk's end


class Units:
    """The text received and not yet given out as a unit, beside its lower-cased form (of the same length)."""

    def __init__(self) -> None:
        self._text = self._low = ""
        self._start = 0  # where the current unit begins in _text
        self._scanned = 0  # no unit ends before this index of _text
        self._lines = 0  # where the last complete line of _text ends

    def push(self, text: str) -> None:
        """Add received text. What was given out is dropped here."""
        self._scanned -= self._start
        self._text = self._text[self._start :] + text
        self._low = self._low[self._start :] + lower(text)
        self._start = 0
        self._lines = self._text.rfind("\n", self._scanned) + 1

    def next(self, *, code: bool) -> tuple[str, str] | None:
        """The next complete unit, its end included, and its lower-cased form; None until more text arrives.

        ``code``: units are whole lines; otherwise sentences (which end at a line's end at the latest).
        """
        start, limit = self._start, self._start + MAX_UNIT
        end = self._line_end(limit) if code else self._sentence_end(limit)
        if end < 0:
            if len(self._text) < limit:
                self._scanned = max(start, len(self._text) - _OVERLAP)
                return None
            end = limit
        self._start = self._scanned = end
        return self._text[start:end], self._low[start:end]

    def skip(self, interesting: re.Pattern[str]) -> tuple[str, str] | None:
        """Give out at once all whole lines of code before the one in which ``interesting`` is next found (lower-cased):
        the same units that `next` would give out, and nothing of interest in any of them. A pattern without word
        boundaries or look-around, so that a hit does not depend on where a long line would be cut."""
        if self._lines <= self._start:
            return None
        match = interesting.search(self._low, self._start, self._lines)
        end = self._lines if match is None else self._text.rfind("\n", self._start, match.start()) + 1
        return self._give(end)

    def skip_lines(self, matters: Callable[[str], bool]) -> tuple[str, str] | None:
        """The same for prose, where ``matters`` says it of a lower-cased line. Stops at a line that `next` would cut by
        its length."""
        end = self._start
        while end < self._lines:
            stop = self._low.find("\n", end, end + MAX_UNIT) + 1
            if not stop or matters(self._low[end:stop]):
                break
            end = stop
        return self._give(end)

    def _give(self, end: int) -> tuple[str, str] | None:
        if end <= self._start:
            return None
        start, self._start, self._scanned = self._start, end, end
        return self._text[start:end], self._low[start:end]

    def rest(self, limit: int = MAX_UNIT) -> tuple[str, str]:
        """The beginning of the incomplete unit, at most ``limit`` characters, and its lower-cased form."""
        end = self._start + limit
        return self._text[self._start : end], self._low[self._start : end]

    def _line_end(self, limit: int) -> int:
        return self._text.find("\n", self._scanned, limit) + 1 or -1

    def _sentence_end(self, limit: int) -> int:
        at = self._scanned
        while (match := _BREAK.search(self._text, at, limit)) is not None:
            at = match.end()
            if at - self._start > 8 or not _is_list_mark(self._text[self._start : at]):
                return at
        return -1


def _is_list_mark(head: str) -> bool:
    """``"3. "``: a full stop that numbers an item, not one that ends a sentence."""
    return not head.endswith("\n") and head.strip().rstrip(".").isdigit()


def lower(text: str) -> str:
    """Lower-cased without change of length (one letter, a dotted capital I, would become two)."""
    return (text.replace("\u0130", "i") if "\u0130" in text else text).lower()


def word_set(text: str) -> frozenset[bytes]:
    """A vocabulary, written as one text."""
    return frozenset(text.encode().split())


def words(low: str) -> list[bytes]:
    """The words of a lower-cased text: runs of ASCII letters and digits (identifiers fall apart at underscores)."""
    return low.encode("utf-8", "replace").translate(_WORDS).split()


def last_unit(line: str) -> str:
    """The last sentence of a line of prose that `Units.next` would not cut by its length."""
    at = start = 0
    while (match := _BREAK.search(line, at)) is not None and match.end() < len(line):
        at = match.end()
        if at - start > 8 or not _is_list_mark(line[start:at]):
            start = at
    return line[start:]
