"""Answers that are edits of a kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.controller.edits import applied
from specgen.controller.receipts import Receipt
from specgen.types import Status

BASE = "import torch\n\nclass ModelNew:\n    a = 1\n    b = 2\n"


def edit(search: str, replacement: str) -> str:
    return f"<<<<<<< SEARCH\n{search}=======\n{replacement}>>>>>>> REPLACE\n"


def test_edits_are_applied_one_after_another() -> None:
    first, second = edit("    a = 1\n", "    a = 3\n    c = 4\n"), edit("    c = 4\n", "")
    content = f"First:\n```python\n{first}\n{second}```\n"
    assert applied(BASE, content) == BASE.replace("a = 1", "a = 3")
    assert applied(BASE + "  \n", content.replace("a = 1\n", "a = 1   \n")) == BASE.replace("a = 1", "a = 3") + "\n"


@pytest.mark.parametrize(
    "content",
    ["no edit", edit("    z = 1\n", ""), edit("= 1\n", "= 2\n"), edit("", "x\n"), edit("    a = 1\n", "")[:30]],
)
def test_what_cannot_be_applied_is_no_edit(content: str) -> None:
    assert applied(BASE, content) is None


@given(st.lists(st.sampled_from(["a = 1", "b = 2", "", "    c", "======="]), min_size=1, max_size=8), st.data())
def test_replacing_lines_by_themselves_changes_nothing(lines: list[str], data: st.DataObject) -> None:
    base = "".join(f"{line}\n" for line in lines)
    start = data.draw(st.integers(0, len(lines) - 1))
    piece = "".join(f"{line}\n" for line in lines[start : start + 2])
    if piece.strip() and "=======" not in piece:
        assert applied(base, edit(piece, piece)) == base


def test_an_answer_may_edit_or_write_a_whole_file() -> None:
    nine = edit("    a = 1\n", "    a = 9\n")
    edited = Receipt(f"```python\n{nine}```", stored_reason="stop")
    assert edited.answer(prefilled=False, base=BASE).source == BASE.replace("a = 1", "a = 9")
    assert edited.answer(prefilled=False).source is None
    whole = Receipt("```python\nclass ModelNew: pass\n```", stored_reason="stop")
    assert whole.answer(prefilled=False, base=BASE).source == "class ModelNew: pass\n"
    gone = Receipt(edit("class ModelNew:\n", "class Other:\n"), stored_reason="stop")
    assert gone.answer(prefilled=True, base=BASE).status is Status.NO_MODELNEW
