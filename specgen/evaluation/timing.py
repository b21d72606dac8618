"""The timed runs (§8.1): reference and candidate interleaved, alone on their device, and a check of the word given.

On a CPU a run's time is the CPU time that its process spent in it: the wall time of an undisturbed run, whatever
neighbours do. The judge reads the kernel's clock of the candidate's process from outside: the candidate's own word
can only lengthen a time. On a GPU it is the time between two events (:mod:`specgen.evaluation.stopwatch`), and the
judge's wall clock over a burst of runs says whether those events told the truth. Before every run the inputs are made
new where that is cheap (a secret factor on every real-valued tensor) and every output is compared afterwards: a
remembered result is a wrong one. CPU time outside the candidate's own window shows. Not here: what the numbers mean
(:mod:`specgen.evaluation.integrity`).
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from specgen.evaluation import processes
from specgen.evaluation.peer import Peer
from specgen.evaluation.reference import Reference
from specgen.evaluation.rounds import Receiver, check_unchanged, judge_values
from specgen.evaluation.stopwatch import stopwatch
from specgen.evaluation.tensors import Parcel, build, describe, leaves, settle
from specgen.evaluation.trials import Trial, continuous, fresh_seed
from specgen.evaluation.verdict import Verdict, rejected
from specgen.evaluation.wire import close_all
from specgen.types import Status, Timing

_SLACK_MS = 0.1  # what waking up and answering costs at most beyond the calibrated cost of a message
_BURST = 30  # runs in a row by the judge's wall clock, on a GPU
_BURST_SLACK_MS = 0.02  # what it may differ by from the mean of single runs, and the share of that mean
_BURST_SHARE = 0.25


@dataclass
class Window:
    """What a timed window recorded. Milliseconds unless named otherwise."""

    candidate_ms: list[float] = field(default_factory=list)
    reference_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)  # of the candidate's runs, messages included
    gap_ms: list[float] = field(default_factory=list)  # judge's clock - cost of a message - candidate's own clock
    gap_allowed_ms: float = 0.0  # for the median of those
    outside_cpu_ms: float = 0.0  # candidate's CPU time while it should have been waiting
    outside_wall_ms: float = 0.0
    fetch_cpu_ms: float = 0.0  # candidate's CPU time while it handed outputs over
    fetch_allowed_ms: float = 0.0


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


@dataclass(frozen=True)
class _Moment:
    """The candidate's CPU clock and the wall clock, in seconds."""

    cpu: float
    wall: float

    @classmethod
    def now(cls, cpu: float) -> _Moment:
        """With the CPU clock just read."""
        return cls(cpu, time.perf_counter())


class _Slot:
    """One set of inputs in shared memory, and what it was made from."""

    def __init__(self, number: int, trial: Trial) -> None:
        self.number = number
        self.trial = trial
        self.parcel = Parcel.of(trial.inputs)
        self.shared: list[Any] = self.parcel.value
        self.pairs = [
            (base, now) for base, now in zip(leaves(trial.inputs), leaves(self.shared), strict=True) if continuous(base)
        ]
        self.factors = [1.0] * len(self.pairs)

    def renew(self) -> None:
        """New contents: every real-valued tensor times a secret factor in [0.5, 1)."""
        self.factors = [random.SystemRandom().uniform(0.5, 1.0) for _ in self.pairs]
        for factor, (base, now) in zip(self.factors, self.pairs, strict=True):
            torch.mul(base, factor, out=now)
        settle(self.parcel.place)

    def check(self) -> None:
        """Refuse inputs that the candidate changed."""
        factors = iter(self.factors)
        changed = {id(base): base * next(factors) for base, _ in self.pairs}
        check_unchanged(self.shared, [changed.get(id(base), base) for base in leaves(self.trial.inputs)])


