"""The trigger parser's figures: speed, chunk independence, linearity, precision and recall on labelled traces.

``python -m benchmarks.triggers [--corpus DIR] [--show]``. Without ``--corpus`` the labelled traces are the synthetic
ones of benchmarks/data/triggers, and the figures' names say so. With it, those and real traces, which
``python -m benchmarks.trigger_corpus`` assembles: the half that the rules were tuned on, and the half held out.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import trigger_corpus
from benchmarks.figures import figure, machine
from benchmarks.trigger_corpus import CLASSES, CorpusError, Trace
from specgen.controller.triggers import TriggerParser
from specgen.types import Trigger, TriggerClass

DATA: Final = Path(__file__).parent / "data" / "triggers"
CHUNKS: Final = (1, 7, 64, 4096)
BARS: Final = {
    TriggerClass.DECISION: 0.85,
    TriggerClass.FENCE: 0.95,
    TriggerClass.KERNEL_BODY: 0.95,
    TriggerClass.PHRASE: 0.85,
}
TOLERANCE: Final = {
    TriggerClass.DECISION: 48,
    TriggerClass.FENCE: 2,
    TriggerClass.KERNEL_BODY: 2,
    TriggerClass.PHRASE: 48,
}
"""Characters between a label's end and a trigger's end that still match: inside the same clause."""

_TECHNIQUE_WORDS = re.compile(
    r"\b(?:tiles?|blocks?|threads?|warps?|shared memory|float4|unroll\w*|tensor cores?)\b", re.I
)
_MARK = re.compile("\u27e6(-?)([dfkp])\u27e7")


def load(directory: Path) -> list[Trace]:
    """Every labelled trace of the ``*.txt`` files in ``directory``, whose marks are taken out."""
    traces = []
    for path in sorted(directory.glob("*.txt")):
        parts = re.split(r"^=== (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        pairs = zip(parts[1::2], parts[2::2], strict=True) if len(parts) > 1 else [(path.stem, parts[0])]
        traces += [_unmarked(f"{path.stem}/{name}", text) for name, text in pairs]
    return traces


def _unmarked(name: str, text: str) -> Trace:
    pieces, length, at = [], 0, 0
    labels: list[tuple[TriggerClass, int]] = []
    decoys: list[tuple[TriggerClass, int]] = []
    for mark in _MARK.finditer(text):
        pieces.append(text[at : mark.start()])
        length += mark.start() - at
        at = mark.end()
        (decoys if mark[1] else labels).append((CLASSES[mark[2]], length))
    pieces.append(text[at:])
    return Trace(name, "".join(pieces), tuple(labels), tuple(decoys))


def parse(text: str, chunk: int) -> list[Trigger]:
    """All triggers of ``text``, fed in pieces of ``chunk`` characters."""
    parser = TriggerParser()
    found: list[Trigger] = []
    for at in range(0, len(text), chunk):
        found += parser.feed(text[at : at + chunk])
    return found + parser.finish()


@dataclass
class Score:
    """Counts of one class."""

    hits: int = 0
    found: int = 0
    labels: int = 0
    decoys: int = 0
    fooled: int = 0  # decoys at which a trigger fired that matches no label

    @property
    def precision(self) -> float:
        """Share of the triggers that are labelled."""
        return self.hits / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Share of the labels that fired."""
        return self.hits / self.labels if self.labels else 1.0


def score(traces: list[Trace], *, show: bool) -> dict[TriggerClass, Score]:
    """Match triggers with labels one to one, nearest first, within TOLERANCE."""
    scores = {kind: Score() for kind in BARS}
    for trace in traces:
        found = parse(trace.text, 4096)
        for kind, result in scores.items():
            ends = [trigger.position for trigger in found if trigger.kind is kind]
            wanted = [end for label, end in trace.labels if label is kind]
            extra, missed = _unmatched(ends, wanted, TOLERANCE[kind])
            decoys = [end for decoy, end in trace.decoys if decoy is kind]
            result.hits += len(ends) - extra.total()
            result.found += len(ends)
            result.labels += len(wanted)
            result.decoys += len(decoys)
            result.fooled += len(decoys) - _unmatched(list(extra.elements()), decoys, TOLERANCE[kind])[1].total()
            if show:
                _show(trace, kind, extra, missed)
    return scores


def _unmatched(ends: list[int], wanted: list[int], tolerance: int) -> tuple[Counter[int], Counter[int]]:
    """What is left of both when each place has taken at most one of the other, the nearest pairs first."""
    pairs = sorted((abs(end - want), end, want) for end in ends for want in wanted if abs(end - want) <= tolerance)
    free_ends, free_wanted = Counter(ends), Counter(wanted)
    for _, end, want in pairs:
        if free_ends[end] and free_wanted[want]:
            free_ends[end] -= 1
            free_wanted[want] -= 1
    return free_ends, free_wanted


def _show(trace: Trace, kind: TriggerClass, extra: Counter[int], missed: Counter[int]) -> None:
    for word, ends in (("false", extra), ("missed", missed)):
        for end in ends.elements():
            print(f"{trace.name} {kind} {word}: …{trace.text[max(0, end - 90) : end]!r}")


