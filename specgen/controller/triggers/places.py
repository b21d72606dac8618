"""Where a sentence stands: in prose, or in a list, and in a list of what.

The line over a list says what its items are: the plan for the kernel, or options, facts, earlier kernels. An item that
ends in a colon does the same for the items under it. Not here: what a place means for a value (`clauses`).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final

from specgen.controller.triggers.units import last_unit


class Place(Enum):
    """Where a sentence stands."""

    PROSE = "prose, at the beginning of a line"
    WITHIN = "prose, behind other sentences of its line"
    ITEM = "an item of a list"
    PLAN = "an item of a list that says what the kernel is going to be"
    OPTION = "an item of a list of options, facts or earlier kernels"


_ITEM = re.compile(r"[ \t>]*(?:[-*+\u2022]|\(?\d{1,2}[.)]|\([a-z]\))[ \t]+\S")
_HEADS_OPTIONS = re.compile(
    r"\b(?:options?|alternatives?|possib\w+|consider\w*|could|candidates?|ideas?|questions?|previous|reference"
    r"|hardware|facts?|specs?|compar\w+|attempts?|tried|trade-?offs?|might|maybe|constraints?|limits?|problem"
    r"|the given|profil\w+|feedback|choices are|choose between|history|results?|analysis|existing|baseline|would"
    r"|should|needs? to|either|uses|can\b(?! choose| pick| use| set)|summar\w+|findings|understand|analy[sz]\w+"
    r"|think|check|count|estimate|comput(?:e|ing)|what if|if|calculate|recall|note|see|look at|currently|issues?"
    r"|why|because|common|typical|usual|standard|i want|small numbers|trace|verify|example|recommended)\b"
    r"|^\W*or\b"
    r"|\b(?:few|several|multiple|various|different|good|some)\s(?:\w+\s){0,2}(?:config\w*|approach(?:es)?|options"
    r"|settings|values|combinations|ideas|sizes|variants)\b"
    r"|\b(?:config\w*|approach|option|version|variant|strategy|case|idea) ?(?:\d|[a-d]\b)"
)
_HEADS_PLAN = re.compile(
    r"\b(?:plan|strategy|approach|design|config\w*|parameters?|params|settings?|choices?|choose|decisions?|setup"
    r"|tiling|going to|layout|structure|implementation|optimi[sz]ations?|changes|improvements?|steps"
    r"|go(?:ing)? with|i'll|i will|we'll|let me|let's|start with|final)\b"
)
_FAR_IN: Final = 1 << 30


class Places:
    """Follows the lines of the trace outside code."""

    def __init__(self) -> None:
        self._item, self._indent = False, 0  # is the line an item of a list, and how far in
        self._place = Place.PROSE  # of the line
        self._head = ""  # the last sentence that may head a list, lower-cased
        self._under: tuple[int, str] | None = None  # the same, and how far in, of an item that heads the items under it

    def take(self, unit: str, low: str, *, line_start: bool) -> Place:
        """The place of a sentence, ``low`` its lower-cased form; the sentences of the trace come one after another."""
        if line_start:
            self._begin(unit)
        if not unit.isspace():
            if self._item:
                if _heads_items_under_it(unit):
                    self._under = self._indent, low
            elif not self._indent:
                self._head, self._under = low, None
        return Place.WITHIN if self._place is Place.PROSE and not line_start else self._place

    def skip(self, text: str, low: str, *, line_start: bool) -> None:
        """Whole lines that need no place of their own: the last line that is no item heads what follows, and so may
        an item behind it. ``line_start``: the text begins with a line, not within one."""
        end, least = len(text), _FAR_IN  # the least indent of the items behind
        under = None
        while end > 0:
            begin = text.rfind("\n", 0, end - 1) + 1
            line, first = text[begin:end], begin > 0 or line_start
            if not line.isspace():
                indent = _indent(line) if first else self._indent
                if _ITEM.match(line) if first else self._item:
                    if under is None and indent < least and _heads_items_under_it(line):
                        under = indent, last_unit(low[begin:end])
                    least = min(least, indent)
                elif not indent:
                    self._head, self._under = last_unit(low[begin:end]), under
                    return
            end = begin
        if under is not None or (self._under is not None and least <= self._under[0]):
            self._under = under

    def _begin(self, unit: str) -> None:
        self._indent, self._item = _indent(unit), _ITEM.match(unit) is not None
        self._place = Place.PROSE
        if not self._item:
            return
        if self._under is not None and self._indent <= self._under[0]:
            self._under = None
        self._place = _headed_by(self._head)
        if self._under is not None:
            under = _headed_by(self._under[1])
            if under is not Place.ITEM or self._place is Place.OPTION:
                self._place = under


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t>"))


def _heads_items_under_it(item: str) -> bool:
    return item.rstrip(" *_\t\n").endswith(":")


@lru_cache(maxsize=64)
def _headed_by(low: str) -> Place:
    """What the items of a list after this lower-cased sentence are."""
    if _HEADS_OPTIONS.search(low):
        return Place.OPTION
    return Place.PLAN if _HEADS_PLAN.search(low) else Place.ITEM
