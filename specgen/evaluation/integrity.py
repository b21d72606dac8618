"""The rules that make a speedup true. Each is a name and a number; behaviour decides, source text never does.

Outputs, inputs and messages have their rules where they are read (:mod:`specgen.evaluation.rounds`,
:mod:`specgen.evaluation.peer`); here are those about what was called and about time. docs/evaluation.md lists all.
"""

from __future__ import annotations

import statistics

from specgen.evaluation import processes
from specgen.evaluation.audit import PRODUCT
from specgen.evaluation.floors import floor
from specgen.evaluation.peer import Peer
from specgen.evaluation.timing import Window
from specgen.evaluation.verdict import rejected
from specgen.evaluation.weights import Weights
from specgen.evaluation.wire import Message
from specgen.evaluation.work import Work

_FASTER_THAN_COPY = {"cpu": 2.0, "cuda": 1.25}  # nothing moves bytes that much faster than the device's best copy
_FASTER_THAN_PRODUCTS = 2.0
_ASLEEP_MS, _ASLEEP_SHARE = 0.2, 0.2  # of a run: waking up and answering take a few hundredths
_OUTSIDE_MS, _OUTSIDE_SHARE = 0.15, 0.003  # CPU time between runs, of each and of the time they take
_OUTSIDE_ONCE_MS = 1.0  # and in all: an honest kernel on a busy machine used 0.9 in three runs
_REPEATED = 0.9  # of a kind of the reference's work
_FEW_SAMPLES = 20
_HIDDEN = 0.5
_BY_LIBRARY = 0.8  # of a run's time
_OWN_LEAST = 0.5  # what lies in the level-2 cache is read faster than memory
_WATCHED_MS, _WATCHED_SHARE = 1.0, 1.5  # looking costs time: tens of microseconds an operator
_L2_BYTES = 50 << 20  # of outputs may still lie in a GPU's cache when the window ends


def check_calls(calls: Message, builds: list[str], reference: dict[str, float]) -> tuple[str, ...]:
    """Own kernels must do part of the work. Returns labels; raises Verdict.

    ``library_only``: nothing was built, or nothing of it was called. ``reference_ops``: library operators did every
    kind of work that the reference does (:func:`specgen.evaluation.audit.work_of`), so that own kernels did none.
    """
    own, work, seen = calls.get("own"), calls.get("work"), calls.get("operators")
    if type(own) is not int or own <= 0:
        if not builds:
            raise rejected("library_only", "0 own kernels built", "the work must be done by kernels of your own")
        raise rejected("library_only", "0 calls of own kernels", "forward never called what the file built")
    done = {str(kind): _amount(value) for kind, value in work.items()} if isinstance(work, dict) else {}
    repeated = [kind for kind, amount in reference.items() if done.get(kind, 0.0) >= _REPEATED * amount]
    if reference and len(repeated) == len(reference):
        number = f"{len(repeated)} of {len(reference)} kinds of work"
        raise rejected("reference_ops", number, f"library operators do all of it: {', '.join(repeated)[:300]}")
    return ("uses_library",) if seen else ()


