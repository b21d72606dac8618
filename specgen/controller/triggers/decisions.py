"""Trigger class *decision*: a kernel-design value that the trace commits to (§6.1.1, class 1).

Tile shapes and sizes, block dimensions, work per thread, stages, instructions and methods. Finds the values of a
sentence, asks `clauses` whether its clause commits to them, and holds the trigger back until the next sentence (at most
200 characters of it) has not withdrawn it. A name that already has that value does not fire again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from specgen.controller.triggers import clauses
from specgen.controller.triggers.clauses import Site
from specgen.controller.triggers.places import Place
from specgen.controller.triggers.units import word_set

LOOKAHEAD: Final = 200
"""Characters after a commitment within which it may be withdrawn."""
_MAX_SITES: Final = 24  # values looked at in one sentence
_MEMORY: Final = 1024  # names whose value is remembered

_NUMBER = r"\d{1,6}(?:\s?[x\u00d7*]\s?\d{1,6}){0,3}"
_VALUE = (
    rf"(?:dim3\s?)?[(\[{{]?\s?{_NUMBER}(?:\s?,\s?\d{{1,6}}){{0,3}}(?:\s?[)\]}}])?(?![\d.]*\d)(?![a-z%])"
    r"(?!\s?[*/+\u00d7]\s?[\d(])"
)
_DESIGN = re.compile(
    r"block|tile|thread|warp|stage|unroll|vec|chunk|split|_per_|cta|smem|lane|elems|items|group"
    r"|pipeline"
    r"|^(?:b|t|w|bs|mma|wg|frag)_?[mnkxycvqhd]\d?$|^(?:bs|bq|bkv|br|bc|rm|rn|nt|tpb|wpt|ept|vw|nwarps|tx|ty)$|^grid"
    r"|^pad"
)
_ASSIGNED = re.compile(
    rf"(?<![\w.])(?:#define\s+([a-z_]\w{{0,40}})\s+|([a-z_][\w.]{{0,40}})\s?(?::=|==?|:)\s?)({_VALUE})"
)
_MOVED = re.compile(rf"(?<![\w.])([a-z]+_\w{{1,40}})\s(?:to|of|at|is)\s({_VALUE})")  # increasing num_warps to 8
_CHAIN = re.compile(r"(?<![\w.])([a-z_][\w.]{0,40})\s?=\s?$")  # BLOCK_K = GROUP_SIZE = 128
_NAMED = re.compile(
    r"(?<!\w)((?:output |register |micro-?|macro-?|shared |warp |thread |vector |unroll )?(?:tiles?|blocks?"
    r"|thread ?blocks?"
    r"|warps?|chunks?|grid|vector|unroll(?:ing)?|work ?group|cta|pipeline|stages?"
    r"|cluster)(?: ?tile)?(?:[ _-](?:size|shape"
    r"|dim|dims|dimensions?|width|height|factor|depth|length|count|m|n|k))?s?)"
    rf"\s{{0,3}}(?:of|=|:|to|is|at|being|by|will be|as|->|\u2192)\s{{0,3}}(?:size )?({_VALUE})"
)
_COUNTED = re.compile(
    rf"(?<![\w.*/^+-])(?<!=\s)({_NUMBER}|\(\d{{1,5}},\s?\d{{1,5}}(?:,\s?\d{{1,5}})?\)|two|four|eight|sixteen)[ -]"
    r"(?:[a-z]{3,12}[ -]){0,2}?"
    r"((?:thread ?)?blocks?|tiles?|threads?|warps?|stages?|tiling|micro-?tiles?|fragments?|sub-?tiles?|ctas?"
    r"|chunks?|configs?"
    r"|(?:elements?|rows?|columns?|outputs?|values?|floats?|results?|channels?|items?|pixels?|halfs?)"
    r"(?= (?:per|each|in each|at a time|for each|/)))\b"
)
_OWNED = re.compile(
    r"(?:thread|block|warp|cta|program|lane|worker)s?\s(?:will\s)?(?:computes?|handles?|process(?:es)?|owns?"
    r"|loads?|covers?"
    rf"|produces?|writes?|stores?|takes?|reduces?|accumulates?|holds?)\s(?:an?\s|one\s)?({_NUMBER}|one|a single)"
    r"(?=[ -](?:[a-z]+|\())"
)
_UNIT = r"(?:thread ?blocks?|blocks?|programs?(?: instances?)?|warps?|ctas?|threads?|lanes?|workgroups?)"
_PER = re.compile(  # how the work is mapped: "one block per row", "two rows per warp"
    rf"(?<![\w.])(one|a single|two|four|eight|\d{{1,4}})[ -](?:{_UNIT} per (?:\([^()]{{1,40}}\)|[\w_]+)"
    rf"|(?:[a-z_]+[ -]){{1,3}}?per {_UNIT})(?!\w)"
)
_PARAMETER = re.compile(
    r"(?:block|tile|bm|bn|bk|num_?warps|num_?stages|pad|grid|split|chunk|vec|unroll|n?threads|n?warps|stages|packed)"
    r"(?:_?[mnkdhvqxyg]|_?size|_?dim|_?blocks?)?\Z"
)
_SYMBOLIC = re.compile(  # bound, but not to a number: BLOCK_D = next_pow2(D)
    r"(?<![\w.])([a-z_][\w.]{0,40})\s?(?:="
    r"|:=)\s?([a-z_][\w.]{0,40}(?:\([^()]{0,60}(?:\([^()]{0,60}\)[^()]{0,20})?\))?"
    r"(?:\s?(?://?|\*|\+)\s?\w{1,40})?|\([^()]{0,60}(?:\([^()]{0,60}\)[^()]{0,20})?\))(?!\w|\s?=)"
)
_GRID = re.compile(
    r"(?<!\w)grid\s{0,3}(?:[:=]|is|of)\s{0,3}\([^()]{0,80}(?:\([^()]{0,80}\)[^()]{0,40}){0,2}\)(?!\s?=|,? or\b)"
)
_COMPACT = re.compile(r"(?<!\w)b[mn]\d{1,4}(?:[/x_]\w{1,6}){1,4}")  # BM256/BN64/BK32
_SET = re.compile(  # any name, if it is set in so many words: "let me use T = ceil(512 / n)"
    r"\b(?:use|set)\s([a-z]\w{0,20})\s?=\s?((?:max|min|ceil|cdiv|next_\w+)\([^;\n]{1,80}\))"
)
_PRECISION = re.compile(  # a number format, where the words before it say that it is used
    r"\b(?:us(?:e|ing)|accumulat(?:e|es|ing|ion|or)(?: [\w_]+){0,2}? (?:in|as|to)|cast(?:s|ing)?(?: [\w_]+){1,3}? to"
    r"|convert(?:s|ing)?(?: [\w_]+){1,3}? to|(?:store|make)(?: [\w_/]+){1,4}?(?: (?:as|in))?|output(?:s|ting)?"
    r"|keep(?:s|ing)?(?: [\w_]+){1,3}? (?:in|as))\s(?:a |an )?"
    r"(fp8|fp16|bf16|tf32|fp32|float16|bfloat16|float32|half precision)(?!\w)"
)
_TECHNIQUE = re.compile(
    r"(?<!\w)(float[248]|half2|u?int[24](?= (?:vector|load|store))|__ldg|wmma|wgmma|mma\.sync|mma|ldmatrix"
    r"|cp\.async|tma|tensor cores?"
    r"|__shfl_\w+|warp[ -]?(?:level )?(?:shuffles?|reductions?|primitives?)|shared[ -]memory tiling"
    r"|double[ -]buffer(?:ing|ed)?"
    r"|vectori[sz]ed (?:loads?|stores?|access(?:es)?|memory access(?:es)?)|fma|avx-?(?:2|512)\w*|_mm\d+_\w+"
    r"|evict_(?:first|last)|(?:warp|block|thread|cta|program)-per-\w+"
    r"|cache_modifier|eviction_policy|flat grid|(?:one|two|three|single|multi|\d)-(?:pass|stage|phase|kernel"
    r"|level)(?: \w+)?"
    r"|openmp|[123]d grid|grid over \w+|tiling"
    r"|split-?k|stream-?k|persistent kernel|grid[ -]stride loops?|online softmax|register (?:blocking|tiling)"
    r"|loop unrolling|#pragma unroll|#pragma omp\b[\w ]{0,20}|atomicadd|tl\.dot|shared memory|cache blocking"
    r"|async(?:hronous)? copies|swizzl(?:e|ing)|bank[- ]conflict padding|cooperative groups"
    r"|warp speciali[sz]ation)(?!\w)"
)
_ALTERNATIVE_BEFORE = re.compile(r"(?:\d\s?(?:or|/|vs\.?|to|-|\u2013)\s?|\b(?:or|vs\.?|between|either)\s)$")
_EITHER_METHOD = (re.compile(r"(?:/|\bor\s)(?:\w+ )?$"), re.compile(r"(?:\s?/\s?|,? \(?or (?!so\b)|,? and/or )[a-z]"))
_ALTERNATIVE_AFTER = re.compile(
    r"\s?(?:[a-z]+ ){0,2}(?:or|vs\.?|versus|/)\s?(?:[a-z_]+\s?[=:]?\s?)?\(?\d|\s?/\s?\d|,\s?(?:\d{1,6}(?:,\s?"
    r"|\s))*or\b"
)

_NAMES: Final = word_set(
    """bk blk block blockdim blocks blocksize bm bn chunk chunks chunksize cluster clusters config configs cta ctas
    elems fragment fragments grid griddim group items lane lanes microtile microtiles nthreads numstages
    numthreads numwarps nwarps pipeline program programs smem stage stages subtile subtiles thread
    threadblock threadblocks threads tile tiles tilesize tiling tk tm tn unroll unrolled unrolling vec
    vector warp warps wk wm wn worker workgroup"""
)
_NUMBERED: Final = word_set(
    """channel channels column columns element elements float floats halfs item output outputs per pixel pixels
    programs result results row rows value values"""
)
_METHODS: Final = word_set(
    """async asynchronous atomicadd avx avx2 avx512 avx512f bf16 bfloat16 blocking buffer buffered buffering cache
    conflict cooperative cp double evict eviction flat float16 float2 float32 float4 float8 fma fp16 fp32
    fp8 grid half half2 int2 int4 kernel ldg ldmatrix level mm256 mm512 mma openmp pass persistent phase
    pragma primitives reduction reductions register shared shfl shuffle shuffles softmax specialisation
    specialization split splitk stream streamk stride swizzle swizzling tensor tf32 tl tma uint2 uint4
    unroll unrolling vectorised vectorized wgmma wmma"""
)
_ADOPTING: Final = word_set(
    """accumulate adopt apply assign choose chosen decide decided deciding decision declare define depth dim
    dimensions dims each employ every factor final fix fixed go going height hence i it keep launch let lets
    ll load make ok okay one opt opting parallelize pick plan process select set settle settled settling
    shape single size sizes so split stage start starting stay staying stick sticking store take then thus
    tile unroll us use using vectorise vectorize want we went width will"""
)
VOCABULARY: Final = _NAMES | _METHODS
"""Unless it holds one of these words, or an equals sign, a text commits to nothing."""
_DIGIT = re.compile(r"\d|two |four |eight |sixteen ")


def matters(words: list[bytes], low: str) -> bool:
    """May a sentence or line with these words commit to anything? Cheap, and never wrongly no."""
    return "=" in low or "/b" in low or not _NAMES.isdisjoint(words) or not _METHODS.isdisjoint(words)


@dataclass(frozen=True)
class Commitment:
    """What one sentence commits to. ``end`` in characters of the trace; ``items`` are (name, value)."""

    end: int
    text: str
    items: tuple[tuple[str, str], ...]


class Decisions:
    """The commitments so far, and those that the next sentence may still withdraw."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._waiting: list[Commitment] = []
        self._left = 0  # characters of lookahead that the waiting ones still have
        self._names: frozenset[str] = frozenset()  # bound by the last list item that bound any
        self._named_at = 0  # where that was, in characters of the trace

    @property
    def waiting(self) -> int:
        """How many more characters may withdraw what waits; 0 where nothing does."""
        return self._left if self._waiting else 0

    def sentence(self, unit: str, low: str, words: list[bytes], start: int, *, place: Place) -> list[Commitment]:
        """Read a sentence that begins at ``start``. Returns the commitments that are final now."""
        final = self.following(low) if self._waiting else []
        found = self._commitment(unit, low, words, start, place=place)
        if found is None:
            return final
        if place in (Place.ITEM, Place.PLAN) and self._is_one_of_several(found, final):
            return []
        self._waiting.append(found)
        self._left = LOOKAHEAD
        return final

    def _is_one_of_several(self, found: Commitment, final: list[Commitment]) -> bool:
        """Does the item bind the very names, two or more, that the item before it bound? Then both are alternatives."""
        names = frozenset(name for name, _ in found.items)
        near = found.end - self._named_at <= LOOKAHEAD
        again = near and len(names) > 1 and names == self._names
        self._names, self._named_at = names, found.end
        if again:
            for made in final:
                for name, value in made.items:
                    if self._values.get(name) == value:
                        del self._values[name]
        return again

    def following(self, low: str) -> list[Commitment]:
        """``low`` follows what waits: withdraw it, or return it as final. Blank text and "Hmm." decide nothing
        yet."""
        seen = low[: self._left]
        self._left -= len(seen)
        if self._left > 0 and clauses.interjection(seen):
            return []
        if clauses.reversal(plain(seen)):
            self._waiting = []
        return self.settle()

    def settle(self) -> list[Commitment]:
        """Nothing can withdraw what waits any more (code begins, or the trace is over): return it as final."""
        final = [found for found in self._waiting if self._is_new(found)]
        self._waiting, self._left = [], 0
        return final

    def _is_new(self, found: Commitment) -> bool:
        new = False
        for name, value in found.items:
            new |= self._values.pop(name, None) != value
            self._values[name] = value
        while len(self._values) > _MEMORY:
            del self._values[next(iter(self._values))]
        return new

    def _commitment(self, unit: str, low: str, words: list[bytes], start: int, *, place: Place) -> Commitment | None:
        if place in (Place.PROSE, Place.WITHIN) and "=" not in low and ":" not in low and _ADOPTING.isdisjoint(words):
            return None
        sites = _sites(low, words)
        if not sites or low.rstrip("\"')* \n").endswith("?"):
            return None
        adopted: list[Site] = []
        for site in sorted(sites, key=lambda site: site.start)[:_MAX_SITES]:
            if clauses.commits(low, site, place=place, after=adopted[-1] if adopted else None):
                adopted.append(site)
        if not adopted:
            return None
        first, last = min(site.start for site in adopted), max(site.end for site in adopted)
        items: dict[str, str] = {}
        for site in adopted:  # a name may be bound to several values: "only BLOCK_K=64 and BLOCK_K=128"
            known = items.get(site.name, site.value)
            items[site.name] = site.value if known == site.value else f"{known} {site.value}"
        return Commitment(start + last, unit[max(first, last - 200) : last].strip(), tuple(items.items()))