class TimedRuns:
    """Runs one window. Construct outside the lock (inputs are laid out), call :meth:`run` inside it."""

    def __init__(
        self, peer: Peer, reference: Reference, trials: list[Trial], tolerance: float, cost_ms: float, limit_s: float
    ) -> None:
        self.peer = peer
        self.reference = reference
        self.tolerance = tolerance
        self.cost_ms = cost_ms
        self.limit_s = limit_s
        self.slots = [_Slot(number, trial) for number, trial in enumerate(trials, start=1)]
        self.receiver = Receiver(trials[0].expected)
        self.on_gpu = reference.device == "cuda"
        self.watch = stopwatch(reference.device)
        self.window = Window()
        for slot in self.slots:
            peer.ask("inputs", 60.0, [slot.parcel.fd], slot=slot.number, **slot.parcel.fields)
            close_all([slot.parcel.fd])

    def run(self, warmups: int, runs: int) -> Window:
        """Warm up, measure, compare every output. Raises Verdict."""
        self.window.fetch_allowed_ms = runs * (3 * self._copy_ms() + 0.3)
        gc.collect()
        gc.disable()
        try:
            for number in range(warmups + runs):
                self._one(number, record=number >= warmups)
            self._check_word()
        finally:
            gc.enable()
            self.receiver.close()
        for slot in self.slots:
            slot.check()
        return self.window

    def _check_word(self) -> None:
        """What the candidate's clock left out, by the judge's. On a CPU every run has said it already."""
        window = self.window
        own_ms = statistics.median(window.candidate_ms)
        if not self.on_gpu:
            window.gap_allowed_ms = 0.3 + 0.3 * own_ms
            return
        nothing, runs = min(self._wall_ms("null") for _ in range(2)), min(self._wall_ms("burst") for _ in range(2))
        window.gap_ms = [(runs - nothing) / _BURST - own_ms]
        window.gap_allowed_ms = _BURST_SLACK_MS + _BURST_SHARE * own_ms

    def _wall_ms(self, what: str) -> float:
        limit_s = _BURST * self.limit_s
        self.peer.ask(what, limit_s, slot=self.slots[0].number, seed=fresh_seed(), runs=_BURST)
        start = time.perf_counter()
        self.peer.shoot(limit_s)
        return (time.perf_counter() - start) * 1e3

    def _copy_ms(self) -> float:
        value = self.slots[0].trial.expected
        node, _ = describe(value)
        start = time.process_time()
        for to, source in zip(leaves(build(node, self.receiver.memory)), leaves(value), strict=True):
            to.copy_(source)
        settle(self.receiver.place)
        return (time.process_time() - start) * 1e3

    def _one(self, number: int, *, record: bool) -> None:
        slot = self.slots[number % len(self.slots)]
        seed = fresh_seed()
        self.peer.ask("time", self.limit_s, slot=slot.number, seed=seed)
        begin = _Moment.now(self._cpu())
        slot.renew()
        expected: Any = None
        if number % 2:
            expected, reference_ms = self._reference(slot, seed)
        before = _Moment.now(self._cpu())
        own_ms = self._candidate()
        after = _Moment.now(self._cpu())
        if not number % 2:
            expected, reference_ms = self._reference(slot, seed)
        end = _Moment.now(self._cpu())
        outputs = self._fetch(slot, seed)
        fetched = self._cpu()
        if record:
            window = self.window
            by_judge = (after.cpu - before.cpu) * 1e3 - self.cost_ms
            lengthened = own_ms if self.on_gpu else max(own_ms, by_judge - _SLACK_MS - 0.1 * own_ms)
            window.candidate_ms.append(lengthened)
            window.reference_ms.append(reference_ms)
            window.gap_ms.append(by_judge - own_ms)
            window.wall_ms.append((after.wall - before.wall) * 1e3)
            window.outside_cpu_ms += (before.cpu - begin.cpu + end.cpu - after.cpu) * 1e3
            window.outside_wall_ms += (before.wall - begin.wall + end.wall - after.wall) * 1e3
            window.fetch_cpu_ms += (fetched - end.cpu) * 1e3
        self._compare(outputs, expected, slot, number)

    def _reference(self, slot: _Slot, seed: int) -> tuple[Any, float]:
        outputs, spent = self.reference.timed(slot.shared, seed, self.watch)
        return outputs, spent / 1e6

    def _cpu(self) -> float:
        try:
            return processes.cpu_s(self.peer.pid)
        except OSError:
            return 0.0  # gone: the next question says how it died

    def _candidate(self) -> float:
        own = self.peer.shoot(self.limit_s).get("ns")
        if type(own) is not int or own <= 0:
            raise rejected("impossible_time", f"{own!r} ns"[:40], "a run cannot take no time")
        return own / 1e6

    def _fetch(self, slot: _Slot, seed: int) -> Any:
        answer = self.peer.ask(
            "fetch", self.limit_s, [self.receiver.fd], slot=slot.number, seed=seed, **self.receiver.fields
        )
        return self.receiver.take(answer, slot.trial.expected)

    def _compare(self, outputs: Any, expected: Any, slot: _Slot, number: int) -> None:
        trial = Trial(slot.trial.name, slot.shared, expected, 0, scaled=slot.trial.scaled)
        difference = judge_values(outputs, trial, self.tolerance)
        if difference is None:
            return
        if difference.status in (Status.WRONG_SHAPE, Status.WRONG_DTYPE):
            raise Verdict(difference.status, difference.text)
        raise rejected(
            "timed_output", f"run {number}", f"right when tried, wrong when timed on new values:\n{difference.text}"
        )
