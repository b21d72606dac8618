"""Answers that are search/replace blocks against a kernel, instead of the whole file. Pure functions of the text."""

from __future__ import annotations

import re

_EDIT = re.compile(r"^<{5,9} ?SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE[ \t]*$", re.DOTALL | re.MULTILINE)


def applied(base: str, content: str) -> str | None:
    """``base`` with the edits of ``content``, one after another, each to the first place that has its lines (trailing
    blanks do not count). None where there is no edit, or one whose lines are not there."""
    edits = _EDIT.findall(content.replace("\r\n", "\n"))
    source = _tidy(base)
    for search, replacement in edits:
        wanted = _tidy(search)
        at = _at_line(source, wanted)
        if at is None:
            return None
        source = source[:at] + _tidy(replacement) + source[at + len(wanted) :]
    return source if edits else None


def _at_line(source: str, wanted: str) -> int | None:
    """Where those whole lines begin."""
    at = source.find(wanted) if wanted.strip() else -1
    while at > 0 and source[at - 1] != "\n":
        at = source.find(wanted, at + 1)
    return at if at >= 0 else None


def _tidy(text: str) -> str:
    if not text:
        return ""
    return "".join(f"{line.rstrip()}\n" for line in text.split("\n")[: -1 if text.endswith("\n") else None])
