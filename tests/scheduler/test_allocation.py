"""The split is the paper's formula, and as few workers as possible move."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.scheduler.allocation import Split, allocate, assign, capacity, fork_count

lengths = st.integers(0, 10_000)
roles = st.sampled_from(["validate", "profile", "both", None])


@given(lengths, lengths, st.integers(2, 64))
def test_split_is_the_papers_formula(l_val, l_prof, devices):
    split = allocate(l_val, l_prof, devices)

    if l_val + l_prof == 0:
        expected = devices // 2
    else:
        from fractions import Fraction

        expected = min(devices - 1, max(1, math.ceil(Fraction(devices * l_prof, l_val + l_prof))))
    assert (split.profilers, split.validators, split.shared) == (expected, devices - expected, 0)
    assert split.validators >= 1
    assert split.profilers >= 1


@given(lengths, lengths)
def test_one_device_serves_both(l_val, l_prof):
    assert allocate(l_val, l_prof, 1) == Split(0, 0, 1)


@given(lengths, lengths, st.integers(0, 64))
def test_flexible_devices_all_serve_both(l_val, l_prof, devices):
    assert allocate(l_val, l_prof, devices, flexible=True) == Split(0, 0, devices)


def test_more_profiling_gives_more_profilers():
    counts = [allocate(10, l_prof, 10).profilers for l_prof in range(100)]
    assert counts == sorted(counts)


def test_negative_lengths_are_refused():
    with pytest.raises(ValueError, match="not negative"):
        allocate(-1, 0, 4)


@given(st.lists(roles, min_size=1, max_size=24), lengths, lengths, st.booleans(), st.data())
def test_assignment_holds_the_split_and_moves_the_fewest(have, l_val, l_prof, flexible, data):
    current = {f"w{i:02}": role for i, role in enumerate(have)}
    busy = data.draw(st.sets(st.sampled_from(sorted(current))))
    split = allocate(l_val, l_prof, len(current), flexible=flexible)

    roles_now = assign(split, current, busy)

    wanted = {"validate": split.validators, "profile": split.profilers, "both": split.shared}
    assert {role: list(roles_now.values()).count(role) for role in wanted} == wanted
    kept = sum(roles_now[worker] == role for worker, role in current.items())
    assert kept == sum(min(have.count(role), count) for role, count in wanted.items())


def test_idle_workers_move_before_busy_ones():
    current = {"a": "validate", "b": "validate", "c": "validate", "d": "profile"}
    assert assign(Split(2, 2), current, busy={"a", "c"})["b"] == "profile"


def test_a_split_of_another_size_is_refused():
    with pytest.raises(ValueError, match="3 devices for 1"):
        assign(Split(2, 1), {"a": None})


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_k(c_val, c_prof, max_k):
    assert fork_count(c_val, c_prof, max_k=max_k, at_least_one=True) == min(max_k, max(1, min(c_val, c_prof)))
    assert fork_count(c_val, c_prof, max_k=max_k, at_least_one=False) == min(max_k, c_val, c_prof)
    assert capacity(c_val, c_prof, 0) == max(0, c_val - c_prof)
