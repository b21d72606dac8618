"""The timed runs (§8.1): reference and candidate interleaved, alone on their device, and a check of the word given.

On a CPU a run's time is the CPU time that its process spent in it: the wall time of an undisturbed run, whatever
neighbours do. The judge reads the kernel's clock of the candidate's process from outside: the candidate's own word
can only lengthen a time. On a GPU it is the time between two events (:mod:`specgen.evaluation.stopwatch`), and the
judge's wall clock over a burst of runs says whether those events told the truth. Before every run inputs and parameters
get new values (:mod:`specgen.evaluation.renewal`); after it outputs and inputs are compared with the judge's own: a
remembered result is a wrong one. CPU time outside the candidate's own window shows, and so does time in which it
sleeps. Not here: what the numbers mean (:mod:`specgen.evaluation.integrity`).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import randrange
from typing import Any, Protocol

import torch

from specgen.evaluation import processes
from specgen.evaluation.nvml import Readings
from specgen.evaluation.peer import Peer
from specgen.evaluation.perf_events import PerfCounters
from specgen.evaluation.reference import Reference
from specgen.evaluation.renewal import SPIKE_SHARE, Renewed
from specgen.evaluation.rounds import Receiver, check_unchanged, judge_values
from specgen.evaluation.stopwatch import stopwatch
from specgen.evaluation.tensors import Parcel, leaves, mapped, settle
from specgen.evaluation.trials import Trial, fresh_seed
from specgen.evaluation.verdict import Verdict, rejected
from specgen.evaluation.weights import Weights
from specgen.evaluation.wire import Message, close_all
from specgen.types import Status, Timing

_SLACK_MS = 0.1  # what waking up and answering costs at most beyond the calibrated cost of a message
_HANDING = 1.35  # copies' worth of CPU time: copying an output, and giving its memory back
_FETCH_ALLOWED = (4.0, 0.5, 0.4)  # times what it should cost, ms, of the run: on a CPU what is late counts anyway
_BURST = 30  # runs in a row by the judge's wall clock, on a GPU
_BURST_SLACK_MS = 0.02  # what it may differ by from the mean of single runs, and the share of that mean
_BURST_SHARE = 0.25
_SINGLES = 11  # runs of nothing, beside which a GPU's single runs are put
_SINGLE_SLACK_MS = 0.3  # the device changes from one process to the other before a run: that takes 0.05 to 0.4 ms


@dataclass
class Window:
    """What a timed window recorded. Milliseconds unless named otherwise."""

    candidate_ms: list[float] = field(default_factory=list)
    reference_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)  # of the candidate's runs, from the shot to the answer
    gap_ms: list[float] = field(default_factory=list)  # judge's clock - cost of a message - candidate's own clock
    asleep_ms: list[float] = field(default_factory=list)  # of the candidate's runs: neither running nor ready to run
    sleeps: list[int] = field(default_factory=list)  # of those: how often it went to sleep; once, after its answer
    gap_allowed_ms: float = 0.0  # for the median of those
    single_gap_ms: float = 0.0  # on a GPU: of single runs by the judge's wall clock
    single_allowed_ms: float = 0.0
    outside_ms: list[float] = field(default_factory=list)  # candidate's CPU time while it should have been waiting
    outside_wall_ms: float = 0.0
    fetch_ms: list[float] = field(default_factory=list)  # while outputs are handed over: CPU time, on a GPU wall time
    counted: dict[str, float | None] = field(default_factory=dict)  # what the device's meter says of those runs
    copy_ms: list[float] = field(default_factory=list)  # beside each of those: the judge's copy of an output
    fetch_allowed_ms: float = 0.0  # for the median of those

    @property
    def gaps(self) -> str:
        """What the candidate's clock left out by the judge's, and what it may."""
        return (
            f"{statistics.median(self.gap_ms):.3f} of {self.gap_allowed_ms:.3f}, single runs"
            f" {self.single_gap_ms:.3f} of {self.single_allowed_ms:.3f}"
        )


def summary(times_ms: list[float]) -> Timing:
    """Mean, standard deviation, minimum and median."""
    return Timing(
        mean_ms=statistics.fmean(times_ms),
        std_ms=statistics.stdev(times_ms) if len(times_ms) > 1 else 0.0,
        min_ms=min(times_ms),
        median_ms=statistics.median(times_ms),
        runs=len(times_ms),
    )


def message_cost_ms(peer: Peer, rounds: int = 24) -> float:
    """The median CPU time that question and answer cost the harness, its caches cold as they are after a reference run.

    Ask before the candidate's file is loaded: later it could make messages look expensive.
    """
    spent = []
    eviction = torch.ones(1 << 21)
    for _ in range(rounds):
        peer.ask("null", 30.0, seed=fresh_seed(), runs=0)
        eviction.add_(1)
        start = processes.cpu_s(peer.pid)
        peer.shoot(30.0)
        spent.append((processes.cpu_s(peer.pid) - start) * 1e3)
    return statistics.median(spent[rounds // 3 :])


def fetch_cost_ms(peer: Peer, *, wall: bool = False, rounds: int = 12) -> float:
    """The median CPU (or wall) time of handing over a small output, cold. Before the file is loaded."""
    spent = []
    eviction = torch.ones(1 << 21)
    small = torch.zeros(64)
    given, receiver = Parcel.of([small]), Receiver(small)
    peer.ask("inputs", 30.0, [given.fd], slot=0, **given.fields)
    for _ in range(rounds):
        peer.ask("rehearse", 30.0)
        eviction.add_(1)
        start = time.perf_counter() if wall else processes.cpu_s(peer.pid)
        peer.ask("fetch", 30.0, receiver.descriptor(), slot=0, **receiver.fields)
        spent.append(((time.perf_counter() if wall else processes.cpu_s(peer.pid)) - start) * 1e3)
    receiver.close()
    close_all([given.fd])
    return statistics.median(spent[rounds // 3 :])


@dataclass(frozen=True)
class _Moment:
    """The candidate's CPU clock, the wall clock, and how long the candidate waited for a CPU, in seconds."""

    cpu: float
    wall: float
    waited: float

    @classmethod
    def now(cls, cpu: float, pid: int) -> _Moment:
        """With the CPU clock just read."""
        return cls(cpu, time.perf_counter(), processes.waited_s(pid))

    def asleep_ms(self, end: _Moment) -> float:
        """Wall time until ``end`` in which the candidate neither ran nor waited for a CPU."""
        return ((end.wall - self.wall) - (end.cpu - self.cpu) - (end.waited - self.waited)) * 1e3


