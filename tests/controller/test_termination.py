"""The four criteria of Table 9, and the user's own."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.controller.termination import resolve
from specgen.errors import SettingsError

positive = st.floats(min_value=1e-6, max_value=1e6)
histories = st.lists(positive, max_size=30).map(lambda xs: (0.0, *xs))


def slower_than_two(speedup: float, history: tuple[float, ...]) -> bool:
    return speedup < 2 and len(history) > 1


@given(positive, histories)
def test_they_are_ordered_from_eager_to_patient(speedup: float, history: tuple[float, ...]) -> None:
    first, mean, best, never = (
        resolve(n)(speedup, history) for n in ("first_valid", "historical_mean", "historical_best", "never")
    )
    assert first
    assert not never
    assert not best or mean or max(history) - min(history) < 1e-9 * max(history)


@given(positive, histories)
def test_the_mean_is_exclusive(speedup: float, history: tuple[float, ...]) -> None:
    assert resolve("historical_mean")(speedup, history) == (speedup > fmean(history))


def test_the_users_own() -> None:
    criterion = resolve("tests.controller.test_termination:slower_than_two")
    assert criterion(1.5, (0.0, 1.0))
    assert not criterion(2.5, (0.0, 1.0))


@pytest.mark.parametrize("name", ["best", "nowhere:f", "math:nothing", "math:pi"])
def test_a_wrong_name_is_told_with_a_hint(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(name)
    assert caught.value.hint
