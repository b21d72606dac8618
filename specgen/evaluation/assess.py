"""The steps of one judgement: load, construct, trials, timed window. Raises Verdict at the first that fails.

While the candidate builds, the judge prepares the reference: both are pinned to the device's core. Validation tries
own inputs (twice), other distributions and perturbed parameters, and times a few runs; profiling tries again and
times 10 + 40 (§8.1).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from specgen.evaluation import integrity, precision, processes, roofline, sampler, sanitize, stored
from specgen.evaluation.audit import PRODUCT
from specgen.evaluation.ceilings import Ceilings
from specgen.evaluation.counters import LIMIT_S, Counted, Subject, collect
from specgen.evaluation.feedback import cap
from specgen.evaluation.floors import floor, needed_flops
from specgen.evaluation.peer import Peer
from specgen.evaluation.reference import Reference
from specgen.evaluation.rounds import Outcome, aliases, run_once, try_once
from specgen.evaluation.supervisor import Bench
from specgen.evaluation.tensors import Parcel
from specgen.evaluation.timing import TimedRuns, Window, fetch_cost_ms, message_cost_ms, summary
from specgen.evaluation.trials import Trial, finite, fresh_seed, largest, other, own, signed, spiked
from specgen.evaluation.verdict import HostLock, Verdict
from specgen.evaluation.weights import Weights
from specgen.evaluation.wire import Message, close_all, memory_file, memory_file_of
from specgen.evaluation.work import Work, measure, needed_bytes
from specgen.types import EvaluationRequest, Phase, Profile, Status

_CACHE_LIMIT = 32 << 20
_TOOLS_OVERTIME_S = 150.0  # beyond the request's budget: counting replays every kernel many times
_SANITIZED = {  # the candidate was loaded
    Status.RUNTIME_ERROR, Status.DEVICE_FAULT, Status.HANG, Status.WRONG_SHAPE, Status.WRONG_DTYPE,
    Status.WRONG_VALUE, Status.NOT_FINITE, Status.REJECTED, Status.VALID, Status.PROFILER_UNAVAILABLE,
}  # fmt: skip
_FIRST_CUT = (3, 9)  # warm-ups and runs of a validation's speedup
T = TypeVar("T")


class Assessment:
    """One candidate's way through the steps."""

    def __init__(self, bench: Bench, peer: Peer, request: EvaluationRequest) -> None:
        self.bench = bench
        self.peer = peer
        self.peer.source = request.source
        self.request = request
        self.started = time.monotonic()
        self.validating = request.phase is Phase.VALIDATE
        self.backend = bench.spec.backend
        self.lock = HostLock(bench.spec.device_name if self.backend == "cuda" else "")
        self.notes: dict[str, str] = {}
        self.labels: set[str] = set()
        self.build_route: Any = "none"
        self.build_s = 0.0
        self.builds: list[str] = []
        self.cost_ms = 0.0
        self.fetch_ms = 0.3
        self.max_abs_error = 0.0
        self.most = float("inf")  # of the values put among inputs
        self.prepared: tuple[Reference, Trial] | None = None

    def run(self) -> dict[str, Any]:
        """The fields of a valid result."""
        self.peer.deadline = time.monotonic() + self.request.time_budget_s
        marks = [self.started]
        if self.backend == "cpu":  # a GPU's runs are not timed by the process's CPU clock
            self.cost_ms = message_cost_ms(self.peer)
        self.fetch_ms = fetch_cost_ms(self.peer, wall=self.backend == "cuda")
        reference, trials, work = self._load(self._prepare)
        marks.append(time.monotonic())
        self._construct(reference)
        if self.backend == "cpu":
            trials = self._trials(reference, trials[0])
        marks.append(time.monotonic())
        limit_s = self._limit_s
        self._try(reference, trials, work, limit_s)
        marks.append(time.monotonic())
        window, ceilings = self._timed(reference, trials, work, limit_s)
        marks.append(time.monotonic())
        self._store_build()
        counted = self._counted(reference, trials[0])
        names = ("load", "trials", "tried", "timed")
        self.notes |= {f"{name}_s": f"{b - a:.3f}" for name, a, b in zip(names, marks, marks[1:], strict=False)}
        return self._fields(window, work, ceilings, counted)

    def build(self) -> NoReturn:
        """Only load it, and keep what that built. No verdict: whoever evaluates it loads it again."""
        self.peer.deadline = time.monotonic() + self.request.time_budget_s
        self._load(lambda: None)
        self._store_build()
        raise Verdict(Status.ABORTED, "stopped after its build, as it was asked to be")

    # ------------------------------------------------------------------------------------------------ load

    def _load(self, meanwhile: Callable[[], T]) -> T:
        """Have the candidate load its file; returns what ``meanwhile`` does."""
        if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            raise Verdict(Status.INFRA_ERROR, "no C++ compiler on this machine")
        fds = [memory_file_of(self.request.source.encode())]
        if kept := self._kept_build():
            fds.append(memory_file_of(kept))
        mode = self.bench.spec.build if self.bench.support else "stock"
        budget = self.request.time_budget_s
        try:
            with self.lock.building() as waited:
                self.peer.deadline += waited
                self.peer.post("load", fds, mode=mode, support=self.bench.support, timeout_s=0.8 * budget)
                prepared = meanwhile()
                self._note_build(self.peer.answer_to_load(budget, self.lock))
        finally:
            close_all(fds)
        return prepared

    def _prepare(self) -> tuple[Reference, list[Trial], Work]:
        """The reference's part, while the candidate builds: on a GPU, which a build does not use, all of it; on a CPU,
        where both share a core, what costs little if the build fails."""
        reference = Reference(self.request.problem)
        start = time.perf_counter()
        trial = own(reference)
        self.prepared = reference, trial
        self._limit_s = 10.0 + 100.0 * (time.perf_counter() - start)
        work = measure(reference, trial)
        self.most = largest(self.request.problem.tolerance, PRODUCT in work.kinds)
        return reference, self._trials(reference, trial) if self.backend == "cuda" else [trial], work

    def _note_build(self, answer: Message) -> None:
        route, seconds, builds = answer.get("route"), answer.get("build_s"), answer.get("builds")
        if route in ("facade", "stock", "cached", "none"):
            self.build_route = route
        if isinstance(seconds, int | float):
            self.build_s = float(seconds)
        if isinstance(builds, list):
            self.builds = [str(item[0])[:100] for item in builds if isinstance(item, list) and item]

    # ------------------------------------------------------------------------------------------------ construct

    def _construct(self, reference: Reference) -> None:
        try:
            parcel = Parcel.of(reference.init_inputs)
        except TypeError as exc:
            raise Verdict(Status.REFERENCE_ERROR, f"get_init_inputs(): {exc}") from exc
        answer = self.peer.ask("construct", 60.0, [parcel.fd], seed=self.request.problem.seed, **parcel.fields)
        close_all([parcel.fd])
        self._note_build(answer)
        self._match(reference, answer.get("parameters"))

    def _match(self, reference: Reference, found: object) -> None:
        """The same parameters on both sides (docs/evaluation.md), and where the candidate keeps them."""
        state = reference.state()
        wanted = [[name, list(value.shape), str(value.dtype)] for name, value in state.items()]
        same = bool(wanted) and isinstance(found, list) and sorted(map(str, found)) == sorted(map(str, wanted))
        if same:
            self._send_state(state)
        self.weights = Weights(self.peer, reference)
        if not wanted:
            self.notes["parameters"] = "the reference has none"
        elif same:
            self.notes["parameters"] = "names and shapes agree: load_state_dict"
        else:
            kept = len(self.weights.values) - len(self.weights.missing)
            self.notes["parameters"] = (
                f"parameters differ: matched by seed; {kept} of {len(self.weights.values)} found by name or values"
            )

    def _send_state(self, state: dict[str, torch.Tensor]) -> None:
        parcel = Parcel.of(state)
        self.peer.ask("state", 60.0, [parcel.fd], **parcel.fields)
        close_all([parcel.fd])

    # ------------------------------------------------------------------------------------------------ trials

    def _trials(self, reference: Reference, first: Trial) -> list[Trial]:
        tolerance = self.request.problem.tolerance
        trials, left_out = [first, own(reference, "other fresh inputs")], []
        for name, change in (
            ("signed and scaled inputs", signed), ("inputs with a few very large values", spiked)
        ):  # fmt: skip
            trial = other(reference, name, change, tolerance, self.most)
            if trial is None:
                left_out.append(name)
            else:
                trials.append(trial)
                if trial.strength < 1:
                    self.notes[change.__name__] = (
                        f"at {trial.strength:g} of its strength: the reference's own precision"
                    )
        self.spikes = max((trial.strength for trial in trials if "very large" in trial.name), default=0.0)
        self.notes["distributions"] = f"{len(trials)} of 4" + "".join(f"; left out: {name}" for name in left_out)
        return trials

    def _try(self, reference: Reference, trials: list[Trial], work: Work, limit_s: float) -> None:
        tolerance = self.request.problem.tolerance
        aliased = aliases(trials[0].inputs, reference.run(trials[0].inputs, trials[0].seed))
        errors: list[float] = []
        for number, trial in enumerate(trials if self.validating else trials[:1] + trials[2:3]):
            audit = self.validating and number == 0
            outcome = try_once(self.peer, trial, tolerance, limit_s, audit=audit, aliased=aliased)
            self._learn(outcome, errors)
            if audit:
                self.labels.update(integrity.check_calls(outcome.calls, self.builds, work.kinds))
        integrity.check_kept(self.weights)
        self._tell_precision(reference, trials, errors, limit_s)
        if self.weights.changeable:
            self._perturbed(reference, tolerance, limit_s, aliased)

    def _tell_precision(self, reference: Reference, trials: list[Trial], errors: list[float], limit_s: float) -> None:
        signs = [trial for trial in trials if trial.exact is not None]
        if errors and signs:
            self.labels.update(
                precision.labels(
                    reference, self.weights, signs[0], errors[0], lambda trial: run_once(self.peer, trial, limit_s)[0]
                )
            )

    def _learn(self, outcome: Outcome, errors: list[float]) -> None:
        self.max_abs_error = max(self.max_abs_error, outcome.max_abs_error)
        if outcome.scale_error is not None:
            errors.append(outcome.scale_error)

    def _perturbed(self, reference: Reference, tolerance: float, limit_s: float, aliased: bool) -> None:
        """All parameters different from here on: what starts at zero or one is no longer."""
        inputs, seed = reference.inputs(fresh_seed()), fresh_seed()
        self.weights.perturb(fresh_seed(), lambda: finite(reference.forward(inputs, seed)))
        if not self.validating:
            return
        name = "other parameter values (changed in place: derive nothing from parameters in __init__, nor keep it)"
        trial = Trial(name=name, inputs=inputs, expected=reference.forward(inputs, seed), seed=seed, scaled=True)
        try_once(self.peer, trial, tolerance, limit_s, aliased=aliased)

    # ------------------------------------------------------------------------------------------------ time

    def _timed(self, reference: Reference, trials: list[Trial], work: Work, limit_s: float) -> tuple[Window, Ceilings]:
        tolerance = self.request.problem.tolerance
        needed_work = needed_flops(reference.module)
        timed = TimedRuns(
            self.peer, reference, trials[:3], tolerance, self.cost_ms, limit_s,
            weights=self.weights, spikes=self.spikes, most=self.most, fetch_ms=self.fetch_ms,
            beside=lambda: integrity.check_alone(self.peer), metered=not self.validating,
        )  # fmt: skip
        ceilings = Ceilings(Path(self.bench.spec.cache_root), self.bench.spec.device_name, self.backend)
        warmups, runs = _FIRST_CUT if self.validating else (self.request.warmups, self.request.timed_runs)
        integrity.check_alone(self.peer)
        with self.lock.exclusive() as waited:
            self.peer.deadline += waited
            self.notes["lock_wait_s"] = f"{waited:.3f}"
            window = timed.run(warmups, runs)
            gb_s = ceilings.gb_s(work.moved_bytes)
            peak = ceilings.usable_gflop_s(tolerance) if needed_work else 0.0
            if not self.validating:
                ceilings.gflop_s()
        integrity.check_alone(self.peer)
        if self.backend == "cuda":
            self.notes["clock_gaps_ms"] = window.gaps
        integrity.check_window(window)
        (integrity.check_awake if self.backend == "cpu" else integrity.check_forgotten)(window)
        mean_ms = summary(window.candidate_ms).mean_ms
        self._watch(timed, work, mean_ms, gb_s)
        least = floor(work.moved_bytes, needed_work, gb_s, peak or 1.0)
        self.notes["floor_ms"] = f"{least.ms:.4g} ({least.bound})"
        if mean_ms < integrity.floor_ms(work.moved_bytes, gb_s, self.backend):
            needed = needed_bytes(reference, trials[0], work)
            integrity.check_floor(mean_ms, needed, ceilings.gb_s(needed), self.backend)
        if needed_work:
            integrity.check_arithmetic(mean_ms, needed_work, peak)
        return window, ceilings

    def _watch(self, timed: TimedRuns, work: Work, mean_ms: float, gb_s: float) -> None:
        """Look once more what is called, now that the candidate has been timed, and where its CPU time goes."""
        compiled = sampler.library(Path(self.bench.spec.cache_root)) if self.backend == "cpu" else None
        for again in (False, True):  # a neighbour on the core may have made the first look slow
            watched_ms, device_ms = self._look(timed, work, compiled)
            if device_ms is not None:
                self.notes["device_ms"] = ", ".join(f"{kind} {ms:.4f}" for kind, ms in sorted(device_ms.items()))
                integrity.check_device_time(device_ms, mean_ms, work, gb_s)
            if watched_ms is None or integrity.watched_alike(watched_ms, mean_ms, refuse=again):
                break

    def _look(
        self, timed: TimedRuns, work: Work, compiled: bytes | None
    ) -> tuple[float | None, dict[str, float] | None]:
        """CPU time of a run that is looked at, and a GPU's time by whose code it is, in ms; None: not looked at."""
        fds = [memory_file_of(compiled, sampler.MEMORY)] if compiled else []
        start = processes.cpu_s(self.peer.pid)
        try:
            answer = self.peer.ask("watch_calls", 60.0, fds, slot=timed.slots[0].number, seed=fresh_seed())
        finally:
            close_all(fds)
        calls, samples, runs = answer.get("calls"), answer.get("samples"), answer.get("runs")
        calls = calls if isinstance(calls, dict) else {}
        if not calls.get("own") and calls.get("replays") and self.backend == "cuda":
            calls["own"] = calls["replays"]  # a graph of what was called when it was captured
        self.labels.update(integrity.check_calls(calls, self.builds, work.kinds))
        spent = answer.get("device_ms")
        if isinstance(spent, dict):
            return None, {kind: float(ms) for kind, ms in spent.items() if isinstance(ms, int | float)}
        if not compiled or not isinstance(samples, dict):
            return None, None
        integrity.check_time_in(samples)
        self.notes["samples"] = ", ".join(f"{kind} {count}" for kind, count in sorted(samples.items()))[:200]
        spent_ms = (processes.cpu_s(self.peer.pid) - start) * 1e3
        return spent_ms / (runs + 1) if type(runs) is int and runs > 0 else spent_ms, None

    def _counted(self, reference: Reference, trial: Trial) -> Counted | None:
        """A GPU's hardware counters; None where nobody asked, or there is no such device."""
        if self.validating or self.backend != "cuda":
            return None
        counted = collect(self._subject(reference, trial), self.bench.spec, min(LIMIT_S, self._left_s))
        self.notes["profiler"] = counted.unavailable or counted.note or f"ncu, {counted.seconds:.1f} s"
        return counted

    def sanitized(self, status: Status, error: str) -> str:
        """The feedback with compute-sanitizer's report, where one was asked for and the candidate came so far."""
        tool = self.bench.spec.sanitize
        if tool == "fault":
            tool = "memcheck" if status is Status.DEVICE_FAULT else ""
        if not tool or self.prepared is None or status not in _SANITIZED:
            return error
        said = sanitize.collect(self._subject(*self.prepared), self.bench.spec, tool, min(LIMIT_S, self._left_s)).text
        self.notes["sanitizer"] = said
        return cap(f"{error}\n{said}") if status is Status.DEVICE_FAULT else error

    def _subject(self, reference: Reference, trial: Trial) -> Subject:
        """For a tool of the toolkit."""
        return Subject(
            self.request.source, self._kept_build(), reference.init_inputs, trial.inputs, self.request.problem.seed,
            self.bench.spec.build if self.bench.support else "stock", self.bench.support,
        )  # fmt: skip

    @property
    def _left_s(self) -> float:
        """What is left for tools: the worker gives the judge somewhat longer than the budget."""
        return self.started + self.request.time_budget_s + _TOOLS_OVERTIME_S - time.monotonic()

    def _fields(self, window: Window, work: Work, ceilings: Ceilings, counted: Counted | None) -> dict[str, Any]:
        candidate, reference = summary(window.candidate_ms), summary(window.reference_ms)
        speedup = reference.mean_ms / candidate.mean_ms
        spread = (candidate.std_ms / candidate.mean_ms) ** 2 + (reference.std_ms / reference.mean_ms) ** 2
        fields: dict[str, Any] = {
            "speedup": speedup, "speedup_std": speedup * spread**0.5, "labels": tuple(sorted(self.labels)),
            "max_abs_error": self.max_abs_error,
        }  # fmt: skip
        if self.validating:
            return fields
        gb_s, gflop_s = ceilings.gb_s(work.moved_bytes), ceilings.gflop_s()
        reached_gb_s, reached_gflop_s = (n / (candidate.mean_ms * 1e6) for n in (work.moved_bytes, work.flops))
        counters = counted.counters if counted else {}
        bound = roofline.by_counters(counters)
        if bound == "unknown":
            bound = roofline.bound(reached_gb_s / gb_s, reached_gflop_s / gflop_s)
        fields["profile"] = Profile(
            candidate=candidate, reference=reference,
            achieved_gb_s=reached_gb_s, achieved_gflop_s=reached_gflop_s, ceiling_gb_s=gb_s, ceiling_gflop_s=gflop_s,
            roofline=bound, counters=self._counters(window) | counters,
        )  # fmt: skip
        if counted is not None and counted.unavailable:
            fields["status"] = Status.PROFILER_UNAVAILABLE
        return fields

    def _counters(self, window: Window) -> dict[str, float | None]:
        """What the kernel and the device count for the candidate's process."""
        pid = self.peer.pid
        peak, now = processes.status_field(pid, "VmHWM"), processes.status_field(pid, "VmRSS")
        switches = processes.status_field(pid, "nonvoluntary_ctxt_switches")
        faults = processes.faults(pid)
        return {
            "rss_peak_mb": peak / 1024 if peak is not None else None,
            "rss_mb": now / 1024 if now is not None else None,
            "minor_faults": float(faults) if faults is not None else None,
            "involuntary_switches": float(switches) if switches is not None else None,
            "message_cost_ms": self.cost_ms,
            "wall_mean_ms": statistics.fmean(window.wall_ms),
            "clock_gap_ms": statistics.median(window.gap_ms),
            "asleep_ms": statistics.median(window.asleep_ms),
            "outside_cpu_ms": sum(window.outside_ms),
            "fetch_ms": statistics.median(window.fetch_ms),
            "fetch_rehearsed_ms": self.fetch_ms,
            "fetch_allowed_ms": window.fetch_allowed_ms,
        } | window.counted

    # ------------------------------------------------------------------------------------------------ build cache

    @property
    def _entry(self) -> Path:
        return stored.entry(Path(self.bench.spec.cache_root), self.request.source)

    def _kept_build(self) -> bytes:
        """What an earlier sandbox of this candidate built; empty where there is nothing."""
        with contextlib.suppress(OSError):
            return self._entry.read_bytes()
        return b""

    def _store_build(self) -> None:
        """Keep the build products for this candidate's next sandbox; they are only ever unpacked there."""
        if not self.builds or self.build_route == "cached":
            return
        fd = memory_file(_CACHE_LIMIT, "specgen-build")
        try:
            size = self.peer.ask("pack", 30.0, [fd], limit=_CACHE_LIMIT).get("size")
            if type(size) is int and 0 < size <= _CACHE_LIMIT:
                stored.put(self._entry, os.pread(fd, size, 0))
        except OSError as exc:
            self.notes["build_cache"] = f"not stored: {exc}"[:200]
        finally:
            close_all([fd])
