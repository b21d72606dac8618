"""Trigger class *phrase*: the trace announces that it implements now, or introduces its plan (§6.1.1, class 4).

Verb and object decide: writing, rewriting, implementing, refining a kernel; introducing a plan. Checking, reading,
testing and thinking do not, nor does a plan to write "a test". Pure function of one sentence.
"""

from __future__ import annotations

import re

from specgen.controller.triggers.units import word_set

_ADVERBS = (
    r"(?:(?:now|just|also|first|then|actually|quickly|carefully|finally|simply|try(?:ing)? to|start by|begin by"
    r"|focus on|go ahead"
    r" and|proceed to|move on to|get to|directly|fully|properly|start|begin|go|again|attempt to|at least)\s+)*"
)
_ANNOUNCE = (
    r"(?:let me|let's|let us|i'll|i will|we'll|we will|i'm going to|i am going to|we're going to|time to|now to"
    r"|i'm ready to"
    r"|ready to|i can now|we can now|now i can|i now|i'd better|now,? i|next,? i'll|i shall|going to|let's now"
    r"|(?:let me|let's) not [^.:;?]{1,60}? and(?: instead)?|(?:let me|let's|i'll) (?:try|use|take"
    r"|go with) [^.:;?]{1,50}:)\s+"
)
_ALWAYS = (
    r"(?:re-?)?implement(?:ing)?|re-?writ(?:e|ing)|(?:re-?)?cod(?:e|ing)(?: up| it| this)?|put(?:ting)? (?:(?:it"
    r"|this|everything|that"
    r"|the pieces) )?(?:all )?together|assembl(?:e|ing)"
)
_WRITE = (
    r"(?:re-?)?writ(?:e|ing)(?: out| up| down)?|draft(?:ing)?|sketch(?:ing)?(?: out)?|produc(?:e|ing)|creat(?:e|ing)"
    r"|build(?:ing)?|compos(?:e|ing)|craft(?:ing)?|finali[sz](?:e|ing)|refin(?:e|ing)|restructur(?:e|ing)"
    r"|refactor(?:ing)?"
    r"|redo(?:ing)?|revis(?:e|ing)|simplify(?:ing)?|rework(?:ing)?|modify(?:ing)?|updat(?:e|ing)|redesign(?:ing)?"
    r"|design(?:ing)?|develop(?:ing)?|structur(?:e|ing)|lay(?:ing)? out|outlin(?:e|ing)"
    r"|generat(?:e|ing)|complet(?:e|ing)|provid(?:e|ing)|present|define|spell out|translate|turn"
)
_OBJECT = (
    r"(?:kernels?|code|implementation|version|function|functions|solution|module|modelnew|class|cuda|triton|c\+\+"
    r"|file"
    r"|program|everything|plan|answer|approach|algorithm|body|loop|source|extension|design|pipeline|skeleton"
    r"|pseudo-?code|it|this|that|these|them)"
)
_NOT_THIS = (
    r"(?:tests?|wrappers?|launcher|heading|unit|scripts?|benchmarks?|report|summary|message|docs?|documentation"
    r"|readme|comments?|file to"
    r"|reproducer"
    r"|email|list|table|notes?|plan file|commit|question|checks?|equations?|formulas?|expressions?|indices|proof"
    r"|numbers"
    r"|dimensions|shapes|constraints|requirements|problem|steps? (?:of|by(?! step)))"
)
_ACT = re.compile(
    r"\b" + _ANNOUNCE + _ADVERBS + r"(?:"
    rf"(?P<always>{_ALWAYS})(?P<rest>(?:\s+[\w+#.'/-]+){{0,8}})"
    rf"|(?:{_WRITE})(?P<middle>(?:\s+[\w+#'/-]+,?){{0,9}}?)\s+(?P<object>{_OBJECT})\b"
    r"|(?:rewrite|write|design|implement|code)\s?(?=[:.!]\s|[:.!]\Z)|(?:start|begin) (?:writing|coding"
    r"|implementing)(?=\s*[.!:\n])"
    r"|(?:try|do|attempt) (?:a|another) (?:\w+ ){0,2}rewrite)"
    r"|^\W*(?:(?:ok|okay|now|so|alright|good|right)\b,? )?(?:now )?writing(?:\s*[.!:]?\s*\Z| \w+\.(?:py|cu|cpp"
    r"|cc)\b| now\b| (?:out "
    r"|up )?(?:it|this|the"
    rf"(?:\s[\w+#'/-]+){{0,3}}?\s{_OBJECT})\b)"
)
_TO_LOOK = re.compile(r"\s+to (?:print|log|debug|check|test|measure|time|profile|return|verify)\b")
_ELSEWHERE = re.compile(r"\b(?:and|with|by|about|whether|how|what|in|to|so|then|using|via)\b")
_HERE = re.compile(
    r"\b(?:here is|here's|here are|below is|here comes)\s+(?:the|my|a|an|our)\s+(?:[\w+#'/-]+\s+){0,4}?"
    r"(?:plan|implementation|code|kernel|kernels|design|approach|solution|version|structure|sketch|skeleton|outline"
    r"|strategy|algorithm|pseudo-?code)\b"
)
_KIND = (
    r"(?:(?:final|overall|implementation|optimi[sz]ation|kernel|new|revised|updated|high-level|basic|concrete|refined"
    r"|complete|full|proposed|cuda|triton|c\+\+|design|general|detailed)\s+){0,3}"
)
_ENDS = (
    r"(?:\s+for\s[\w .+-]{1,40}?)?(?:\s+(?:is|is as follows|will be|would be|outline|summary|now"
    r"|steps))?\s{0,3}:\s*\Z"
)
_LINE = r"^[\W\d]*(?:(?:ok|okay|so|now|right),?\s+)?"
_PLAN = re.compile(
    rf"(?:{_LINE}|\b(?:my|the|our|this|a)\s+){_KIND}(?:plan|strategy){_ENDS}"
    rf"|\b(?:my|our)\s+{_KIND}(?:approach|design|algorithm|answer|solution|structure){_ENDS}"
    rf"|(?:{_LINE}|\b(?:my|the|our|a)\s+)(?:final|complete|full|new|revised|updated|improved)\s+{_KIND}"
    rf"(?:kernel|code|implementation|version|answer|solution|design|structure){_ENDS}"
    rf"|{_LINE}(?:the\s+|this\s+)?{_KIND}(?:design|implementation|algorithm){_ENDS}"
    rf"|{_LINE}(?:the |this )?(?:approach|kernel code|kernel|code){_ENDS}"
    r"|\b(?:my|the|our) (?:approach|strategy|design|structure|layout) is\s?:\s*\Z|\b(?:my|the"
    r"|new) plan(?: now)?(?: is)?:|^#{1,6}\s(?:[\w-]+\s){0,3}plan\s*\Z"
)
_PLAN_VETO = re.compile(
    r"\b(?:think|thinking|consider\w*|look|check|understand|see|review|analy[sz]e|reconsider|rethink|figure"
    r"|for the)\b"
)
_VETO = re.compile(
    r"\b(?:if|before|after|when|once|until|unless|whether|not|n't|never|think|thinking|wondering|could|would"
    r"|should|might"
    r"|may|maybe|perhaps|alternatively|instead of|without)\b[^.]{0,60}$"
)
_HERE_VETO = re.compile(
    r"\b(?:problem|issue|reference|original|(?:the|this) given|provided|existing|previous|pytorch|baseline|error"
    r"|current"
    r"|user's|naive"
    r"|old|example|where|not)\b"
)
_VERBS = word_set(
    """assemble assembling build building code coding complete completing compose composing craft crafting create
    creating define design designing develop developing draft drafting finalise finalize finalizing generate
    generating implement implementing lay laying modify modifying optimise optimize optimizing outline
    outlining present produce producing provide providing put putting re recode redesign redesigning redo
    refactor refactoring refine refining reimplement restructure restructuring revise revising rework
    reworking rewrite rewriting simplify simplifying sketch sketching spell structure structuring translate
    turn update updating write writing"""
)
_CUES = word_set("ok okay writing let lets ll will going time ready now i shall next")
_HERE_CUES = word_set("here heres below")
_HEADS = word_set("""plan implementation code kernel kernels design approach solution version structure sketch answer
    skeleton outline strategy
    algorithm pseudocode pseudo""")

