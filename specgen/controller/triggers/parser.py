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
from specgen.controller.triggers.decisions import Commitment, Decisions, plain
from specgen.controller.triggers.fences import Fences
from specgen.controller.triggers.places import Place, Places
from specgen.controller.triggers.triton import Triton
from specgen.controller.triggers.units import Units, word_set, words
from specgen.types import Trigger, TriggerClass

ALL: Final = (TriggerClass.DECISION, TriggerClass.FENCE, TriggerClass.KERNEL_BODY, TriggerClass.PHRASE)

_HOT_CODE = re.compile(r"```|~~~|__global__|@triton|::tensor|[(,]\n")
_OPENS = ("(\n", ",\n")  # a line after which a signature may go on
_KERNEL_WORDS = word_set("global triton tensor")
_VOCABULARY = _KERNEL_WORDS | decisions.VOCABULARY | phrases.VOCABULARY


def _matters(low: str) -> bool:
    """May this lower-cased line of prose hold anything that the four classes look for?"""
    if "```" in low or "~~~" in low or "=" in low or "/b" in low or low[-2:] in _OPENS:
        return True
    found = words(low)
    if _VOCABULARY.isdisjoint(found):
        return False
    return decisions.matters(found, low) or phrases.matters(found, low) or not _KERNEL_WORDS.isdisjoint(found)


class TriggerParser:
    """Finds triggers in a reasoning trace that arrives in pieces.

    ``classes``: which of the four to report; the others are still followed, as they bear on each other. Pure: no I/O,
    no clock. Memory is bounded whatever the trace; time is linear in it.
    """

    def __init__(self, classes: Iterable[TriggerClass | str] = ALL) -> None:
        self._classes = frozenset(TriggerClass(name) for name in classes)
        self._units = Units()
        self._fences, self._bodies, self._triton, self._decisions = Fences(), Bodies(), Triton(), Decisions()
        self._places = Places()
        self._at = 0  # characters of the trace in the units taken
        self._line_start = True
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
        if wait and not self._code and len(ahead := self._units.rest(wait)[1]) >= wait:
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
            self._places.skip(text, low, line_start=self._line_start)
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
        if fenced:
            return
        if self._bodies.in_body or self._triton.active:
            self._fire_decisions(self._decisions.settle())  # code withdraws nothing
        else:
            self._prose(unit, low, start, self._places.take(unit, low, line_start=line_start))

    def _fence(self, unit: str, low: str, start: int, *, line_start: bool) -> bool:
        edge = self._fences.edge(unit, line_start=line_start)
        if edge is None:
            return False
        if edge.opens and not line_start:
            self._prose(unit, low, start, Place.PROSE if line_start else Place.WITHIN)
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

    def _prose(self, unit: str, low: str, start: int, place: Place) -> None:
        found = words(low)
        if self._decisions.waiting or decisions.matters(found, low):
            final = self._decisions.sentence(unit, plain(low), found, start, place=place)
            self._fire_decisions(final)
        if phrases.matters(found, low) and (span := phrases.find(plain(low))) is not None:
            self._fire(TriggerClass.PHRASE, start + span[1], unit[span[0] : span[1]].strip())
