"""The trigger parser's figures: speed, chunk independence, linearity, precision and recall on labelled traces.

``python -m benchmarks.triggers [--corpus DIR] [--show]``. Without ``--corpus`` the labelled traces are the synthetic
ones of benchmarks/data/triggers (its README gives the format); the figures' names then say so.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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

_LETTERS = {
    "d": TriggerClass.DECISION,
    "f": TriggerClass.FENCE,
    "k": TriggerClass.KERNEL_BODY,
    "p": TriggerClass.PHRASE,
}
_TECHNIQUE_WORDS = re.compile(
    r"\b(?:tiles?|blocks?|threads?|warps?|shared memory|float4|unroll\w*|tensor cores?)\b", re.I
)
_MARK = re.compile("\u27e6(-?)([dfkp])\u27e7")


@dataclass(frozen=True)
class Trace:
    """A trace without its marks. Labels and decoys are (class, characters from the start to the end)."""

    name: str
    text: str
    labels: tuple[tuple[TriggerClass, int], ...]
    decoys: int


def load(directory: Path) -> list[Trace]:
    """Every labelled trace of the ``*.txt`` files in ``directory``."""
    traces = []
    for path in sorted(directory.glob("*.txt")):
        parts = re.split(r"^=== (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        pairs = zip(parts[1::2], parts[2::2], strict=True) if len(parts) > 1 else [(path.stem, parts[0])]
        traces += [_unmarked(f"{path.stem}/{name}", text) for name, text in pairs]
    return traces


def _unmarked(name: str, text: str) -> Trace:
    pieces, labels, decoys, length, at = [], [], 0, 0, 0
    for mark in _MARK.finditer(text):
        pieces.append(text[at : mark.start()])
        length += mark.start() - at
        at = mark.end()
        if mark[1]:
            decoys += 1
        else:
            labels.append((_LETTERS[mark[2]], length))
    pieces.append(text[at:])
    return Trace(name, "".join(pieces), tuple(labels), decoys)


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
            ends = sorted(trigger.position for trigger in found if trigger.kind is kind)
            wanted = sorted(end for label, end in trace.labels if label is kind)
            pairs = sorted((abs(e - w), e, w) for e in ends for w in wanted if abs(e - w) <= TOLERANCE[kind])
            free_ends, free_wanted = Counter(ends), Counter(wanted)
            for _, end, want in pairs:
                if free_ends[end] and free_wanted[want]:
                    free_ends[end] -= 1
                    free_wanted[want] -= 1
                    result.hits += 1
            result.found += len(ends)
            result.labels += len(wanted)
            if show:
                _show(trace, kind, free_ends, free_wanted)
    return scores


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


def figures(traces: list[Trace], *, label: str, show: bool) -> Iterator[tuple[str, float, str, str, bool]]:
    """(name, value, unit, bar, holds) of everything measured."""
    filler = (DATA / "filler.md").read_text(encoding="utf-8") * 2
    small, large = (stretched(traces, size, filler=filler) for size in (500_000, 2_000_000))
    density = len(large) / max(1, len(_TECHNIQUE_WORDS.findall(large)))
    yield "characters_per_technique_word", density, "characters", "", True
    small_s, large_s = seconds(small, large)
    size = len(large.encode()) / 1e6
    yield "speed_mb_s", size / large_s, "MB/s", ">= 5", size / large_s >= 5
    yield "speed_at_token_sized_chunks", size / seconds(large, chunk=4, rounds=1)[0], "MB/s", "", True
    yield "time_ratio_for_4x_text", large_s / small_s, "ratio", "<= 4.8", large_s / small_s <= 4.8
    small = stretched(traces, 500_000)
    yield "speed_without_filler", len(small.encode()) / 1e6 / seconds(small)[0], "MB/s", "", True
    whole = parse(small, len(small))
    equal = sum(parse(small, chunk) == whole for chunk in CHUNKS)
    yield "equal_for_chunk_sizes_1_7_64_4096", equal, "of 4", "4", equal == len(CHUNKS)
    yield f"labels_{label}", sum(len(trace.labels) for trace in traces), "triggers", "", True
    yield f"decoys_{label}", sum(trace.decoys for trace in traces), "places", "", True
    for kind, result in score(traces, show=show).items():
        bar = BARS[kind]
        for name, value in (("precision", result.precision), ("recall", result.recall)):
            yield f"{kind}_{name}_{label}", value, "share", f">= {bar}", value >= bar


def main() -> None:
    """Print the figures as JSON lines."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--corpus", type=Path, default=None, help="a directory of labelled traces")
    arguments.add_argument("--show", action="store_true", help="print each false and each missed trigger")
    options = arguments.parse_args()
    traces = load(options.corpus or DATA)
    print(f"Python {platform.python_version()} on {platform.machine()}, {len(traces)} traces, processor time")
    label = "corpus" if options.corpus else "synthetic"
    for name, value, unit, bar, holds in figures(traces, label=label, show=options.show):
        line = {"name": f"triggers.{name}", "value": round(value, 4), "unit": unit, "bar": bar, "holds": holds}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
