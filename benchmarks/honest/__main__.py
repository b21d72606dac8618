"""``python -m benchmarks.honest [--gpu] [--only honest|cheats] [--match PATTERN]``: honest kernels and cheats, all judged.

On the CPU every kernel is built, run and judged by the whole evaluator, sandbox included. ``--gpu`` does the same on
a GPU; where there is none, ``--compile N`` puts N of the CUDA files through nvcc and says so. An interrupted run goes on
where it was with the same ``--state``, as long as the evaluator is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.figures import figure, machine
from benchmarks.honest import gpu
from benchmarks.honest.cheats import CHEATS
from benchmarks.honest.cpu_models import kernels as models
from benchmarks.honest.cpu_products import kernels as products
from benchmarks.honest.files import Kernel
from benchmarks.honest.kinds import Cheat, Kind
from benchmarks.honest.run import Bench, Source
from specgen import evaluation
from specgen.evaluation.build.support import ensure_support
from specgen.evaluation.sandbox import probe
from specgen.settings import get_settings
from specgen.types import EvaluationResult, ProblemSpec, Status, source_id

_GOOD = (Status.VALID, Status.PROFILER_UNAVAILABLE)


def honest(kernels: Sequence[Kernel], judge: Judge) -> tuple[int, int]:
    """Judge all; print what is refused. Returns how many were judged, and how many of them refused."""
    refused, labels, speedups, judged = [], Counter[str](), [], 0
    for kernel in kernels:
        result = judge(kernel.name, kernel.source, kernel.task)
        if result is None:
            break
        if result.status is Status.INFRA_ERROR:
            print(f"not judged: {kernel.name}: {_line(result)}", flush=True)
            continue
        judged += 1
        if result.status in _GOOD:
            labels.update(result.labels)
            speedups.append(result.speedup or 0.0)
        else:
            refused.append(kernel)
            print(f"REFUSED {kernel.name} ({kernel.id[:12]}): {_line(result)}", flush=True)
        if judged % 10 == 0:
            print(f"{judged} of {len(kernels)} honest kernels, {len(refused)} refused", flush=True)
    tasks = len({kernel.task for kernel in kernels})
    print(f"{len({kernel.id for kernel in kernels})} distinct sources over {tasks} tasks; labels {dict(labels)}")
    if speedups:
        print(f"speedups {min(speedups):.3g} to {max(speedups):.3g}")
    return judged, len(refused)


def _line(result: EvaluationResult) -> str:
    error = (result.error.strip().splitlines() or [""])[:2]
    return f"{result.status}, {result.rule or 'no rule'}: {' / '.join(error)[:300]}"


def cheats(given: Sequence[Cheat], judge: Judge) -> tuple[int, int, int]:
    """Judge all; print by kind what refused them. Returns judged, accepted, refused by something not expected."""
    by: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind}
    judged, accepted, otherwise = 0, 0, 0
    for cheat in given:
        result = judge(
            cheat.name, cheat.source, cheat.problem, phase=cheat.phase, warmups=cheat.warmups, runs=cheat.timed_runs
        )
        if result is None:
            break
        if result.status is Status.INFRA_ERROR:
            print(f"not judged: {cheat.name}: {_line(result)}", flush=True)
            continue
        judged += 1
        by[cheat.kind][result.rule.split(":")[0] or str(result.status)] += 1
        if result.status in _GOOD:
            accepted += 1
            print(f"ACCEPTED {cheat.name}: speedup {result.speedup:.3g}, {result.environment}", flush=True)
        elif not cheat.held(result.status, result.rule):
            otherwise += 1
            print(f"refused otherwise than expected: {cheat.name}: {_line(result)}", flush=True)
        if judged % 10 == 0:
            print(f"{judged} of {len(given)} cheats, {accepted} accepted", flush=True)
    for kind, refusals in by.items():
        print(f"{kind}: {refusals.total()}; " + ", ".join(f"{rule} {count}" for rule, count in refusals.most_common()))
    return judged, accepted, otherwise


@lru_cache(maxsize=1)
def _evaluator() -> str:
    """What shapes a verdict: the evaluator's files, torch and the kind of machine (16 hex digits)."""
    digest = hashlib.sha256(f"{machine()} {version('torch')}".encode())
    for path in sorted(Path(evaluation.__file__).parent.rglob("*")):
        if path.suffix in (".py", ".h", ".c", ".cpp", ".inl"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Judge:
    """Judges what the state file does not know yet, until ``deadline`` (monotonic seconds); after it, None."""

    def __init__(self, bench: Bench, state: Path | None, deadline: float) -> None:
        self._bench, self._state, self._deadline = bench, state, deadline
        lines = state.read_text().splitlines() if state and state.is_file() else []
        self._known = {row["key"]: EvaluationResult.model_validate(row["result"]) for row in map(json.loads, lines)}

    def key(self, name: str, source: str) -> str:
        """Of one candidate, by this evaluator here: verdicts of another one do not count."""
        return f"{self._bench.kind} {name} {source_id(source)[:16]} {_evaluator()}"

    def __call__(self, name: str, source: str, problem: str | ProblemSpec, **how: Any) -> EvaluationResult | None:
        """The result, of now or of before. None: the time is up."""
        key = self.key(name, source)
        if (known := self._known.get(key)) is not None:
            return known
        if time.monotonic() > self._deadline:
            return None
        result = self._bench.judged(source, problem, **how)
        if self._state and result.status is not Status.INFRA_ERROR:
            with self._state.open("a") as file:
                file.write(json.dumps({"key": key, "result": result.model_dump(mode="json")}) + "\n")
        return result

    def unknown(self, candidates: Iterable[Kernel | Cheat]) -> list[Source]:
        """What is left to judge."""
        left = [one for one in candidates if self.key(one.name, one.source) not in self._known]
        return [(one.source, one.task if isinstance(one, Kernel) else one.problem) for one in left]


def main() -> int:
    """Run what is asked for; exit code 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.honest", description=__doc__.split("\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true", help="the default")
    where.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", choices=("honest", "cheats"))
    parser.add_argument("--match", default="", help="only names in which this pattern is found")
    parser.add_argument("--compile", type=int, metavar="N", help="only compile N CUDA files of each list, with nvcc")
    parser.add_argument(
        "--cache",
        type=Path,
        help="where build support is kept (default: a new directory; with --compile: the usual one)",
    )
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep verdicts there, and go on from what it holds")
    parser.add_argument("--limit-s", type=float, default=float("inf"), metavar="S", help="judge nothing after that")
    given = parser.parse_args()
    if given.compile is not None:
        return gpu.compile_some(given.compile, given.cache or get_settings().cache_path)
    if given.gpu and not Path("/proc/driver/nvidia/version").exists():
        sys.stderr.write("no NVIDIA GPU here: --compile N puts N of the CUDA files through nvcc instead\n")
        return 2
    probe()
    backend = "cuda" if given.gpu else "cpu"
    kernels = gpu.kernels() if given.gpu else [*products(), *models()]
    kernels = [kernel for kernel in kernels if re.search(given.match, kernel.name)]
    bad = [cheat for cheat in (gpu.CHEATS if given.gpu else CHEATS) if re.search(given.match, cheat.name)]
    start, holds = time.monotonic(), True
    with tempfile.TemporaryDirectory(prefix="specgen-honest-") as temporary:
        cache = given.cache or Path(temporary)
        print(f"{machine()}; {backend}; {len(kernels)} honest kernels, {len(bad)} cheats", flush=True)
        ensure_support(cache)  # a minute, once: else the first candidates would wait for it
        with Bench(backend, cache) as bench:
            judge = Judge(bench, given.state, start + given.limit_s)
            chosen: list[Kernel | Cheat] = [
                *(kernels if given.only != "cheats" else []),
                *(bad if given.only != "honest" else []),
            ]
            if given.gpu:
                bench.build_ahead(judge.unknown(chosen))
            found = honest(kernels, judge) if given.only != "cheats" else None
            seen = cheats(bad, judge) if given.only != "honest" else None
    print(f"{time.monotonic() - start:.0f} s")
    if found:
        count, refused = found
        rows = [figure(f"honest kernels judged ({backend})", count, "kernels", ">= 100", count >= 100)]
        share = 100 * refused / max(1, count)
        rows.append(figure(f"honest kernels refused ({backend})", share, "%", "<= 1", share <= 1))
        holds = holds and all(row["holds"] for row in rows)
    if seen:
        count, accepted, otherwise = seen
        rows = [figure(f"cheats judged ({backend})", count, "cheats", ">= 40", count >= 40)]
        rows.append(figure(f"cheats accepted ({backend})", accepted, "cheats", "0", accepted == 0))
        figure(f"cheats refused otherwise than expected ({backend})", otherwise, "cheats", "shown", None)
        holds = holds and all(row["holds"] for row in rows)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
