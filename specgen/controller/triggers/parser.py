"""Puts the four classes together: one pass over the trace, the same triggers whatever the chunking (§6.1.1).

Not here: the rules of a class (a file each), and what a trigger leads to. Triggers come in the order in which they
are certain: a decision only after the sentence that could have withdrawn it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from specgen.controller.triggers import decisions, phrases
from specgen.controller.triggers.bodies import Bodies
from specgen.controller.triggers.clauses import Place
from specgen.controller.triggers.decisions import Commitment, Decisions, plain
from specgen.controller.triggers.fences import Fences
from specgen.controller.triggers.triton import Triton
from specgen.controller.triggers.units import Units, last_unit, word_set, words
from specgen.types import Trigger, TriggerClass

ALL: Final = (TriggerClass.DECISION, TriggerClass.FENCE, TriggerClass.KERNEL_BODY, TriggerClass.PHRASE)

_ITEM = re.compile(r"[ \t>]*(?:[-*+\u2022]|\(?\d{1,2}[.)]|\([a-z]\))[ \t]+\S")
_NOT_A_PLAN = re.compile(
    r"\b(?:options?|alternatives?|possib\w+|consider\w*|could|candidates?|ideas?|questions?|previous|reference"
    r"|hardware|facts?"
    r"|specs?|compar\w+|attempts?|tried|trade-?offs?|might|maybe|constraints?|limits?|problem|the given|profil\w+"
    r"|feedback"
    r"|choices are|choose between|history|results?|analysis|existing|baseline|would|should|needs? to|either|uses"
    r"|can\b(?! choose| pick| use| set)|summar\w+|findings|understand|analy[sz]\w+|think|check|count|estimate"
    r"|comput(?:e|ing)"
    r"|what if|if|calculate|recall|note|see|look at|currently|issues?|why|because)\b"
)

_NUMBERED = re.compile(
    r"\b(?:few|several|multiple|various|common|typical|usual|standard|i want)\b|^\W*or\b"
    r"|\b(?:config\w*|approach|option|version|variant|strategy|case|idea) ?(?:\d|[a-d]\b)"
)
_PLAN_HEAD = re.compile(
    r"\b(?:plan|strategy|approach|design|config\w*|parameters?|params|settings?|choices?|choose|decisions?|setup"
    r"|tiling"
    r"|going to|layout|structure|implementation|optimi[sz]ations?|changes|improvements?|steps|go(?:ing)? with|i'll"
    r"|i will|we'll"
    r"|let me|let's|start with|final)\b"
)
_HOT_CODE = re.compile(r"```|~~~|__global__|@triton|::tensor|[(,]\n")
_OPENS = ("(\n", ",\n")  # a line after which a signature may go on
_KERNEL_WORDS = word_set("global triton tensor")
_VOCABULARY = _KERNEL_WORDS | decisions.VOCABULARY | phrases.VOCABULARY


def _matters(low: str) -> bool:
    """May this lower-cased line of prose hold anything that the four classes look for?"""
    if "```" in low or "~~~" in low or "=" in low or low[-2:] in _OPENS:
        return True
    found = words(low)
    if _VOCABULARY.isdisjoint(found):
        return False
    return decisions.matters(found, low) or phrases.matters(found, low) or not _KERNEL_WORDS.isdisjoint(found)


_NOT_NESTED: Final = (-1, Place.PROSE)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t>"))


def _heads_nested(unit: str) -> bool:
    """Does an item end so that the items under it are its own?"""
    return unit.rstrip(" *_\t\n").endswith(":")


def _headed_by(low: str) -> Place:
    """What the items of a list after this lower-cased sentence are."""
    if _NOT_A_PLAN.search(low) or _NUMBERED.search(low):
        return Place.OPTION
    return Place.PLAN if _PLAN_HEAD.search(low) else Place.ITEM


class TriggerParser:
    """Finds triggers in a reasoning trace that arrives in pieces.

    ``classes``: which of the four to report; the others are still followed, as they bear on each other. Pure: no I/O,
    no clock. Memory is bounded whatever the trace; time is linear in it.
    """

    def __init__(self, classes: Iterable[TriggerClass | str] = ALL) -> None:
        self._classes = frozenset(TriggerClass(name) for name in classes)
        self._units = Units()
        self._fences, self._bodies, self._triton, self._decisions = Fences(), Bodies(), Triton(), Decisions()
        self._at = 0  # characters of the trace in the units taken
        self._line_start = True
        self._place = Place.PROSE  # of the line
        self._item, self._indent = False, 0  # is the line an item of a list, and how far in
        self._items = Place.ITEM  # what an item of a list here would be
        self._nested = _NOT_NESTED  # the same of items further in than this, under an item that heads them
        self._out: list[Trigger] = []

    def feed(self, text: str) -> list[Trigger]:
        """Take the next piece of the trace, of any size; returns the triggers that are certain now."""
        self._units.push(text)
        while True:
            self._skip()
            unit = self._units.next(code=self._code)
            if unit is None:
                break
            self._take(*unit)
        wait = self._decisions.waiting
        if wait and len(ahead := self._units.rest(wait)[1]) >= wait:
            self._fire_decisions(self._decisions.following(ahead))
        return self._flush()

    def finish(self) -> list[Trigger]:
        """The trace is over. What is unclosed stays silent; a decision can no longer be withdrawn."""
        unit, low = self._units.rest()
        if unit:
            self._take(unit, low)
        self._fire_decisions(self._decisions.settle())
        self._units = Units()
        return self._flush()

    @property
    def _code(self) -> bool:
        return self._fences.inside or self._bodies.active or self._triton.active

    def _flush(self) -> list[Trigger]:
        out, self._out = self._out, []
        return out

    def _fire(self, kind: TriggerClass, position: int, text: str) -> None:
        if kind in self._classes:
            self._out.append(Trigger(kind, position, text[:200]))

    def _fire_decisions(self, final: list[Commitment]) -> None:
        for found in final:
            self._fire(TriggerClass.DECISION, found.end, found.text)

    def _skip(self) -> None:
        """Pass over whole lines that cannot matter."""
        if self._decisions.waiting or self._bodies.active or self._triton.active:
            return
        fenced = self._fences.inside
        skipped = self._units.skip(_HOT_CODE) if fenced else self._units.skip_lines(_matters)
        if skipped is None:
            return
        text, low = skipped
        if fenced:
            self._fences.content(text)
        else:
            self._place_skipped(text, low)
        self._at += len(text)
        self._line_start = True

    def _take(self, unit: str, low: str) -> None:
        start, line_start = self._at, self._line_start
        self._at += len(unit)
        self._line_start = unit[-1] == "\n"
        if ("```" in unit or "~~~" in unit) and self._fence(unit, low, start, line_start=line_start):
            return
        fenced = self._fences.inside
        if fenced:
            self._fences.content(unit)
        if self._code or "__global__" in unit or "Tensor" in unit or "@triton" in unit or unit[-2:] in _OPENS:
            self._kernels(unit, start, fenced=fenced)
        if not fenced and not self._bodies.in_body and not self._triton.active:
            self._locate(unit, low, line_start=line_start)
            self._prose(unit, low, start, line_start=line_start)

    def _fence(self, unit: str, low: str, start: int, *, line_start: bool) -> bool:
        edge = self._fences.edge(unit, line_start=line_start)
        if edge is None:
            return False
        if edge.opens and not line_start:
            self._prose(unit, low, start, line_start=line_start)
        self._fire_decisions(self._decisions.settle())
        self._bodies.abandon()
        if (done := self._triton.close()) is not None:
            self._fire(TriggerClass.KERNEL_BODY, *done)
        if edge.tag:
            self._fire(TriggerClass.FENCE, start + edge.end, f"```{edge.tag}")
        return True

    def _kernels(self, unit: str, start: int, *, fenced: bool) -> None:
        if self._triton.active or "@triton" in unit:
            done = self._triton.take(unit, start)
            if done is not None:
                self._fire_decisions(self._decisions.settle())
                self._fire(TriggerClass.KERNEL_BODY, *done)
        if not self._triton.active:
            for end, text in self._bodies.take(unit, fenced=fenced):
                self._fire_decisions(self._decisions.settle())
                self._fire(TriggerClass.KERNEL_BODY, start + end, text)

    def _prose(self, unit: str, low: str, start: int, *, line_start: bool) -> None:
        found = words(low)
        if self._decisions.waiting or decisions.matters(found, low):
            place = Place.WITHIN if self._place is Place.PROSE and not line_start else self._place
            final = self._decisions.sentence(unit, plain(low), found, start, place=place)
            self._fire_decisions(final)
        if phrases.matters(found, low) and (place := phrases.find(plain(low))) is not None:
            self._fire(TriggerClass.PHRASE, start + place[1], unit[place[0] : place[1]].strip())

    def _locate(self, unit: str, low: str, *, line_start: bool) -> None:
        """Is the line, of which a unit is given, an item of a list, or may it head one? Its last sentence says so."""
        if line_start:
            self._indent = _indent(unit)
            self._item = _ITEM.match(unit) is not None
            if self._item and self._indent <= self._nested[0]:
                self._nested = _NOT_NESTED
            self._place = Place.PROSE
            if self._item:
                self._place = self._items
                if self._nested is not _NOT_NESTED and not (
                    self._nested[1] is Place.ITEM and self._items is Place.PLAN
                ):
                    self._place = self._nested[1]
        if unit.isspace():
            return
        if self._item:
            if _heads_nested(unit):
                self._nested = self._indent, _headed_by(low)
        elif not self._indent:
            self._items, self._nested = _headed_by(low), _NOT_NESTED

    def _place_skipped(self, text: str, low: str) -> None:
        """The same for many whole lines: the last one that is no item decides, and the items behind it."""
        end, least = len(text), 1 << 30  # the least indent of the items behind
        nested = None
        while end > 0:
            begin = text.rfind("\n", 0, end - 1) + 1
            line = text[begin:end]
            first = begin > 0 or self._line_start
            indent = _indent(line) if first else self._indent
            if not line.isspace():
                if _ITEM.match(line) if first else self._item:
                    if nested is None and indent < least and _heads_nested(line):
                        nested = indent, _headed_by(last_unit(low[begin:end]))
                    least = min(least, indent)
                elif not indent:
                    self._items, self._nested = _headed_by(last_unit(low[begin:end])), nested or _NOT_NESTED
                    return
            end = begin
        if nested is not None or least <= self._nested[0]:
            self._nested = nested or _NOT_NESTED