def seconds(*texts: str, chunk: int = 4096, rounds: int = 5) -> list[float]:
    """Processor time of one pass over each text: the least of ``rounds``, the texts taking turns."""
    best = [float("inf")] * len(texts)
    for _ in range(rounds):
        for index, text in enumerate(texts):
            before = time.process_time()
            parse(text, chunk)
            best[index] = min(best[index], time.process_time() - before)
    return best


def stretched(traces: list[Trace], size: int, *, filler: str = "") -> str:
    """A trace of ``size`` characters: the labelled ones, each between two pieces of ``filler``, with numbers changed so
    that nothing is a mere repeat."""
    pieces: list[str] = []
    length = number = 0
    while length < size:
        for trace in traces:
            number += 1
            pieces.append(
                f"Part {number}.\n" + re.sub(r"\b(\d\d+)\b", rf"\g<1>{number % 97}", trace.text) + "\n\n" + filler
            )
            length += len(pieces[-1])
    return "".join(pieces)[:size]


_Row = tuple[str, float, str, str, bool | None]


def speeds(traces: list[Trace]) -> Iterator[_Row]:
    """(name, value, unit, bar, holds) of speed, linearity and equality."""
    filler = (DATA / "filler.md").read_text(encoding="utf-8") * 2
    small, large = (stretched(traces, size, filler=filler) for size in (500_000, 2_000_000))
    density = len(large) / max(1, len(_TECHNIQUE_WORDS.findall(large)))
    yield "characters_per_technique_word", density, "characters", "", None
    small_s, large_s = seconds(small, large)
    size = len(large.encode()) / 1e6
    yield "speed_mb_s", size / large_s, "MB/s", ">= 5", size / large_s >= 5
    yield "speed_at_token_sized_chunks", size / seconds(large, chunk=4, rounds=1)[0], "MB/s", "", None
    yield "time_ratio_for_4x_text", large_s / small_s, "ratio", "<= 4.8", large_s / small_s <= 4.8
    small = stretched(traces, 500_000)
    yield "speed_without_filler", len(small.encode()) / 1e6 / seconds(small)[0], "MB/s", "", None
    yield _equal("equal_for_chunk_sizes_1_7_64_4096", small)


def _equal(name: str, *texts: str) -> _Row:
    wholes = [parse(text, len(text)) for text in texts]
    equal = sum(all(parse(text, chunk) == whole for text, whole in zip(texts, wholes, strict=True)) for chunk in CHUNKS)
    return name, equal, "of 4", "4", equal == len(CHUNKS)


def accuracy(traces: list[Trace], *, label: str, show: bool) -> Iterator[_Row]:
    """The same of precision and recall; the bars are for real traces and for the rules' own cases alike."""
    yield f"labels_{label}", sum(len(trace.labels) for trace in traces), "triggers", "", None
    yield f"decoys_{label}", sum(len(trace.decoys) for trace in traces), "places", "", None
    for kind, result in score(traces, show=show).items():
        bar = BARS[kind]
        yield f"{kind}_labels_{label}", result.labels, "triggers", "", None
        for name, value in (("precision", result.precision), ("recall", result.recall)):
            yield f"{kind}_{name}_{label}", value, "share", f">= {bar}", value >= bar
        yield f"{kind}_decoys_fired_{label}", result.fooled, f"of {result.decoys}", "", None


def on_corpus(directory: Path, *, show: bool) -> Iterator[_Row]:
    """The same on real traces: each half by itself, then the speed and the equality on all of them."""
    halves = {half: trigger_corpus.load(directory, half) for half in trigger_corpus.HALVES}
    for half, traces in halves.items():
        if show and half == trigger_corpus.HALVES[-1]:
            print("(errors of the held-out half are not shown: rules are not to be tuned on it)")
        yield from accuracy(traces, label=half, show=show and half == trigger_corpus.HALVES[0])
    texts = [trace.text for traces in halves.values() for trace in traces]
    whole = "\n\n".join(texts)
    yield "speed_mb_s_real_traces", len(whole.encode()) / 1e6 / seconds(whole)[0], "MB/s", "", None
    yield _equal("equal_for_chunk_sizes_1_7_64_4096_real_traces", *texts)


def main() -> int:
    """Print the figures as JSON lines."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--corpus", type=Path, default=None, help="texts assembled by benchmarks.trigger_corpus")
    arguments.add_argument("--show", action="store_true", help="print each false and each missed trigger")
    options = arguments.parse_args()
    traces = load(DATA)
    print(f"{machine()}, {len(traces)} synthetic traces, processor time")
    rows = [*accuracy(traces, label="synthetic", show=options.show)]
    if options.corpus is not None:
        try:
            rows += on_corpus(options.corpus, show=options.show)
        except CorpusError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    for name, value, unit, bar, holds in [*speeds(traces), *rows]:
        figure(f"triggers.{name}", value, unit, bar, holds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