def plain(low: str) -> str:
    """Without marks of emphasis and code; the same length."""
    if "`" in low or "*" in low:
        low = low.replace("`", " ").replace("**", "  ")
    return low.replace("\u2019", "'") if "\u2019" in low else low


def _sites(text: str, words: list[bytes]) -> list[Site]:
    """The design values of a sentence, without those that are offered as alternatives."""
    sites: list[Site] = []
    named = not _NAMES.isdisjoint(words)
    if _DIGIT.search(text):
        if "=" in text or ((":" in text or "#define" in text) and named):
            for match in _ASSIGNED.finditer(text):
                chain = _CHAIN.search(text, max(0, match.start() - 60), match.start())
                if _DESIGN.search(name := (chain or match)[1] or match[2]) and _single(match[3]):
                    sites.append(Site(match.start(), match.end(), _key(name), _digits(match[3]), assignment=True))
        if "_" in text:
            sites += [
                Site(m.start(), m.end(), _key(m[1]), _digits(m[2]), assignment=True)
                for m in _MOVED.finditer(text)
                if _DESIGN.search(m[1])
            ]
        if named:
            sites += [
                Site(m.start(), m.end(), _key(m[1]), _digits(m[2]), assignment=True)
                for m in _NAMED.finditer(text)
                if _single(m[2])
            ]
        if named or not _NUMBERED.isdisjoint(words):
            sites += [Site(m.start(), m.end(), _key(m[2]), _digits(m[1])) for m in _COUNTED.finditer(text)]
    if named:
        sites += [Site(m.start(1), m.end(), "work", _digits(m[1])) for m in _OWNED.finditer(text)]
        if "grid" in text:
            sites += [Site(m.start(), m.end(), "grid", m[0], assignment=True) for m in _GRID.finditer(text)]
        if "per" in text:
            mapped = [Site(m.start(), m.end(), "mapping", m[0], assignment=True) for m in _PER.finditer(text)]
            counted = {site.start for site in sites}
            sites += [site for site in mapped if site.start not in counted]
    if "=" in text:
        sites += [Site(m.start(1), m.end(), _key(m[1]), m[2], technique=True) for m in _SET.finditer(text)]
        for match in _SYMBOLIC.finditer(text):
            if _PARAMETER.match(match[1]):
                sites.append(Site(match.start(), match.end(), _key(match[1]), match[2], technique=True))
    if "/b" in text:
        sites += [Site(m.start(), m.end(), "tile", m[0], assignment=True) for m in _COMPACT.finditer(text)]
    if not _METHODS.isdisjoint(words):
        sites += [Site(m.start(), m.end(), _key(m[1]), "", technique=True) for m in _TECHNIQUE.finditer(text)]
        sites += [Site(m.start(1), m.end(), m[1], "", technique=True) for m in _PRECISION.finditer(text)]
    return [site for site in sites if not _is_alternative(text, site)]


def _single(value: str) -> bool:
    """One value: neither 0, which is an index, nor several without brackets, which are alternatives."""
    return value != "0" and ("," not in value or value[0] in "([{d")


def _is_alternative(text: str, site: Site) -> bool:
    before = text[max(0, site.start - 12) : site.start]
    if site.technique and (_EITHER_METHOD[0].search(before) or _EITHER_METHOD[1].match(text, site.end)):
        return True
    return bool(_ALTERNATIVE_BEFORE.search(before) or _ALTERNATIVE_AFTER.match(text, site.end))


def _key(name: str) -> str:
    name = re.sub(r"[\s_-]", "", name)
    return name[:-1] if name.endswith("s") else name


def _digits(value: str) -> str:
    return "x".join(re.findall(r"\d+", value)) or value
