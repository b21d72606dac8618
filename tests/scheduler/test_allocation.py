"""The split is the paper's formula, and as few workers as possible move."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.scheduler.allocation import (
    TURN_BACK,
    Load,
    Split,
    Worker,
    allocate,
    assign,
    capacity,
    dead_band,
    demand,
    distance,
    fork_count,
    plan,
    settle,
)

lengths = st.integers(0, 10_000)
roles = st.sampled_from(["validate", "profile", "both", None])


@given(lengths, lengths, st.integers(2, 64))
def test_split_is_the_papers_formula(l_val, l_prof, devices):
    split = allocate(l_val, l_prof, devices)

    if l_val + l_prof == 0:
        expected = devices // 2
    else:
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


# ------------------------------------------------------------------------------------------- dead band

pairs = st.tuples(lengths, lengths)
two_roles = st.lists(st.sampled_from(["validate", "profile"]), min_size=2, max_size=64)


@given(pairs, st.integers(2, 64), st.integers(1, 63))
def test_distance_is_nought_where_the_formula_gives_that_many(load, devices, profilers):
    profilers = min(profilers, devices - 1)
    target = allocate(*load, devices).profilers
    assert distance(*load, devices, target) == 0
    if profilers != target:
        assert abs(target - profilers) - 1 <= distance(*load, devices, profilers)


@given(pairs, two_roles, st.fractions(0, 8))
def test_the_split_is_the_target_or_stays_where_the_target_is_near(load, current, band):
    devices, profilers = len(current), current.count("profile")
    target = allocate(*load, devices)

    split = settle(*load, current, band)

    stays = Split(devices - profilers, profilers)
    allowed = band > 0 and 1 <= profilers < devices and distance(*load, devices, profilers) <= band
    assert split == (stays if allowed else target)
    if abs(target.profilers - profilers) > band + 1:
        assert split == target, "whatever exceeds the band is followed"
    assert split.validators >= 1, "no queue is left without a device"
    assert split.profilers >= 1


@given(pairs, st.lists(roles, min_size=2, max_size=40), st.fractions(0, 4))
def test_newcomers_fill_the_gap_before_anyone_moves(load, current, band):
    target = allocate(*load, len(current))
    split = settle(*load, current, band)

    moved = assign(split, {f"w{i:02}": role for i, role in enumerate(current)})
    kept = sum(moved[f"w{i:02}"] == role for i, role in enumerate(current))
    have = sum(role in ("validate", "profile") for role in current)
    fewest = max(0, current.count("profile") - target.profilers, current.count("validate") - target.validators)
    assert have - kept <= fewest
    if have - kept < fewest:
        assert distance(*load, len(current), split.profilers) <= band


def test_one_job_on_up_to_ten_devices_has_the_papers_split_exactly():
    assert [dead_band(devices, 1) for devices in (2, 4, 10)] == [0, 0, 0]
    assert [float(dead_band(devices, 1)) for devices in (18, 32)] == [2.25, 4]
    assert [float(dead_band(devices, 40)) for devices in (2, 10, 32, 1000)] == [0.5, 1.25, 4, 125]


# ------------------------------------------------------------------------------------ groups of devices


def pool(**sizes: tuple[int, tuple[str, ...]]) -> list[Worker]:
    return [Worker(f"{name}{i:02}", labels) for name, (n, labels) in sizes.items() for i in range(n)]


def apply(workers: list[Worker], plans) -> list[Worker]:
    moves = {name: role for group in plans for name, role in group.moves.items()}
    return [Worker(one.name, one.labels, moves.get(one.name, one.role), one.busy) for one in workers]


def profilers(workers: list[Worker]) -> int:
    return sum(worker.role == "profile" for worker in workers)


@given(st.integers(2, 10), lengths, lengths)
def test_one_group_is_algorithm_2(devices, l_val, l_prof):
    load = Load({"cuda": (l_val, l_prof), "cpu": (7, 7)}, jobs=1)
    (group,) = plan(pool(gpu=(devices, ("cuda", "h200"))), load, turns={})
    assert group.split == allocate(l_val, l_prof, devices)


def test_each_group_follows_the_labels_that_it_serves():
    workers = pool(a=(6, ("cuda", "h200")), b=(2, ("a100", "cuda")), c=(4, ("cpu",)))
    load = Load({"cuda": (8, 8), "h200": (0, 12), "cpu": (9, 3)}, jobs=1)

    plans = plan(workers, load, turns={})

    assert {group.labels: (group.split.validators, group.split.profilers) for group in plans} == {
        ("cuda", "h200"): (1, 5),  # 6 and 18: of cuda three quarters, for it has six of eight devices
        ("a100", "cuda"): (1, 1),
        ("cpu",): (3, 1),
    }


def test_a_label_is_shared_out_in_proportion_and_nothing_is_lost():
    sizes = {("a", "x"): 3, ("b", "x"): 1, ("c",): 5}
    shared = demand({"x": (8, 4), "b": (1, 0), "nobody": (9, 9)}, sizes)
    assert shared == {("a", "x"): (6, 3), ("b", "x"): (3, 1), ("c",): (0, 0)}


def test_a_group_of_one_serves_both_and_so_does_every_flexible_device():
    workers = pool(a=(1, ("h200",)), c=(4, ("cpu",)))
    assert [group.split for group in plan(workers, Load(), turns={})] == [Split(2, 2), Split(0, 0, 1)]
    assert [group.split.shared for group in plan(workers, Load(), turns={}, flexible=True)] == [4, 1]


def test_an_empty_window_of_one_of_many_jobs_says_nothing():
    workers = pool(c=(4, ("cpu",)))
    workers = apply(workers, plan(workers, Load({"cpu": (0, 9)}, jobs=2), turns={}))
    assert profilers(workers) == 3
    assert plan(workers, Load({"cpu": (0, 0)}, jobs=2), turns={})[0].moves == {}
    assert len(plan(workers, Load({"cpu": (0, 0)}, jobs=1), turns={})[0].moves) == 1, "one job: even, as in the paper"


@given(st.lists(pairs, max_size=20), st.integers(2, 40), st.integers(1, 3))
def test_a_decision_repeated_moves_nobody(loads, devices, jobs):
    """After any history the same load again, or devices looked at without a boundary, changes nothing."""
    workers, turns = pool(c=(devices, ("cpu",))), {}
    for l_val, l_prof in [*loads, (1, 1)]:
        load = Load({"cpu": (l_val, l_prof)}, jobs)
        plans = plan(workers, load, turns=turns)
        workers = apply(workers, plans)
        turns = {group.labels: group.turn for group in plans}
        assert plan(workers, load)[0].moves == {}


def test_moving_back_at_the_next_boundary_takes_more_than_the_dead_band():
    devices, labels = 32, ("cpu",)
    workers = [Worker(f"w{i:02}", labels, "profile" if i < 16 else "validate") for i in range(devices)]
    band = dead_band(devices, 5)

    def load(ideal: Fraction) -> Load:
        return Load({"cpu": (int(1000 * (devices - ideal)), int(1000 * ideal))}, jobs=5)

    between = load(15 - band * (1 + TURN_BACK) / 2)
    assert len(plan(workers, between, turns={labels: 0})[0].moves) == 6
    assert len(plan(workers, between, turns={labels: -4})[0].moves) == 6
    assert plan(workers, between, turns={labels: 4})[0].moves == {}
    assert len(plan(workers, load(15 - band * TURN_BACK - 1), turns={labels: 4})[0].moves) == 8


# ------------------------------------------------------------------------------------------------- L2


@pytest.mark.parametrize("devices", [4, 10, 32])
@pytest.mark.parametrize("jobs", [1, 40])
def test_l2_a_step_is_followed_at_the_first_boundary_and_noise_moves_nobody(devices, jobs):
    """All validation, then all profiling, then mostly validation, and back; each with noise on the maxima."""
    random_source, labels = random.Random(7), ("cpu",)
    workers, turns = pool(c=(devices, labels)), {}
    length = 1000 * devices
    noise = 0.1 / devices  # of the length; a tenth of a device up or down

    for step, (val, prof) in enumerate([(1.0, 0.0), (0.0, 1.0), (0.78, 0.22), (0.0, 1.0), (1.0, 0.0)]):
        target = allocate(round(val * length), round(prof * length), devices)
        moved = []
        for _ in range(50):
            maxima = [
                math.floor(length * max(0.0, part + random_source.uniform(-noise, noise))) for part in (val, prof)
            ]
            plans = plan(workers, Load({"cpu": (maxima[0], maxima[1])}, jobs), turns=turns)
            workers, turns = apply(workers, plans), {group.labels: group.turn for group in plans}
            moved.append(len(plans[0].moves))
            assert abs(profilers(workers) - target.profilers) <= dead_band(devices, jobs) + 1
        assert moved[0] > 0, f"step {step} is followed at once"
        assert sum(moved[1:]) == 0, f"no change of roles without a change of load, step {step}"


def test_l2_noise_would_move_workers_without_a_dead_band():
    """The same noise on the bare formula: what the band is for."""
    random_source, moved, last = random.Random(7), 0, 16
    for _ in range(50):
        l_prof = round(200 + random_source.uniform(-15, 15))
        now = allocate(200, l_prof, 32).profilers
        moved, last = moved + abs(now - last), now
    assert moved > 10
