"""Trigger class *phrase*: the trace announces that it implements now, or introduces its plan (§6.1.1, class 4).

Verb and object decide: writing, rewriting, implementing, refining a kernel; introducing a plan. Checking, reading,
testing and thinking do not, nor does a plan to write "a test". Pure function of one sentence.
"""

from __future__ import annotations

import re

from specgen.controller.triggers.units import word_set

_ADVERBS = (
    r"(?:(?:now|just|also|first|then|actually|quickly|carefully|finally|simply|try(?:ing)? to|start by|begin by"
    r"|go ahead"
    r" and|proceed to|move on to|get to|directly|fully|properly|start|begin|go|again|attempt to|at least)\s+)*"
)
_ANNOUNCE = (
    r"(?:let me|let's|let us|i'll|i will|we'll|we will|i'm going to|i am going to|we're going to|time to|now to"
    r"|i'm ready to"
    r"|ready to|i can now|we can now|now i can|i now|i'd better|now,? i|next,? i'll|i shall|going to|let's now)\s+"
)
_ALWAYS = (
    r"(?:re-?)?implement(?:ing)?|(?:re-?)?cod(?:e|ing)(?: up| it| this)?|put(?:ting)? (?:it|this|everything|that"
    r"|the pieces)"
    r" (?:all )?together|assembl(?:e|ing)"
)
_WRITE = (
    r"(?:re-?)?writ(?:e|ing)(?: out| up| down)?|draft(?:ing)?|sketch(?:ing)?(?: out)?|produc(?:e|ing)|creat(?:e|ing)"
    r"|build(?:ing)?|compos(?:e|ing)|craft(?:ing)?|finali[sz](?:e|ing)|refin(?:e|ing)|restructur(?:e|ing)"
    r"|refactor(?:ing)?"
    r"|redo(?:ing)?|redesign(?:ing)?|design(?:ing)?|develop(?:ing)?|structur(?:e|ing)|lay(?:ing)? out|outlin(?:e|ing)"
    r"|generat(?:e|ing)|complet(?:e|ing)|optimi[sz](?:e|ing)|provid(?:e|ing)|present|define|spell out|translate|turn"
)
_OBJECT = (
    r"(?:kernels?|code|implementation|version|function|functions|solution|module|modelnew|class|cuda|triton|c\+\+"
    r"|wrapper"
    r"|program|everything|plan|launcher|answer|approach|algorithm|body|loop|source|extension|design|pipeline|skeleton"
    r"|pseudo-?code|it|this|that|these|them)"
)
_NOT_THIS = (
    r"(?:tests?|unit|scripts?|benchmarks?|report|summary|message|docs?|documentation|readme|comments?|file to"
    r"|reproducer"
    r"|email|list|table|notes?|plan file|commit|question|checks?|equations?|formulas?|expressions?|indices|proof"
    r"|numbers"
    r"|dimensions|shapes|constraints|requirements|problem|steps? (?:of|by))"
)
_ACT = re.compile(
    r"\b" + _ANNOUNCE + _ADVERBS + r"(?:"
    rf"(?P<always>{_ALWAYS})(?P<rest>(?:\s+[\w+#.'/-]+){{0,8}})"
    rf"|(?:{_WRITE})(?P<middle>(?:\s+[\w+#'/-]+){{0,9}}?)\s+(?P<object>{_OBJECT})\b"
    r"|(?:refine|rewrite|write|restructure|redesign|redo)\s?(?=:))"
)
_HERE = re.compile(
    r"\b(?:here is|here's|here are|below is|here comes)\s+(?:the|my|a|an|our)\s+(?:[\w+#'/-]+\s+){0,4}?"
    r"(?:plan|implementation|code|kernel|kernels|design|approach|solution|version|structure|sketch|skeleton|outline"
    r"|strategy|algorithm|pseudo-?code)\b"
)
_PLAN = re.compile(
    r"(?:^[\W\d]*|\b(?:my|the|so the|our|this|a)\s+)(?:(?:final|overall|implementation|optimi[sz]ation|kernel|new"
    r"|revised"
    r"|updated|high-level|basic|concrete|refined|complete|full|proposed|cuda|triton|c\+\+|design|general"
    r"|detailed)\s+){0,3}"
    r"(?:plan|strategy|approach|design|implementation|kernel|code|structure|algorithm)"
    r"(?:\s+(?:is|is as follows|will be|would be|outline|design|summary|code|implementation|now|steps"
    r"|structure))?\s?:\s*\Z"
    r"|\b(?:my|the) plan(?: now)?(?: is)?:"
)
_VETO = re.compile(
    r"\b(?:if|before|after|when|once|until|unless|whether|not|n't|never|think|thinking|wondering|could|would"
    r"|should|might"
    r"|may|maybe|perhaps|alternatively|instead of|without)\b[^.]{0,60}$"
)
_HERE_VETO = re.compile(
    r"\b(?:problem|issue|reference|original|given|provided|existing|previous|pytorch|baseline|error|current"
    r"|user's|naive"
    r"|old|example|where|not)\b"
)
_VERBS = word_set("""implement implementing reimplement code coding recode put putting assemble assembling write
    writing rewrite rewriting
    re draft drafting sketch sketching produce producing create creating build building compose composing craft
    crafting
    finalize finalizing finalise refine refining restructure restructuring refactor refactoring redo redesign
    redesigning
    design designing develop developing structure structuring lay laying outline outlining generate generating
    complete
    completing optimize optimizing optimise provide providing present define spell translate turn""")
_CUES = word_set("let lets ll will going time ready now i shall next")
_HERE_CUES = word_set("here heres below")
_HEADS = word_set("""plan implementation code kernel kernels design approach solution version structure sketch
    skeleton outline strategy
    algorithm pseudocode pseudo""")

VOCABULARY = _VERBS | _HEADS
"""Unless it holds one of these words, a text announces nothing."""


def matters(words: list[bytes], low: str) -> bool:
    """May a sentence or line with these words announce anything? Cheap, and never wrongly no."""
    if not _VERBS.isdisjoint(words) and not _CUES.isdisjoint(words):
        return True
    return not _HEADS.isdisjoint(words) and (not _HERE_CUES.isdisjoint(words) or ":" in low)


def find(low: str) -> tuple[int, int] | None:
    """(start, end) of the announcement in a lower-cased sentence without marks of emphasis, or None."""
    if low.rstrip("\"')* \n").endswith("?"):
        return None
    return _act(low) or _here(low) or _plan(low)


def _act(low: str) -> tuple[int, int] | None:
    for match in _ACT.finditer(low):
        if _VETO.search(low, max(0, match.start() - 80), match.start()):
            continue
        words = match["rest"] or match["middle"] or ""
        if re.search(rf"\b{_NOT_THIS}\b", words) or re.match(rf"\s+(?:\w+\s+)?{_NOT_THIS}\b", low[match.end() :]):
            continue
        return match.start(), match.end("always") if match["always"] else match.end()
    return None


def _here(low: str) -> tuple[int, int] | None:
    match = _HERE.search(low)
    if match is None or _HERE_VETO.search(low):
        return None
    return match.start(), match.end()


def _plan(low: str) -> tuple[int, int] | None:
    match = _PLAN.search(low)
    if match is None or _HERE_VETO.search(low) or len(low) > 120:
        return None
    return match.start() + len(match[0]) - len(match[0].lstrip()), match.start() + len(match[0].rstrip())