def _amount(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def check_time_in(samples: Message) -> None:
    """Whose code a forward's CPU time goes to, by samples (:mod:`specgen.evaluation.sampler`). Raises Verdict.

    ``library_only``: next to nothing of it in own kernels; ``hidden_library``: most of it in a library that was not
    called through torch.
    """
    kinds = ("own", "glue", "operator", "system", "python", "foreign")
    counts = {kind: int(_amount(samples.get(kind))) for kind in kinds}
    total = sum(counts.values())
    if total < _FEW_SAMPLES or total - counts["python"] < _FEW_SAMPLES / 2:
        return  # the interpreter is what takes the time: nothing can be said
    own = counts["own"] + counts["glue"]
    if counts["foreign"] > _HIDDEN * total and counts["foreign"] > 4 * own:
        raise rejected(
            "hidden_library", f"{100 * counts['foreign'] / total:.0f} % of {total} samples",
            "most of the time goes to a library that was called behind torch's back",
        )  # fmt: skip
    if own == 0:
        raise rejected(
            "library_only", f"0 of {total} samples in own kernels", "the work must be done by kernels of your own"
        )


def check_device_time(spent: Message, mean_ms: float, work: Work, gb_s: float) -> None:
    """``library_only``: library operators take a GPU's time, and own kernels less than half of what reading the least
    of the reference's kinds of work once does, so that they did none of them. Raises Verdict."""
    own, operators = _amount(spent.get("own")), _amount(spent.get("operators"))
    read = [4.0 * elements for kind, elements in work.kinds.items() if kind != PRODUCT]  # bytes
    least_ms = _OWN_LEAST * min(read or [float(work.output_bytes)]) / (gb_s * 1e6)
    if operators > _BY_LIBRARY * mean_ms and own < least_ms:
        raise rejected(
            "library_only", f"{own:.4f} ms in own kernels, {operators:.4f} in library operators, least {least_ms:.4f}",
            "the work must be done by kernels of your own",
        )  # fmt: skip


def watched_alike(watched_ms: float, mean_ms: float, *, refuse: bool) -> bool:
    """Whether the same work was done while it was watched as when it was timed. ``refuse``: raises Verdict if not."""
    allowed = _WATCHED_MS + _WATCHED_SHARE * mean_ms
    if watched_ms > allowed and refuse:
        raise rejected(
            "watched_differently", f"{watched_ms:.3f} ms watched, {mean_ms:.3f} ms timed, allowed {allowed:.3f}",
            "forward does something else while its calls are looked at",
        )  # fmt: skip
    return watched_ms <= allowed


def check_kept(weights: Weights) -> None:
    """The candidate must keep every parameter, so that it can be changed before each timed run. Raises Verdict."""
    if weights.values and weights.missing:
        raise rejected(
            "parameters_not_kept", f"{len(weights.missing)} of {len(weights.values)} parameters",
            f"ModelNew holds no tensor with the values of {', '.join(weights.missing)[:300]}: create the reference's "
            "parameters in its order, keep them (any name, any order of dimensions), derive from them in forward only",
        )  # fmt: skip


def check_alone(peer: Peer) -> None:
    """One process in the sandbox while it is timed. Raises Verdict."""
    root = processes.parent(peer.pid) if peer.bench.spec.sandbox == "bubblewrap" else peer.pid
    others = [pid for pid in processes.descendants(root) if pid != peer.pid]
    if others:
        raise rejected("background_process", f"{len(others)} processes", "a process was left running beside forward")


def check_awake(window: Window) -> None:
    """A CPU run is the process's own work: it does not sleep while somebody else does it. Raises Verdict.

    Wall time alone says little where neighbours use the core; going to sleep before the answer is the process's own
    doing. Now and then a page has to be fetched; in a quarter of the runs it does it on purpose.
    """
    runs = zip(window.asleep_ms, window.sleeps, window.candidate_ms, strict=True)
    long = sorted(asleep for asleep, sleeps, own in runs if sleeps > 1 and asleep > _ASLEEP_MS + _ASLEEP_SHARE * own)
    total = len(window.candidate_ms)
    if len(long) > total / 4:
        raise rejected(
            "asleep", f"{long[0]:.3f} ms or more in {len(long)} of {total} runs, allowed {_ASLEEP_MS:g}",
            "the process slept while it was timed: work in other processes is not measured",
        )  # fmt: skip


def check_window(window: Window) -> None:
    """No work outside the timed window, and a clock that agrees with the judge's. Raises Verdict."""
    runs = len(window.candidate_ms)
    allowed = _OUTSIDE_ONCE_MS + max(_OUTSIDE_MS * runs, _OUTSIDE_SHARE * window.outside_wall_ms)
    # a host that takes the core away for some milliseconds charges them to who was on it: rarely, not in each run
    outside_ms = sum(sorted(window.outside_ms)[: -max(1, runs // 10)])
    if outside_ms > allowed:
        raise rejected(
            "work_outside_window", f"{outside_ms:.2f} ms of CPU time, allowed {allowed:.2f}",
            "the process computed while it was not being timed",
        )  # fmt: skip
    fetch = statistics.median(window.fetch_ms)
    if fetch > window.fetch_allowed_ms:
        raise rejected(
            "deferred_work", f"{fetch:.2f} ms, allowed {window.fetch_allowed_ms:.2f}",
            "outputs were computed when they were read, not in forward",
        )  # fmt: skip
    gaps = (
        (statistics.median(window.gap_ms), window.gap_allowed_ms), (window.single_gap_ms, window.single_allowed_ms)
    )  # fmt: skip
    for gap, gap_allowed in gaps:
        if gap > gap_allowed:
            raise rejected(
                "clock_disagrees", f"{gap:.3f} ms missing from its own clock, allowed {gap_allowed:.3f}",
                "the timer was tampered with, or work went on beside the stream that is timed",
            )  # fmt: skip


def check_forgotten(window: Window) -> None:
    """A GPU's runs in a row, all on the same inputs, take what runs on new ones take. Raises Verdict."""
    gained, allowed = -statistics.median(window.gap_ms), window.gap_allowed_ms
    if gained > allowed:
        raise rejected(
            "remembered", f"{gained:.3f} ms faster on inputs it has seen, allowed {allowed:.3f}",
            "runs in a row on the same values take less time: results are kept",
        )  # fmt: skip


def floor_ms(moved_bytes: int, gb_s: float, backend: str) -> float:
    """No honest kernel is faster: inputs read once and outputs written once, faster than the best copy does it.

    On a CPU that copy is a hot one; on a GPU the cache is cold before a run and may hold outputs after it.
    """
    counted = moved_bytes - (_L2_BYTES if backend == "cuda" else 0)
    return max(0.0, counted / (gb_s * _FASTER_THAN_COPY[backend] * 1e6))


def check_floor(mean_ms: float, moved_bytes: int, gb_s: float, backend: str) -> None:
    """Raises Verdict for a time below the floor."""
    floor = floor_ms(moved_bytes, gb_s, backend)
    if mean_ms < floor:
        raise rejected(
            "faster_than_memory", f"{mean_ms:.4f} ms, floor {floor:.4f} ms",
            f"reading and writing {moved_bytes / 1e6:.1f} MB takes longer on this device",
        )  # fmt: skip


def check_arithmetic(mean_ms: float, flops: float, gflop_s: float) -> None:
    """Raises Verdict for a time in which the arithmetic that a problem states (``NEEDED_FLOPS``) cannot be done, at
    twice the fastest products measured on this device that meet the tolerance."""
    least = floor(0, flops, 1.0, _FASTER_THAN_PRODUCTS * gflop_s).arithmetic_ms
    if mean_ms < least:
        raise rejected(
            "faster_than_arithmetic", f"{mean_ms:.4f} ms, floor {least:.4f} ms",
            f"{flops:.4g} operations take longer on this device",
        )  # fmt: skip
