"""Is a value in a sentence committed? Judges the clause around the value, not the value.

Pure functions over a lower-cased sentence. Not here: what counts as a value (`decisions`), or whether the next
sentence withdraws it (`reversal` says whether a sentence does; `decisions` waits for it).

A clause commits by an adopting verb, as an item of a plan list, or by being nothing but the assignment. Questions,
conditionals, modals, comparisons, examples, negations, and subjects that are past or somebody else's veto it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from specgen.controller.triggers.places import Place

_SEPARATOR = re.compile(
    r"[;:()\u2014\u2013]| -+ |,\s(?!\d)|\.\s"
    r"|,?\s\b(?:but|so|because|since|which|while|whereas|where|although|though|then|giving|meaning|resulting"
    r"|yielding)\b"
)
_HARD: Final = (";", ".")

_LEAD_IN = r"^\W*(?:(?:so|then|and|but|now|ok|okay|hmm|well|actually|also),?\s+)*"
_CONSEQUENCE = re.compile(r"^\W*(?:so|thus|hence|then|that means|this means|meaning|i\.e\.)\b(?!\s?[:,])")
_WORKS = re.compile(r" will |\b(?:computes?|handles?|owns?)$")
_COMPUTED = re.compile(  # an estimate, not a choice: "3 stages: 48 KB", "grid = (128, 32*12) = (128, 384)"
    r"[\d)]\s?[*/+x\u00d7]\s?[\d(][\d\s().*/+x\u00d7-]{0,60}=|\d\s?(?:bytes|[kmg]i?b|us|\u00b5s|\u03bcs|ms|ns"
    r"|tflops|gflops|gb/s|registers?|regs|waves?"
    r"|iters?|iterations?|(?:mma|fma) ops)\b|[\u2713\u2248]"
)
_BEGINS_IN_DOUBT = re.compile(r"^\W*(?:(?:but|and|so|actually|oh)\W+)?(?:wait|hmm+)\b")
_TURNS = re.compile(r"\w\W+(?:wait|hmm+|no,)\W")
_PURPOSE = re.compile(r"\b(?:for|of|without|to (?:enable|allow|get|help)) (?:\w+ )?$")
_HEADED = re.compile(
    r"^\W*(?:\w+\s){0,2}(?:design|plan|strategy|approach|mapping|parallel\w+|config\w*|choice|decision|tiling"
    r"|grid)\s*:"
)
_CASE = re.compile(
    r"^\W*(?:(?:so|then|and|but|now|ok|okay|hmm|well|actually|also|even|wait|oh),?\s+)*(?:for|with|at|given|since"
    r"|as|because"
    r"|under|assuming|using|in|on|per)\b"
)
"""A sentence that begins so looks at a case: "With BLOCK_N=64, each warp reads …", "For N=4096, grid=8"."""
_GIVEN = re.compile(r"^\W*(?:for|with|at|given|since|because)\b")
_CONDITION = re.compile(
    _LEAD_IN
    + r"(?:or|alternatively|(?:let me|let's|i (?:could|should|might)) (?:(?:also|first|just) )*(?:consider|think"
    r"|reconsider))\b|"
    + _LEAD_IN
    + r"(?:if|suppose|supposing|assum(?:e|ing)|imagine|what if|when|unless|whether|in case|even (?:if"
    r"|with))\b"
)
_VETO = re.compile(
    r"\b(?:if|whether|unless|suppose|assum(?:e|es|ed|ing)|imagine|could|might|may|would|should|can|cannot|maybe"
    r"|perhaps"
    r"|possibly|probably|alternatively|alternatives?|consider(?:ing|ed)?|options?|optionally|what about|how about"
    r"|try|trying|tried|test(?:ing|ed)?|e\.g|for (?:example|instance)|such as|say|(?:something|things?|looks"
    r"|seems) like|like (?:a )?\d|instead of|(?:approach|variant|version) [a-d]|rather than|not"
    r"|never|avoid|without|no|than|versus|vs|compare[ds]?|comparing|either|was|were|had|used|did|been"
    r"|previous(?:ly)?|prior|original(?:ly)?|existing|reference|baseline|earlier|before|currently"
    r"|last (?:attempt|kernel|version|iteration|time|one|candidate|run)"
    r"|(?:the|this|that) (?:paper|example|sample|old|given|provided|naive|current|user)"
    r"|typical(?:ly)?|usual(?:ly)?|often|common(?:ly)?|generally|sometimes|max(?:imum)?\b(?!\s?\()"
    r"|min(?:imum)?\b(?!\s?\()|limit(?:ed|s)?"
    r"|at most|up to|at least|more than|fewer|they|their|he|she|user|people|pytorch|torch|cublas|cudnn|cutlass|nvidia"
    r"|supports?|hardware|recommend(?:s|ed)?|suggest(?:s|ed)?|requires?|needs? to|wonder(?:ing)?|unclear|unsure"
    r"|(?<!for )(?:better|worse|faster|slower))\b|n't\b"
)
_TRIES = re.compile(
    r"\b(?:let me|let's|i'll|we'll|want to|going to) (?:(?:also|just|now|first|then|actually|next|quickly) )*try\Z"
)  # "let me try 3 stages": that kernel will be written; other uses of "try" veto
_PONDER = re.compile(
    r"\b(?:check|compute|calculate|verify|think|see|count|estimate|recall|look|reconsider|re-?examine|evaluate"
    r"|analy[sz]e|compare|understand|remember|note|wonder|double.check|read)\b"
)
_AFTER = re.compile(
    r"\btoo (?:large|big|much|many|small|high|few|low|slow)\b|\bwon't\b|\bdoesn't (?:fit|work|divide|help)\b"
    r"|\bexceeds?\b"
    r"|\bwait\b|\bhmm\b|\boverkill\b|\bnot enough\b|\bscratch that\b|\bno good\b|\bor (?:maybe |perhaps )?\d"
    r"|\bor (?:should|could|maybe|something)\b|\bif (?:possible|needed|necessary|it fits|that fits)\b"
    r"|\bseems? (?:too|off|wrong)\b"
)

_ADVERBS = r"(?:(?:just|simply|also|now|then|first|instead|therefore|thus|only|actually|again|definitely)\s+)*"
_COMMIT = re.compile(
    r"\b(?:i'll|i will|we'll|we will|i'm going to|i am going to|we're going to|we are going to|going to|let's|let us"
    r"|let me|decided? (?:to|on)|deciding on|the plan is to|plan:? to|i want to)\s+"
    + _ADVERBS
    + r"(?:use|using|go|keep"
    r"|pick|choose|set|take|stick|start|make|have|do|adopt|apply|employ|fix|assign|launch|add|switch|move|settle|tile"
    r"|unroll|split|load|store|accumulate|process|parallelize|vectorize|stage|implement|write|leverage|target|define"
    r"|try|block|give|cache|hold|run|put|be using|allocate|compute|prefetch|fuse|simplify|limit|increase|reduce"
    r"|change|bump)\b"
    r"|\b(?:i|we)\s+" + _ADVERBS + r"(?:choose|pick|use|set|launch|go with|assign|take|adopt|apply|stick with"
    r"|settle on"
    r"|opt for|fix)\b|\b(?:going|go|stick|sticking|staying|stay|went|start|starting) with\b|\bsettl(?:e|ed|ing) on\b"
    r"|\b(?:let me|let's|i'll|we'll)\s[^.;:?]{1,60}\band (?:then |just |only )?(?:use|set|go with|keep)\b"
    r"|\bis the way to go\b|\bopt(?:ing)? for\b|\bi(?:'ve| have) (?:decided|chosen|settled)\b|\b(?:final"
    r"|chosen) (?:choice|config"
    r"|configuration"
    r"|design|parameters|tile|block|values?)\b|\b(?:will be|is set to|are set to|set to|is fixed (?:at|to)|fixed at"
    r"|chosen as|will (?:use|have|handle|compute|process|load|own|launch|cover|produce|hold))\b|\bdecision\b"
)
_IMPERATIVE = re.compile(
    _LEAD_IN + r"(?:just |simply |please )?(?:use|set|choose|pick|launch|adopt|take|make|apply|assign|split|tile|load"
    r"|store|accumulate|process|unroll|vectori[sz]e|employ|select|define|stage|keep|fix|go with|parallelize"
    r"|declare)\b(?!\s?[=:])"
)
_WORKER = re.compile(
    _LEAD_IN
    + r"(?:each|every|one|a single)\s+(?:thread ?block|threadblock|block|thread|warp|cta|program|program instance"
    r"|workgroup|lane|core|worker)\s+(?:will\s+)?(?:computes?|handles?|process(?:es)?|owns?|loads?|covers?|produces?"
    r"|works? on|writes?|stores?|takes?|reduces?|accumulates?|has|holds?|is responsible for|deals with|contains)\b"
)
_VETO_BEHIND = re.compile(
    r"\b(?:(?<!see )if|whether|might|may|would|could|should|maybe|perhaps|than|versus|vs|compared|instead\?)\b"
    r"|^\W*(?:\w+\s+){0,2}?(?:isn't|is not|aren't|are not|won't|wouldn't|doesn't|does not|can't|cannot|was|were"
    r"|had|used)\b"
)
_SETTLED = re.compile(r" (?:[a-z]+ ){0,3}it is\s*[.!]?\s*$")  # "so 32x64 tiles it is."
_CONCLUDES = re.compile(
    r"^\W*(?:(?:ok|okay|so|thus|hence|then|decision|plan|config\w*|final\w*|design|launch|choice)\b[,: ]+)+"
)
_BARE_LEAD = re.compile(
    _LEAD_IN
    + r"(?:(?:#define|constexpr|const|static|int|unsigned|size_t|auto|dim3|where|final(?:ly)?|use|set|the|our|my"
    r"|a|an|tile|block|grid|warp|thread|config|configuration|parameters?|sizes?|dims?|shape|choice|design"
    r"|with)[,\s]+)*$"
)
_BARE_TAIL = re.compile(
    r"^\W*(?:(?:threads?|warps?|per|block|blocks|tile|tiles|elements?|each|for|the|this|kernel|now|here|output"
    r"|tl\.constexpr"
    r"|constexpr|stages?|wide|floats?|bytes|total|of|a|x|y|z|m|n|k|dim|dimension|dimensions|sized?"
    r"|\d+|rows?|columns?|outputs?|and|[bt][mnk])\b\W*)*$"
)
_MAX_LEAD: Final = 160
_WINDOW: Final = (400, 300)  # characters before and behind a value


def clause_bounds(low: str, start: int, end: int) -> tuple[int, int, int]:
    """(hard start, clause start, clause end) around ``low[start:end]``. The hard start is that of the sentence's part
    after the last semicolon or full stop: a condition holds over soft separators, such as commas."""
    hard = left = 0
    for match in _SEPARATOR.finditer(low):
        if match.end() <= start:
            left = match.end()
            if match[0][0] in _HARD:
                hard = left
        elif match.start() >= end:
            return hard, left, match.start()
    return hard, left, len(low)


@dataclass(frozen=True)
class Site:
    """A design value in a sentence, at ``[start:end]``. ``assignment``: bound by ``=``, ``:``, "of", "is" …;
    ``technique``: an instruction or a method, not a number."""

    start: int
    end: int
    name: str
    value: str
    assignment: bool = False
    technique: bool = False


def commits(low: str, site: Site, *, place: Place, after: Site | None = None) -> bool:
    """Is the value adopted by its clause? ``after``: the adopted value before it in the sentence.

    A technique needs a verb of the writer's own, or to stand near the beginning of an item.
    """
    if len(low) > _WINDOW[0] + _WINDOW[1]:
        low, site, after = _window(low, site, after)
    start, end = site.start, site.end
    hard, left, right = clause_bounds(low, start, end)
    opened_by = low[:left].rstrip()[-1:]
    wide = max(hard, left - _MAX_LEAD) if opened_by in (":", "(") else left  # what a colon or a bracket belongs to
    if _CONDITION.match(low[hard:start]) or _vetoed(low, wide, end, place) or _VETO_BEHIND.search(low, end, right):
        return False
    if _TURNS.search(low, 1):
        return False  # "32x64 (4 warps along M, 4 along N... no, that is 8)"
    lead = low[left:start]
    if site.technique and _PURPOSE.search(lead):
        return False  # what something else is for
    verb = _COMMIT.search(low, wide, start)
    if _AFTER.search(low, end) or _PONDER.search(lead, max(0, verb.end() - left) if verb else 0):
        return False
    if verb or _COMMIT.search(low, end, right) or _SETTLED.match(low, end):
        return True
    return place is not Place.OPTION and _stated(low, site, (hard, left, right), place, after)


def _vetoed(low: str, start: int, end: int, place: Place) -> bool:
    for veto in _VETO.finditer(low, start, end):
        tries = veto[0] == "try" and (
            _TRIES.search(low, 0, veto.end())
            or (place is Place.PLAN and not low[: veto.start()].strip(" -*+#.)\t0123456789"))
        )
        if not tries:
            return True
    return False


def _stated(low: str, site: Site, clause: tuple[int, int, int], place: Place, after: Site | None) -> bool:
    """Is the value adopted by where it stands, no verb of the writer's own being there?"""
    (hard, left, right), start, technique = clause, site.start, site.technique
    lead, before = low[left:start], low[hard:start]
    if _COMPUTED.search(low, hard) or _BEGINS_IN_DOUBT.match(low, hard):
        return False
    if place in (Place.ITEM, Place.PLAN) and low.rstrip(" *_\n").endswith(":"):
        return False  # the heading of a case
    if _IMPERATIVE.match(lead if technique else low[left : site.end]):
        return True
    if after is not None and not technique and low[after.end : left].strip() in (",", ", and", "and", "with", ", with"):
        return _WORKER.match(lead) is not None or _BARE_LEAD.match(lead) is not None
    if not technique and ", " in before and _IMPERATIVE.match(low[hard:left]):
        return True  # the second of "use 64x64 tiles, 256 threads per block"
    headed = _HEADED.match(low) is not None
    if (place is Place.PLAN or headed) and not _GIVEN.match(before) and not _CONSEQUENCE.match(before):
        return not technique or (start - hard < 40 and low[site.end :].lstrip()[:1] != ":")
    if _CASE.match(before):
        return False
    worker = _WORKER.match(before) or (low[:left].rstrip()[-1:] == ":" and _WORKER.match(lead))
    if (
        worker
        and not technique
        and (place is not Place.ITEM or "comput" in worker[0])
        and (site.value in ("one", "a single", "1") or _WORKS.search(worker[0]))
    ):
        return True  # else it may as well describe what there is
    if technique or not (site.assignment or _CONCLUDES.match(low)):
        return False
    if low[site.end :].lstrip()[:1] == ":" or (place is Place.WITHIN and not _CONCLUDES.match(low)):
        return False
    right = len(low) if _CONSEQUENCE.match(low) else right
    before = before.replace(":", ",")  # "Tile: BM = 64"
    return _BARE_LEAD.match(before) is not None and _BARE_TAIL.match(low[site.end : right]) is not None


