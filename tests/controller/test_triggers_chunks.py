"""The same triggers whatever the chunking, positions within what was fed, and bounded memory."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trigger_corpus import Trace
from benchmarks.triggers import DATA, load
from specgen.controller.triggers import TriggerParser
from specgen.controller.triggers.units import MAX_UNIT
from specgen.types import Trigger

PIECES = [
    "I'll use ", "BLOCK_SIZE = 32", "64x64 tiles", ". ", ".", "\n", "\n\n", " ", "Wait, that's too large. ",
    "- ", "1. ",
    "```cuda\n", "```\n", "```", "~~~", "`", "__global__ void k(float* x) {", "}", "{", "x[0] = 1;", "// }",
    "/*", "*/",
    '"', "'", "\\", "@triton.jit\n", "def k(x):\n", "    tl.store(x)\n", "torch::Tensor f(torch::Tensor x) {",
    "Let me write the kernel", ":", "?", "Options:", "e.g. ",
    "\u0130", "\u00d7", "\u2019", "(",
    ",\n", "a" * 300, "tile " * 90,
    "if we ", "Hmm. ", "8 warps per block", "The plan:\n", "  - ", "What it says:\n", "BM = 64, BN = 32", "BM64/BN32",
    "one block per row", "# Plan\n", "BLOCK_D = next(D)", "...\n", "writing", "  ", "tile:\n",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
TRACES = load(DATA)


def parse(pieces: list[str]) -> list[Trigger]:
    parser = TriggerParser()
    found, fed = [], 0
    for piece in pieces:
        fed += len(piece)
        new = parser.feed(piece)
        assert all(trigger.position <= fed for trigger in new)
        found += new
    return found + parser.finish()


@given(TEXTS, st.lists(st.integers(0, 3000), max_size=12))
def test_any_cuts_give_the_same_triggers(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert parse([text[a:b] for a, b in pairwise(places)]) == parse([text])


@given(TEXTS, st.sampled_from([1, 2, 7, 64]))
def test_pieces_of_one_size_give_the_same_triggers(text: str, size: int) -> None:
    assert parse([text[at : at + size] for at in range(0, len(text), size)]) == parse([text])


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
@pytest.mark.parametrize("size", [1, 5, 100])
def test_labelled_traces_in_pieces(trace: Trace, size: int) -> None:
    pieces = [trace.text[at : at + size] for at in range(0, len(trace.text), size)]
    found = parse(pieces)
    assert found == parse([trace.text])
    assert found


def held(parser: TriggerParser) -> int:
    """Bytes of all that a parser refers to, its own objects included."""
    seen: set[int] = set()
    todo: list[object] = [parser]
    total = 0
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += list(item)
        else:
            todo += list(getattr(item, "__dict__", {}).values())
    return total


@pytest.mark.parametrize(
    "unit",
    [
        "a", "word ", "line\n", "```cuda\n", "__global__ void k(float* x) {\n x[0] = 1;\n", "__global__ ", "( ",
        "@triton.jit\ndef k(x):\n    tl.x\n", "/* ", "I'll use {n} warps per block. Good. ",
        "I'll use tile_{n} = 8. Good. ",
        "```cuda\nint x{n};\n```\n", "@triton.jit\n( ", "torch::Tensor f(\n",
    ],
)  # fmt: skip
def test_memory_is_bounded(unit: str) -> None:
    parser = TriggerParser()
    for number in range(40):
        parser.feed("".join(unit.replace("{n}", str(number * 200 + k)) for k in range(200)))
    small = held(parser)
    for number in range(40, 80):
        parser.feed("".join(unit.replace("{n}", str(number * 200 + k)) for k in range(200)))
    assert held(parser) < small + 40 * MAX_UNIT
    assert held(parser) < 2_000_000
