"""The timed runs (§8.1): reference and candidate interleaved, alone on the host, by the judge's clocks.

A run's time is the CPU time that its process spent in it. A CPU device is one pinned core and one process, so this
is the wall time of an undisturbed run, and a neighbour on a busy machine neither speeds up nor slows down a kernel.
The judge reads the kernel's clock of the candidate's process from outside: the candidate's own word can only
lengthen a time. Before every run the inputs are made new where that is cheap (a secret factor on every real-valued
tensor) and every output is compared afterwards: a remembered result is a wrong one. CPU time outside the candidate's
own window shows. Not here: what the numbers mean (:mod:`specgen.evaluation.integrity`).
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
from specgen.evaluation.tensors import Parcel, leaves
from specgen.evaluation.trials import Trial, continuous, fresh_seed
from specgen.evaluation.verdict import Verdict, rejected
from specgen.evaluation.wire import close_all
from specgen.types import Status, Timing

_SLACK_MS = 0.1  # what waking up and answering costs at most beyond the calibrated cost of a message


@dataclass
class Window:
    """What a timed window recorded. Milliseconds unless named otherwise."""

    candidate_ms: list[float] = field(default_factory=list)
    reference_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)  # of the candidate's runs, messages included
    gap_ms: list[float] = field(default_factory=list)  # judge's clock - cost of a message - candidate's own clock
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
        peer.ask("null", 30.0, seed=fresh_seed())
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
        self.window = Window()
        for slot in self.slots:
            peer.ask("inputs", 60.0, [slot.parcel.fd], slot=slot.number, node=slot.parcel.node, size=slot.parcel.size)
            close_all([slot.parcel.fd])

    def run(self, warmups: int, runs: int) -> Window:
        """Warm up, measure, compare every output. Raises Verdict."""
        self.window.fetch_allowed_ms = runs * (3 * self._copy_ms() + 0.3)
        gc.collect()
        gc.disable()
        try:
            for number in range(warmups + runs):
                self._one(number, record=number >= warmups)
        finally:
            gc.enable()
            self.receiver.close()
        for slot in self.slots:
            slot.check()
        return self.window

    def _copy_ms(self) -> float:
        from specgen.evaluation.tensors import build, describe, map_file

        value = self.slots[0].trial.expected
        node, size = describe(value)
        start = time.process_time()
        for to, source in zip(leaves(build(node, map_file(self.receiver.fd, size))), leaves(value), strict=True):
            to.copy_(source)
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
            window.candidate_ms.append(max(own_ms, by_judge - _SLACK_MS - 0.1 * own_ms))
            window.reference_ms.append(reference_ms)
            window.gap_ms.append(by_judge - own_ms)
            window.wall_ms.append((after.wall - before.wall) * 1e3)
            window.outside_cpu_ms += (before.cpu - begin.cpu + end.cpu - after.cpu) * 1e3
            window.outside_wall_ms += (before.wall - begin.wall + end.wall - after.wall) * 1e3
            window.fetch_cpu_ms += (fetched - end.cpu) * 1e3
        self._compare(outputs, expected, slot, number)

    def _reference(self, slot: _Slot, seed: int) -> tuple[Any, float]:
        start = time.process_time()
        outputs = self.reference.run(slot.shared, seed)
        return outputs, (time.process_time() - start) * 1e3

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
            "fetch", self.limit_s, [self.receiver.fd], slot=slot.number, seed=seed, size=self.receiver.size
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
