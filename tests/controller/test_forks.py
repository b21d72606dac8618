"""The brake on forking (ForkGate): pure, so every case is a line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgen.controller.forks import ForkGate
from specgen.settings import ForkPolicy
from specgen.types import TriggerClass

FENCE, IDLE = TriggerClass.FENCE, TriggerClass.IDLE


def test_the_first_trigger_may_launch_and_the_next_waits_for_its_spacing() -> None:
    gate = ForkGate(ForkPolicy(spacing_chars=100, outstanding=10, max_k=2))
    assert gate.room(FENCE, 5) == 2
    gate.launched(2, 5)
    assert gate.room(FENCE, 104) == 0
    assert gate.room(FENCE, 105) == 2


def test_outstanding_forks_leave_room_only_as_they_are_answered() -> None:
    gate = ForkGate(ForkPolicy(spacing_chars=0, outstanding=3, max_k=2))
    gate.launched(2, 1)
    assert gate.room(FENCE, 2) == 1
    gate.launched(1, 2)
    assert gate.room(FENCE, 3) == 0
    gate.answered()
    assert gate.room(FENCE, 3) == 1


def test_an_idle_fork_needs_a_longer_prefix_than_the_last() -> None:
    gate = ForkGate(ForkPolicy(outstanding=10))
    gate.launched(1, 50)
    assert gate.room(IDLE, 50) == 0
    assert gate.room(IDLE, 51) > 0


def test_a_class_that_is_switched_off_launches_nothing() -> None:
    assert ForkGate(ForkPolicy(classes=("phrase",))).room(FENCE, 10) == 0


def test_idle_fires_once_a_period_and_only_while_free() -> None:
    gate = ForkGate(ForkPolicy(idle_after_s=2.0))
    assert not gate.idle(1, 0.0)
    assert not gate.idle(1, 1.9)
    assert gate.idle(1, 2.0)
    assert not gate.idle(1, 3.0)
    assert not gate.idle(0, 3.5)
    assert not gate.idle(1, 5.0)
    assert gate.idle(1, 7.0)


def test_the_papers_policy_has_no_brake() -> None:
    gate = ForkGate(ForkPolicy.paper())
    gate.launched(50, 10)
    assert gate.room(FENCE, 10) > 1000


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_outstanding_never_exceeds_its_limit(steps: list[tuple[int, bool]], limit: int, max_k: int) -> None:
    gate = ForkGate(ForkPolicy(spacing_chars=50, outstanding=limit, max_k=max_k))
    position = 0
    for advance, answered in steps:
        position += advance
        gate.launched(gate.room(FENCE, position), position)
        if answered and gate.outstanding:
            gate.answered()
        assert 0 <= gate.outstanding <= limit
