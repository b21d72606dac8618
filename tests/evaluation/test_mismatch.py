"""What an LLM reads about outputs that differ: places, errors and patterns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specgen.evaluation.compare import compare
from specgen.types import Status

WANT = torch.rand(64, 48, generator=torch.Generator().manual_seed(1)) - 0.5


def told(change: Callable[[torch.Tensor], torch.Tensor | None], want: torch.Tensor = WANT) -> str:
    got = want.clone()
    changed = change(got)
    found = compare(got if changed is None else changed, want, 1e-4)
    assert found is not None
    return found.text


def filled(shape: torch.Size) -> torch.Tensor:
    return torch.full((*shape, 4), 0xFE, dtype=torch.uint8).view(torch.float32).reshape(shape)


def last_rows(got: torch.Tensor) -> None:
    got[-3:] = 7.0


def unwritten_columns(got: torch.Tensor) -> None:
    got[:, 40:] = filled(got[:, 40:].shape)


def every_32nd(got: torch.Tensor) -> None:
    got.reshape(-1)[31::32] += 0.25


def one(got: torch.Tensor) -> None:
    got[5, 6] = got[5, 6] + 1


def zeroed(got: torch.Tensor) -> None:
    got[10:20, 4:9] = 0


PATTERNS = {
    "a factor": (lambda got: got * 2, ("every element", "constant factor of 2")),
    "a sign": (lambda got: -got, ("sign flipped",)),
    "an offset": (lambda got: got + 0.125, ("plus a constant of 0.125",)),
    "transposed": (lambda got: got.t().reshape(64, 48), ("last two dimensions transposed in memory",)),
    "shifted": (lambda got: got.reshape(-1).roll(1).reshape(64, 48), ("shifted by 1 element",)),
    "last rows": (last_rows, ("the last 3 of 64 indices (61 to 63) of dimension 0 (all elements",
                              "flat index 2928 on is wrong", "hold the same value, 7")),
    "unwritten columns": (unwritten_columns, ("the last 8 of 48 indices (40 to 47) of dimension 1 (all",
                                              "all of the wrong elements were never written")),
    "zeros in a corner": (zeroed, ("indices 10 to 19 of dimension 0 (some", "all wrong elements are 0")),
    "rounding": (lambda got: (got * (1 + 3e-3 * torch.sin(torch.arange(48.0)))), ("rounding or precision",)),
    "every other row": (lambda got: torch.where(torch.arange(64)[:, None] % 2 == 1, 2 * got, got),
                        ("indices that are 1 modulo 2 of dimension 0",)),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_named(name: str) -> None:
    change, said = PATTERNS[name]
    text = told(change)
    for words in said:
        assert words in text, text


def test_errors_are_counted_and_placed() -> None:
    text = told(one)
    assert text.startswith("output: 1 of 3072 elements (0.0326 %) are not within 0.0001")
    assert "first at [5, 6]: expected " in text
    assert "largest absolute error 1 at [5, 6] (expected " in text
    assert "largest relative error " in text
    assert "pattern" not in text


def test_a_stride_in_memory_is_no_pattern_of_rows() -> None:
    text = told(every_32nd)
    assert "96 of 3072" in text
    assert "indices that are 15 modulo 16 of dimension 1" in text
    assert "plus a constant of 0.25" in text


def test_not_finite_elements_are_counted_apart() -> None:
    def change(got: torch.Tensor) -> None:
        got[0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])

    found = compare(*(_changed(change)), 1e-4)
    assert found is not None
    assert found.status is Status.NOT_FINITE
    assert "NaN: 1 elements, infinite: 2" in found.text


def _changed(change: Callable[[torch.Tensor], None]) -> tuple[torch.Tensor, torch.Tensor]:
    got = WANT.clone()
    change(got)
    return got, WANT


@pytest.mark.parametrize("want", [torch.tensor(3.0), torch.arange(5), torch.rand(0), torch.tensor([1.0, float("inf")])])
def test_small_outputs_of_any_kind(want: torch.Tensor) -> None:
    found = compare(want + 1, want, 1e-4)
    assert (found is None) == (want.numel() == 0)


def test_half_precision_outputs() -> None:
    text = told(lambda got: got * 2, WANT.half())
    assert "constant factor of 2" in text
