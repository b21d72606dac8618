"""Loops are found however the text is cut, and text that only looks repetitive is left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgen.controller.repetition import LoopWatch

WINDOW = 1200
COUNTING = "".join(
    f"Step {number}: try tile {number * 8} and see whether it fits into shared memory.\n" for number in range(400)
)
CODE = "".join(f"    acc[{index}] += a[{index}] * b[k * N + {index}];\n" for index in range(16))
VARIED = "".join(
    f"Then {word} is looked at: it moves {index * index} bytes, {'stalls' if index % 3 else 'waits'} on {word[::-1]}.\n"
    for index, word in enumerate(("tile", "warp", "block", "lane", "bank", "cache", "stage", "queue") * 40)
)


def found(text: str, size: int = 7, window: int = WINDOW) -> int | None:
    watch = LoopWatch(window)
    for start in range(0, len(text), size):
        if (position := watch.feed(text[start : start + size])) is not None:
            return position
    return None


def test_a_paragraph_again_and_again() -> None:
    intro = VARIED[:3000]
    position = found(intro + "Wait, let me reconsider the tile size once more.\n" * 100)
    assert position is not None
    assert 3000 <= position <= 3000 + WINDOW // 4


def test_with_another_number_each_time() -> None:
    assert found(COUNTING) is not None


def test_one_word() -> None:
    assert found("no " * 1000) is not None


def test_honest_text_is_left_alone() -> None:
    assert found(VARIED) is None
    assert found(VARIED[:500] + CODE + VARIED[500:]) is None


def test_a_long_period_needs_as_many_turns() -> None:
    paragraph = VARIED[:600]
    assert found(paragraph * 3 + "done", window=WINDOW) is None


def test_zero_never_looks() -> None:
    assert found("no " * 1000, window=0) is None


@given(st.integers(1, 400), st.text("abc ", min_size=1, max_size=90))
def test_however_it_is_cut(size: int, phrase: str) -> None:
    assert found(VARIED[:700] + phrase * (3 * WINDOW // len(phrase)), size) is not None
