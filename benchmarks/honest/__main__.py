"""``python -m benchmarks.honest [--gpu] [--only honest|cheats] [--match WORD]``: honest kernels and cheats, all judged.

On the CPU every kernel is built, run and judged by the whole evaluator, sandbox included. ``--gpu`` does the same on
a GPU; where there is none, ``--compile N`` puts N of the CUDA files through nvcc and says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import figure, machine
from benchmarks.honest import gpu
from benchmarks.honest.cheats import CHEATS
from benchmarks.honest.cpu_models import kernels as models
from benchmarks.honest.cpu_products import kernels as products
from benchmarks.honest.files import Kernel
from benchmarks.honest.kinds import Cheat, Kind
from benchmarks.honest.run import judged
from specgen.evaluation.build.support import ensure_support
from specgen.evaluation.cell import close_zygote
from specgen.evaluation.sandbox import probe
from specgen.settings import get_settings
from specgen.types import EvaluationResult, Status

_GOOD = (Status.VALID, Status.PROFILER_UNAVAILABLE)


def honest(kernels: Sequence[Kernel], backend: str, cache: Path) -> tuple[int, int]:
    """Judge all; print what is refused. Returns how many were judged, and how many of them refused."""
    refused, labels, speedups, unjudged = [], Counter[str](), [], 0
    for number, kernel in enumerate(kernels, 1):
        result = judged(kernel.source, kernel.task, cache, backend=backend)
        if result.status is Status.INFRA_ERROR:
            unjudged += 1
            print(f"not judged: {kernel.name}: {_line(result)}", flush=True)
        elif result.status in _GOOD:
            labels.update(result.labels)
            speedups.append(result.speedup or 0.0)
        else:
            refused.append(kernel)
            print(f"REFUSED {kernel.name} ({kernel.id[:12]}): {_line(result)}", flush=True)
        if number % 10 == 0:
            print(f"{number} of {len(kernels)} honest kernels, {len(refused)} refused", flush=True)
    tasks = len({kernel.task for kernel in kernels})
    print(f"{len({kernel.id for kernel in kernels})} distinct sources over {tasks} tasks; labels {dict(labels)}")
    if speedups:
        print(f"speedups {min(speedups):.3g} to {max(speedups):.3g}")
    return len(kernels) - unjudged, len(refused)


def _line(result: EvaluationResult) -> str:
    error = (result.error.strip().splitlines() or [""])[:2]
    return f"{result.status}, {result.rule or 'no rule'}: {' / '.join(error)[:300]}"


def cheats(given: Sequence[Cheat], backend: str, cache: Path) -> tuple[int, int, int]:
    """Judge all; print by kind what refused them. Returns judged, accepted, refused by something not expected."""
    by: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind}
    accepted, otherwise, unjudged = 0, 0, 0
    for number, cheat in enumerate(given, 1):
        result = judged(
            cheat.source, cheat.problem, cache, backend=backend, phase=cheat.phase, warmups=cheat.warmups,
            runs=cheat.timed_runs,
        )  # fmt: skip
        if result.status is Status.INFRA_ERROR:
            unjudged += 1
            print(f"not judged: {cheat.name}: {_line(result)}", flush=True)
            continue
        by[cheat.kind][result.rule.split(":")[0] or str(result.status)] += 1
        if result.status in _GOOD:
            accepted += 1
            print(f"ACCEPTED {cheat.name}: speedup {result.speedup:.3g}, {result.environment}", flush=True)
        elif not cheat.held(result.status, result.rule):
            otherwise += 1
            print(f"refused otherwise than expected: {cheat.name}: {_line(result)}", flush=True)
        if number % 10 == 0:
            print(f"{number} of {len(given)} cheats, {accepted} accepted", flush=True)
    for kind, refusals in by.items():
        print(f"{kind}: {refusals.total()}; " + ", ".join(f"{rule} {count}" for rule, count in refusals.most_common()))
    return len(given) - unjudged, accepted, otherwise


def main() -> int:
    """Run what is asked for; exit code 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.honest", description=__doc__.split("\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true", help="the default")
    where.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", choices=("honest", "cheats"))
    parser.add_argument("--match", default="", help="only names that contain this")
    parser.add_argument("--compile", type=int, metavar="N", help="only compile N CUDA files of each list, with nvcc")
    parser.add_argument(
        "--cache",
        type=Path,
        help="where build support is kept (default: a new directory; with --compile: the usual one)",
    )
    given = parser.parse_args()
    if given.compile is not None:
        return gpu.compile_some(given.compile, given.cache or get_settings().cache_path)
    if given.gpu and not Path("/proc/driver/nvidia/version").exists():
        sys.stderr.write("no NVIDIA GPU here: --compile N puts N of the CUDA files through nvcc instead\n")
        return 2
    probe()
    backend = "cuda" if given.gpu else "cpu"
    kernels = gpu.kernels() if given.gpu else [*products(), *models()]
    kernels = [kernel for kernel in kernels if given.match in kernel.name]
    bad = [cheat for cheat in (gpu.CHEATS if given.gpu else CHEATS) if given.match in cheat.name]
    start, holds = time.monotonic(), True
    with tempfile.TemporaryDirectory(prefix="specgen-honest-") as temporary:
        cache = given.cache or Path(temporary)
        print(f"{machine()}; {backend}; {len(kernels)} honest kernels, {len(bad)} cheats", flush=True)
        ensure_support(cache)  # a minute, once: else the first candidates would wait for it
        try:
            found = honest(kernels, backend, cache) if given.only != "cheats" else None
            seen = cheats(bad, backend, cache) if given.only != "honest" else None
        finally:
            close_zygote()
    print(f"{time.monotonic() - start:.0f} s")
    if found:
        judged_, refused = found
        rows = [figure(f"honest kernels judged ({backend})", judged_, "kernels", ">= 100", judged_ >= 100)]
        share = 100 * refused / max(1, judged_)
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