VOCABULARY = _VERBS | _HEADS
"""Unless it holds one of these words, a text announces nothing."""


def matters(words: list[bytes], low: str) -> bool:
    """May a sentence or line with these words announce anything? Cheap, and never wrongly no."""
    if not _VERBS.isdisjoint(words) and not _CUES.isdisjoint(words):
        return True
    return not _HEADS.isdisjoint(words) and (not _HERE_CUES.isdisjoint(words) or ":" in low or "#" in low)


def find(low: str) -> tuple[int, int] | None:
    """(start, end) of the announcement in a lower-cased sentence without marks of emphasis, or None."""
    if low.rstrip("\"')* \n").endswith("?"):
        return None
    return _act(low) or _here(low) or _plan(low)


def _act(low: str) -> tuple[int, int] | None:
    for match in _ACT.finditer(low):
        if _VETO.search(low, max(0, match.start() - 80), match.start()):
            continue
        words = match["middle"] or ""
        if _ELSEWHERE.search(words.replace(" to ", " ").replace(" in ", " ")):
            continue  # the object belongs to another verb: "simplify and follow the code"
        if match["rest"]:
            words = _ELSEWHERE.split(match["rest"])[0]
        if (
            _TO_LOOK.match(low, match.end())
            or re.search(rf"\b{_NOT_THIS}\b", words)
            or re.match(rf"\s+(?:\w+\s+)?{_NOT_THIS}\b", low[match.end() :])
        ):
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
    if match is None or _HERE_VETO.search(low) or _PLAN_VETO.search(low) or len(low) > 120:
        return None
    return match.start() + len(match[0]) - len(match[0].lstrip()), match.start() + len(match[0].rstrip())
