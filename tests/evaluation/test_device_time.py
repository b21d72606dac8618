"""Whose code a GPU's time goes to, and what its clocks disagree on. The device itself is played by a counter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from specgen.evaluation import integrity
from specgen.evaluation.audit import DeviceClock, OperatorLog
from specgen.evaluation.timing import Window
from specgen.evaluation.verdict import Verdict
from specgen.evaluation.work import Work

T4 = Work(flops=1.4e11, operators={}, kinds={"diag_embed": 4096.0 * 4096, "product": 1.4e11}, input_bytes=1 << 26,
          output_bytes=1 << 26)  # fmt: skip
H200_GB_S = 4243.0


@dataclass
class Playing:
    """A device whose time is advanced by hand, in ms."""

    now: float = 0.0
    pauses: int = 0

    def event(self) -> Event:
        return Event(self)

    def pause(self) -> None:
        self.pauses += 1
        self.now += 1.0


@dataclass
class Event:
    device: Playing
    at: float = field(default=-1.0)

    def record(self) -> None:
        self.at = self.device.now

    def synchronize(self) -> None:
        assert self.at >= 0

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Playing:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Playing()


def test_own_kernels_and_operators_are_told_apart(device: Playing) -> None:
    clock = DeviceClock(device.event, device.pause)
    clock.begin(own=True)
    device.now += 2
    clock.begin(own=False)  # an operator that the own function calls
    device.now += 5
    clock.end()
    device.now += 1
    clock.end()
    clock.begin(own=False)
    device.now += 4
    clock.end()
    assert clock.report() == pytest.approx({"own": 3.0, "operators": 9.0})
    assert device.pauses == 2  # none inside a call


def test_many_calls_are_not_all_timed(device: Playing) -> None:
    clock = DeviceClock(device.event, device.pause)
    for _ in range(1000):
        clock.begin(own=False)
        device.now += 1
        clock.end()
    assert clock.report()["operators"] == pytest.approx(200)


def test_operators_are_timed_where_they_are_dispatched(device: Playing) -> None:
    clock = DeviceClock(device.event, device.pause)
    with OperatorLog(clock=clock):
        torch.ones(4, 4).view(16) @ torch.ones(16)
    assert device.pauses == 3  # two fills and a product; a view does nothing
    assert clock.report()["own"] == 0


def test_a_library_that_does_it_all_is_refused() -> None:
    with pytest.raises(Verdict) as refused:
        integrity.check_device_time({"own": 0.003, "operators": 0.05}, 0.057, T4, H200_GB_S)
    assert refused.value.rule.startswith("library_only: 0.0030 ms in own kernels")


@pytest.mark.parametrize(
    "spent",
    [
        {"own": 0.02, "operators": 2.6},  # an own epilogue beside the library's product
        {"own": 0.001, "operators": 0.01},  # own kernels on streams that are not timed
        {},
    ],
)
def test_own_kernels_beside_a_library_are_fine(spent: dict[str, float]) -> None:
    integrity.check_device_time(spent, 2.7, T4, H200_GB_S)


def test_a_last_step_of_a_thousand_elements_may_be_all_that_is_own() -> None:
    small = replace(T4, kinds={"product": 1.4e11, "mul": 1024.0})
    integrity.check_device_time({"own": 0.002, "operators": 2.6}, 2.7, small, H200_GB_S)


def window(gap_ms: float) -> Window:
    return Window(
        candidate_ms=[8.3] * 9, fetch_ms=[0.1] * 9, gap_ms=[gap_ms], gap_allowed_ms=2.1,
        single_allowed_ms=2.4, fetch_allowed_ms=1.0,
    )  # fmt: skip


def test_faster_on_inputs_that_were_seen_is_remembered() -> None:
    with pytest.raises(Verdict) as refused:
        integrity.check_forgotten(window(-7.9))
    assert refused.value.rule == "remembered: 7.900 ms faster on inputs it has seen, allowed 2.100"
    integrity.check_forgotten(window(-2.0))
    with pytest.raises(Verdict, match="clock_disagrees"):
        integrity.check_window(window(2.2))
