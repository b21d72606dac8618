"""Trigger class *kernel body* for C++: a function whose signature is complete and whose braces are balanced.

CUDA: `__global__` functions, with `extern "C"`, templates and launch bounds. CPU: functions that take `torch::Tensor`
or `at::Tensor`, unless they launch a CUDA kernel (`<<<`): a host wrapper is no kernel. Braces in strings, character
literals and comments do not count. §6.1.1, class 3. Triton functions are in `triton`.

Works a line at a time and keeps only the signature (bounded); the body is counted and hashed, not stored.
"""

from __future__ import annotations

import re
from typing import Final

from specgen.controller.triggers.fences import remember

_TOKEN = re.compile(r""""(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|//[^\n]*|/\*|[(){};`]""")
_MARKS = re.compile(r"""[{}"'/]""")
_TENSOR = re.compile(r"\b(?:torch|at)::Tensor\b")
_QUALIFIER_CALL = re.compile(r"__\w+__\s*\((?:[^()]|\([^()]*\))*\)")  # __launch_bounds__(…), __cluster_dims__(…)
_CUDA = re.compile(r"__global__\s(?:[\w\s:\"]*\s)?void\s(?:[\w\s]*\s)?\w+\s*(?:<[^()]*>\s*)?\((.*)\)\s*", re.DOTALL)
_CUDA_START = re.compile(
    r"__global__(?=\s*$|\s[^.?!;`]{0,160}(?:\bvoid\b|\b__\w+__\s*\()|\s+(?:static|inline|extern)\b)"
)
_CPP_START = re.compile(
    r"""[ \t]*(?!(?:return|else|if|for|while|switch|new|throw|def|class|delete|using|and|or|not|the|a|to|of)\b)
    (?:extern[ ]"C"[ ]|static[ ]|inline[ ]|template[ ]?<[^<>;(){}]*>[ ]?)*
    (?:\w+::)*\w+(?:<[^;(){}\n]{0,120}>)?(?:[ ]?[&*]+[ ]?|[ ])(\w+)[ ]?\(""",
    re.VERBOSE,
)
_PROSE = re.compile(r"[A-Z][\w']*,?(?: [\w'(][\w',)-]*)+[.:?!]\s*\Z")

_MAX_SIGNATURE: Final = 3000
_MAX_BODY: Final = 40_000


class Bodies:
    """One function being read, or none."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}
        self.abandon()

    @property
    def active(self) -> bool:
        """True inside a signature or a body: the text is code, to be cut by lines."""
        return self._kind != ""

    @property
    def in_body(self) -> bool:
        """True between a function's braces."""
        return self._depth > 0

    def abandon(self) -> None:
        """Forget the function being read: it will not be completed (a fence edge, prose, too long)."""
        self._kind = ""  # "", "cuda" or "cpp"
        self._signature = ""
        self._groups = self._paren = self._depth = self._size = self._hash = 0
        self._comment = self._statement = self._launches = self._elided = False

    def take(self, line: str, *, fenced: bool) -> list[tuple[int, str]]:
        """Read a line. Returns (end within the line, signature) of each body completed on it."""
        found: list[tuple[int, str]] = []
        if self._depth:
            self._elided |= line.lstrip().startswith("...")
        if self._depth and not self._comment and self._simple(line, fenced=fenced):
            return found
        at = self._restart(line, fenced=fenced)
        while at >= 0:
            at = self._read(line, at, found) if self.active else self._find_start(line, at)
        return found

    def _simple(self, line: str, *, fenced: bool) -> bool:
        """Take a body's line that has neither braces nor anything that could hide them."""
        if _MARKS.search(line) or "__global__" in line or (not fenced and line[:1].isupper()):
            return False
        self._size += len(line)
        self._statement |= ";" in line
        self._launches |= "<<<" in line
        self._hash = hash((self._hash, line))
        return self._size <= _MAX_BODY

    def _restart(self, line: str, *, fenced: bool) -> int:
        """Drop a function that evidently was left unfinished; returns 0."""
        if not self.active:
            return 0
        self._size += len(line)
        unfinished = self._size > _MAX_BODY or (not self.in_body and self._size > _MAX_SIGNATURE)
        if self.in_body and not self._comment:
            unfinished |= "__global__" in line and _CUDA_START.search(line) is not None
        if not fenced and not self._comment:
            unfinished |= _PROSE.match(line) is not None or (not self.in_body and not line.strip())
        if unfinished:
            self.abandon()
        return 0

    def _find_start(self, line: str, at: int) -> int:
        match = _CUDA_START.search(line, at) if "__global__" in line else None
        if match is not None:
            self._kind, start = "cuda", match.start()
        elif at == 0 and (("Tensor" in line and "(" in line) or line.rstrip().endswith(("(", ","))):
            match = _CPP_START.match(line)
            if match is None:
                return -1
            self._kind, start = "cpp", 0
        else:
            return -1
        self._size = len(line) - start
        return start

    def _read(self, line: str, at: int, found: list[tuple[int, str]]) -> int:
        """Read on from ``at``; returns where to look for the next function, or -1 at the line's end."""
        if self.in_body:
            self._launches |= "<<<" in line
            self._hash = hash((self._hash, line))
        start = at
        while at >= 0:
            if self._comment:
                at = line.find("*/", at) + 2
                if at < 2:
                    break
                self._comment = False
            mark = _TOKEN.search(line, at)
            if mark is None:
                break
            at = mark.end()
            if mark[0] == "/*":
                self._comment = True
            elif len(mark[0]) == 1:
                end = self._body_token(mark[0]) if self.in_body else self._signature_token(mark[0], line[start:at])
                if end:
                    self._complete(at, line, found)
                if not self.active:
                    return at
        if self.active and not self.in_body:
            self._signature += line[start:]
        return -1

    def _body_token(self, mark: str) -> bool:
        """True where the body is complete."""
        if mark == ";":
            self._statement = True
        elif mark in "{}":
            self._depth += 1 if mark == "{" else -1
        return self._depth == 0

    def _signature_token(self, mark: str, text: str) -> bool:
        """Follow the signature up to its brace; always False (a signature completes nothing)."""
        if mark in "()":
            self._paren += 1 if mark == "(" else -1
            self._groups += mark == ")" and self._paren == 0
        elif mark == "{" and self._paren == 0 and self._groups:
            self._signature += text[:-1]
            if self._is_kernel():
                self._depth = 1
                self._hash = hash(" ".join(self._signature.split()))
            else:
                self.abandon()
        elif mark in "`{}" or (mark == ";" and self._paren == 0) or self._paren < 0:
            self.abandon()
        return False

    def _is_kernel(self) -> bool:
        text = self._signature
        if self._kind == "cuda":
            match = _CUDA.fullmatch(_QUALIFIER_CALL.sub(" ", text))
            return match is not None and "..." not in match[1]
        parameters = text[text.find("(") :]
        return _TENSOR.search(parameters) is not None and "..." not in parameters

    def _complete(self, at: int, line: str, found: list[tuple[int, str]]) -> None:
        fires = self._statement and not self._elided and not (self._kind == "cpp" and (self._launches or "<<<" in line))
        if fires and remember(self._seen, hash((self._hash, line))):
            found.append((at, " ".join(self._signature.split())[:200]))
        self.abandon()