class Meter(Protocol):
    """Counts or reads something while the candidate runs."""

    def counting(self) -> AbstractContextManager[None]:
        """Around one run."""

    def per_run(self, runs: int) -> dict[str, float | None]:
        """What came of it, by name."""

    def close(self) -> None:
        """Give back what it holds."""


class _Slot:
    """One set of inputs: as the judge has them, and in the memory that the candidate sees."""

    def __init__(self, number: int, trial: Trial, redraw: Callable[[], Any]) -> None:
        self.number = number
        self.trial = trial
        self.parcel = Parcel.of(trial.inputs)
        self.inputs = Renewed(trial.inputs, redraw=redraw)
        self.spiked = False

    def renew(self, spikes: float, most: float) -> None:
        """New contents on both sides."""
        self.spiked = spikes > 0
        self.inputs.renew(spikes, most)
        with torch.no_grad():
            for to, source in zip(leaves(self.parcel.value), leaves(self.inputs.private), strict=True):
                to.copy_(source)
        settle(self.parcel.place)

    def check(self) -> None:
        """Refuse inputs that the candidate changed."""
        check_unchanged(self.parcel.value, self.inputs.private)


class TimedRuns:
    """Runs one window. Construct outside the lock (inputs are laid out), call :meth:`run` inside it."""

    def __init__(
        self,
        peer: Peer,
        reference: Reference,
        trials: list[Trial],
        tolerance: float,
        cost_ms: float,
        limit_s: float,
        *,
        weights: Weights | None = None,
        spikes: float = 0.0,
        most: float = float("inf"),
        fetch_ms: float = 0.3,
        beside: Callable[[], None] = lambda: None,
        metered: bool = False,
    ) -> None:
        """``fetch_ms``: of handing over a small output; ``spikes``: the strength that the reference stands;
        ``most``: no spike is larger;
        ``beside``: asked after every run, may refuse; ``metered``: with hardware counters (a CPU) or clocks (a GPU)."""
        self.weights = weights
        self.spikes = spikes
        self.most = most
        self.fetch_ms = fetch_ms
        self.beside = beside
        self.metered = metered
        self.peer = peer
        self.reference = reference
        self.tolerance = tolerance
        self.cost_ms = cost_ms
        self.limit_s = limit_s
        self.slots = [_Slot(number, trial, self._redraw) for number, trial in enumerate(trials, start=1)]
        self.receiver = Receiver(trials[0].expected)
        self.scratch = mapped(trials[0].expected, torch.empty_like)
        self.on_gpu = reference.device == "cuda"
        self.watch = stopwatch(reference.device)
        self.window = Window()
        for slot in self.slots:
            peer.ask("inputs", 60.0, [slot.parcel.fd], slot=slot.number, **slot.parcel.fields)
            close_all([slot.parcel.fd])

    def run(self, warmups: int, runs: int) -> Window:
        """Warm up, measure, compare every output. Raises Verdict."""
        self._copy_ms()
        self.meter = self._meter() if self.metered else None
        gc.collect()
        gc.disable()
        try:
            for number in range(warmups + runs):
                self._one(number, record=number >= warmups)
            self._check_word()
            self._check_handing()
            if self.meter is not None:
                self.window.counted = self.meter.per_run(runs)
        finally:
            gc.enable()
            if self.meter is not None:
                self.meter.close()
            self.receiver.close()
        return self.window

    def _meter(self) -> Meter:
        if self.on_gpu:
            return Readings(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        return PerfCounters(self.peer.pid)

    def _redraw(self) -> Any:
        return self.reference.inputs(fresh_seed())

    def _check_word(self) -> None:
        """What the candidate's clock left out, by the judge's. On a CPU every run has said it already."""
        window = self.window
        own_ms = statistics.median(window.candidate_ms)
        if not self.on_gpu:
            # What is recorded counts by the judge's clock anyway; on a busy host messages cost several times as much.
            window.gap_allowed_ms = 0.6 + 4 * self.cost_ms + 0.4 * own_ms
            return
        nothing, runs = min(self._wall_ms("null") for _ in range(2)), min(self._wall_ms("burst") for _ in range(2))
        window.gap_ms = [(runs - nothing) / _BURST - own_ms]
        window.gap_allowed_ms = _BURST_SLACK_MS + _BURST_SHARE * own_ms
        # Inputs stay the same within a burst: single runs, each on new values, are the coarser and stricter witness.
        single = statistics.median(self._nothing_ms(number) for number in range(_SINGLES))
        window.single_gap_ms = statistics.median(window.wall_ms) - single - own_ms
        window.single_allowed_ms = _SINGLE_SLACK_MS + _BURST_SHARE * own_ms

    def _wall_ms(self, what: str) -> float:
        limit_s = _BURST * self.limit_s
        self.peer.ask(what, limit_s, slot=self.slots[0].number, seed=fresh_seed(), runs=_BURST)
        return self._shoot(limit_s)[1]

    def _nothing_ms(self, number: int) -> float:
        """A single run of nothing, after what the judge does on the device before every run."""
        slot, seed = self.slots[number % len(self.slots)], fresh_seed()
        self.peer.ask("null", self.limit_s, slot=slot.number, seed=seed, runs=0)
        self._renew(slot, 0.0)
        if number % 2:
            self._reference(slot, seed)
        return self._shoot(self.limit_s)[1]

    def _shoot(self, limit_s: float) -> tuple[Message, float]:
        """An armed run: its answer, and milliseconds by the judge's wall clock."""
        start = time.perf_counter()
        answer = self.peer.shoot(limit_s)
        return answer, (time.perf_counter() - start) * 1e3

    def _renew(self, slot: _Slot, spikes: float) -> None:
        slot.renew(spikes, self.most)
        if self.weights is not None:
            self.weights.renew()

    def _check_handing(self) -> None:
        window = self.window
        times, more, share = _FETCH_ALLOWED
        should = self.fetch_ms + statistics.median(window.copy_ms)
        window.fetch_allowed_ms = times * should + more + share * statistics.median(window.candidate_ms)

    def _copy_ms(self) -> float:
        """What copying an output costs here and now, by the clock that handing over is measured with."""
        clock = time.perf_counter if self.on_gpu else time.process_time
        value = self.slots[0].trial.expected
        start = clock()
        for to, source in zip(leaves(self.scratch), leaves(value), strict=True):
            to.copy_(source)
        settle(self.receiver.place)
        return (clock() - start) * 1e3

    def _one(self, number: int, *, record: bool) -> None:
        slot = self.slots[number % len(self.slots)]
        seed = fresh_seed()
        self.peer.ask("time", self.limit_s, slot=slot.number, seed=seed)
        begin = _Moment.now(self._cpu(), self.peer.pid)
        self._renew(slot, self.spikes if randrange(SPIKE_SHARE) == 0 else 0.0)
        expected: Any = None
        if number % 2:
            expected, reference_ms = self._reference(slot, seed)
        sleeps = processes.sleeps(self.peer.pid)
        before = _Moment.now(self._cpu(), self.peer.pid)
        with self.meter.counting() if record and self.meter is not None else nullcontext():
            own_ms, wall_ms = self._candidate()
        after = _Moment.now(self._cpu(), self.peer.pid)
        if not number % 2:
            expected, reference_ms = self._reference(slot, seed)
        sleeps = processes.sleeps(self.peer.pid) - sleeps
        end = _Moment.now(self._cpu(), self.peer.pid)
        asked = time.perf_counter()
        outputs = self._fetch(slot, seed)
        handing_ms = (time.perf_counter() - asked if self.on_gpu else self._cpu() - end.cpu) * 1e3
        if record:
            window = self.window
            copy_ms = self._copy_ms()
            by_judge = (after.cpu - before.cpu) * 1e3 - self.cost_ms
            slack = _SLACK_MS + 0.1 * own_ms
            late_ms = handing_ms - self.fetch_ms - _HANDING * copy_ms  # work done when outputs are asked for
            lengthened = own_ms if self.on_gpu else max(own_ms, by_judge - slack, own_ms + late_ms - slack)
            window.candidate_ms.append(lengthened)
            window.reference_ms.append(reference_ms)
            window.gap_ms.append(by_judge - own_ms)
            window.wall_ms.append(wall_ms)
            window.asleep_ms.append(before.asleep_ms(after))
            window.sleeps.append(sleeps)
            window.outside_ms.append((before.cpu - begin.cpu + end.cpu - after.cpu) * 1e3)
            window.outside_wall_ms += (before.wall - begin.wall + end.wall - after.wall) * 1e3
            window.fetch_ms.append(handing_ms)
            window.copy_ms.append(copy_ms)
        slot.check()
        self.beside()
        self._compare(outputs, expected, slot, seed, number)

    def _reference(self, slot: _Slot, seed: int) -> tuple[Any, float]:
        outputs, spent = self.reference.timed(slot.inputs.private, seed, self.watch)
        return outputs, spent / 1e6

    def _cpu(self) -> float:
        try:
            return processes.cpu_s(self.peer.pid)
        except OSError:
            return 0.0  # gone: the next question says how it died

    def _candidate(self) -> tuple[float, float]:
        """Milliseconds of a run, by its own clock and by the judge's."""
        answer, wall_ms = self._shoot(self.limit_s)
        own = answer.get("ns")
        if type(own) is not int or own <= 0:
            raise rejected("impossible_time", f"{own!r} ns"[:40], "a run cannot take no time")
        return own / 1e6, wall_ms

    def _fetch(self, slot: _Slot, seed: int) -> Any:
        answer = self.peer.ask(
            "fetch", self.limit_s, self.receiver.descriptor(), slot=slot.number, seed=seed, **self.receiver.fields
        )
        return self.receiver.take(answer, slot.trial.expected)

    def _compare(self, outputs: Any, expected: Any, slot: _Slot, seed: int, number: int) -> None:
        scaled = slot.trial.scaled or slot.spiked
        trial = Trial(slot.trial.name, slot.inputs.private, expected, seed, scaled=scaled)
        difference = judge_values(outputs, trial, self.tolerance)
        if difference is None:
            return
        trial.exact = self.reference.double(trial.inputs, seed)  # fp32 itself may be imprecise on these values
        if judge_values(outputs, trial, self.tolerance) is None:
            return
        if difference.status in (Status.WRONG_SHAPE, Status.WRONG_DTYPE):
            raise Verdict(difference.status, difference.text)
        raise rejected(
            "timed_output", f"run {number}", f"right when tried, wrong when timed on new values:\n{difference.text}"
        )