def _window(low: str, site: Site, after: Site | None) -> tuple[str, Site, Site | None]:
    """A long sentence cut down to what can bear on the value, so that many values cost no more each."""
    begin = max(0, site.start - _WINDOW[0])
    moved = replace(site, start=site.start - begin, end=site.end - begin)
    if after is not None:
        after = replace(after, start=after.start - begin, end=after.end - begin) if after.start >= begin else None
    return low[begin : site.end + _WINDOW[1]], moved, after


_OPENER = r"^\W*(?:(?:hmm+|wait|no|nope|actually|but|oh|well|ok|okay|however|though|ah)\b[,.!?\s\u2014\u2026-]*)*"
_OFFERED = re.compile(
    r"^\W*(?:or,? (?:i|we|use|using|maybe|just|even|alternatively|have|do|both|try|go|keep)\b"
    r"|alternatively\b)"
)
_OPENED = re.compile(r"^\W*(?:hmm+|wait|no|nope|actually|but|oh|however|ah)\b")
_WITHDRAWN = re.compile(
    _OPENER + r"(?:scratch that|never ?mind|on second thou?ghts?|forget (?:that|it|this)|strike that"
    r"|(?:that|this|it)(?:'s| is| would be| may be| might be)? (?:wrong|too|over|a lot|more than|bigger|larger"
    r"|incorrect"
    r"|bad|not (?:right|good|ideal|enough|possible|divisible|going)|wasteful|overkill)"
    r"|(?:that|this|it|these|those) (?:might|may) not be|(?:that|this|it) (?:won't|wouldn't|doesn't|exceeds|can't"
    r"|cannot|isn't|fails|breaks|uses too)"
    r"|let me (?:reconsider|rethink|re-think|redo|go back)|let's (?:not|reconsider|rethink)"
    r"|instead\b(?! of)|maybe (?!that)|perhaps |i(?:'d| would) rather|rather,|not (?:quite|good|ideal)|or (?:rather"
    r"|better))"
)
_DOUBTED = re.compile(
    r"\b(?:instead(?! of)|too (?:large|big|much|many|small|high|few|low|slow)|exceeds?|won't|wouldn't|doesn't (?:fit"
    r"|work|divide)"
    r"|not (?:enough|divisible|a multiple|possible|supported|work|fit|going to)|would be better|better to"
    r"|should (?:be|use)"
    r"|(?:let's|let me|i'll|we'll) (?:use|go|try|reconsider|rethink|change|switch|reduce|drop)|can't|cannot|out of"
    r"|only \d[^.]*|for now|let me (?:just|first) |overflow|spills?|wrong|mistake|wasteful|overkill|illegal)\b"
)
_INTERJECTION = re.compile(r"^\W*(?:hmm+|wait|no|nope|actually|oh|ah|ok|okay|well|but|hold on|uh)?\W*$")


def reversal(low: str) -> bool:
    """Does this sentence, the one after a commitment, withdraw it? A question or a check alone does not."""
    if _WITHDRAWN.match(low) or _OFFERED.match(low):
        return True
    return _OPENED.match(low) is not None and _DOUBTED.search(low) is not None


def interjection(low: str) -> bool:
    """Nothing but a word such as "Hmm" or "Wait": the sentence after it decides."""
    return _INTERJECTION.match(low) is not None
