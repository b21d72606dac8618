"""Trigger class *kernel body* for Triton: a `@triton.jit` function whose indented body has ended (§6.1.1, class 3).

Ended means: a line with no more indent than the `def`, or the end of the fenced block. At the end of the trace an
open body stays silent. The body must use `tl.`; where `...` stands for parameters or
statements, the kernel is not complete. C++ functions are in `bodies`.
"""

from __future__ import annotations

import re
from typing import Final

from specgen.controller.triggers.fences import remember

_DEF = re.compile(r"([ \t]*)def[ \t]+(\w+)[ \t]*\(")
_TOKEN = re.compile(r"""\"{3}|'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\#[^\n]*|[()\[\]{}]""")
_MAX_HEAD: Final = 4000
_MAX_BODY: Final = 40_000


class Triton:
    """One function being read, or none."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}
        self.abandon()

    @property
    def active(self) -> bool:
        """True from the decorator on."""
        return self._state != ""

    def abandon(self) -> None:
        """Forget the function being read."""
        self._state = ""  # "", "decorated", "signature" or "body"
        self._name = ""
        self._indent = self._size = self._brackets = self._end = self._hash = 0
        self._quote = ""
        self._works = self._elided = False

    def take(self, line: str, start: int) -> tuple[int, str] | None:
        """Read a line that begins at ``start`` of the trace. Returns (end in the trace, name) of a body that turns
        out to be complete; the line that shows it is not part of it."""
        done = None
        if self.active:
            self._size += len(line)
            if self._state == "body":
                done = self._in_body(line, start)
            elif self._size > _MAX_HEAD:
                self.abandon()
            elif self._state == "decorated":
                self._head(line)
            else:
                self._signature(line)
        if not self.active and line.lstrip(" \t>").startswith("@triton.jit"):
            self._state = "decorated"
        return done

    def close(self) -> tuple[int, str] | None:
        """The fenced block ends here."""
        done = self._complete() if self._state == "body" and not self._quote else None
        self.abandon()
        return done

    def _head(self, line: str) -> None:
        match = _DEF.match(line)
        if match is not None:
            self._state, self._indent, self._name = "signature", len(match[1].expandtabs()), match[2]
            self._hash = 0
            self._signature(line)

    def _signature(self, line: str) -> None:
        self._track(line)
        self._hash = hash((self._hash, line.strip()))
        self._elided |= "..." in line.split("#")[0]
        if self._brackets <= 0 and line.split("#")[0].rstrip().endswith(":"):
            self._state, self._size = "body", 0

    def _in_body(self, line: str, start: int) -> tuple[int, str] | None:
        text = line.rstrip()
        if not text:
            return None
        indent = len(text.expandtabs()) - len(text.expandtabs().lstrip())
        free = not self._quote and self._brackets <= 0
        if free and indent <= self._indent:
            done = self._complete()
            self.abandon()
            return done
        self._track(line)
        self._works |= "tl." in text
        self._elided |= text.lstrip().startswith("...")
        self._hash = hash((self._hash, text.strip()))
        self._end = start + len(text)
        if self._size > _MAX_BODY:
            self.abandon()
        return None

    def _complete(self) -> tuple[int, str] | None:
        if self._works and not self._elided and self._end and remember(self._seen, self._hash):
            return self._end, f"@triton.jit def {self._name}"[:200]
        return None

    def _track(self, line: str) -> None:
        """Follow brackets and triple quotes over lines."""
        at = 0
        while True:
            if self._quote:
                at = line.find(self._quote, at) + 3
                if at < 3:
                    return
                self._quote = ""
            mark = _TOKEN.search(line, at)
            if mark is None:
                return
            at = mark.end()
            if mark[0] in ('"""', "'''"):
                self._quote = mark[0]
            elif len(mark[0]) == 1:
                self._brackets += 1 if mark[0] in "([{" else -1
