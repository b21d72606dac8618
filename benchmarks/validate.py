"""``python -m benchmarks.validate [--cpu | --gpu]``: a validation against KernelBench's way, side by side.

Every source goes through both on the same device, one after the other: a cell as a device worker holds it (started
while nobody waited; the time a cold one adds is shown) and a fresh process that does what KernelBench's evaluation does
(:mod:`benchmarks.validate_stock`). A line a source says what each took, where our time went, and what a second
validation takes that finds the build. Verdicts are compared as KernelBench knows them: not compiled, not correct,
correct. Rows are kept in a file, so that a run that ends at ``--limit-s`` goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import figure, machine
from benchmarks.validate_sources import CPU, Source, gpu
from specgen.evaluation.cell import Cell, Device, close_zygote
from specgen.evaluation.problems import load_problem
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, Status, source_id

BAR = 5.0
STOCK_LIMIT_S = 600.0  # wall; generous, because a shared machine may be slow
_NOT_COMPILED = (
    Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.LOAD_ERROR, Status.NO_MODELNEW, Status.NO_CODE,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One source, both ways. Seconds."""

    name: str
    expected: str
    status: str
    verdict: str
    ours_s: float
    cell_s: float  # from nothing to a cell that waits
    device_s: float
    build_s: float
    again_s: float  # the same once more: the build is found
    parts: dict[str, float] = field(default_factory=dict)
    stock_verdict: str = ""
    stock_s: float = 0.0
    stock_parts: dict[str, float] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Both gave the same verdict, and ours is the status that the source was written for."""
        return self.verdict == self.stock_verdict and self.status == self.expected


def verdict_of(status: Status) -> str:
    """A status as KernelBench knows it."""
    if status is Status.VALID:
        return "correct"
    return "not compiled" if status in _NOT_COMPILED else "not correct"


class Ours:
    """Validations in cells, one at a time, each started before it is needed."""

    def __init__(self, device: Device, cache_root: Path) -> None:
        self.device = device
        self.cache_root = cache_root

    def validate(self, source: Source, problem: ProblemSpec) -> tuple[EvaluationResult, float, float]:
        """The result, how long it took from its request, and how long the cell had taken to wait for it."""
        begun = time.monotonic()
        cell = Cell.start(self.device, EvaluationPolicy(), self.cache_root)
        try:
            cell.wait_ready(180.0)
            start = time.monotonic()
            cell.submit(
                EvaluationRequest(
                    request_id=source.name, job_id="bench", iteration=0, candidate_id=source_id(source.text),
                    phase=Phase.VALIDATE, origin=Origin.MAIN, source=source.text, problem=problem,
                    label=problem.backend, time_budget_s=120.0,
                )
            )  # fmt: skip
            while (result := cell.poll(5.0)) is None:
                pass
            return result, time.monotonic() - start, start - begun
        finally:
            cell.kill()


def stock(source: Source, problem: ProblemSpec, device: Device) -> tuple[dict[str, Any], float]:
    """KernelBench's way: what it found, and how long the process lived."""
    place = Path(tempfile.mkdtemp(prefix="specgen-validate-"))
    job = {
        "build": str(place / "build"), "backend": problem.backend, "problem": problem.source, "source": source.text,
        "tolerance": problem.tolerance,
    }  # fmt: skip
    (place / "build").mkdir()
    (place / "job.json").write_text(json.dumps(job))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "benchmarks.validate_stock", str(place / "job.json")]
    if device.backend == "cpu":
        command = ["taskset", "-c", str(device.index), *command]
    start = time.monotonic()
    with (place / "out").open("w") as out, (place / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            process.wait(STOCK_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    spent = time.monotonic() - start
    lines = [line for line in (place / "out").read_text().splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"verdict": "not compiled"}
    shutil.rmtree(place, ignore_errors=True)
    return found, spent


def measure(source: Source, ours: Ours, backend: str) -> Row:
    """One source, ours first: its build leaves nothing that stock's could find."""
    problem = load_problem(source.task, "cuda" if backend == "cuda" else "cpu")
    result, spent, waited = ours.validate(source, problem)
    again = ours.validate(source, problem)[1]
    notes = {name: float(value) for name, value in result.environment.items() if name.endswith("_s")}
    found, stock_s = stock(source, problem, ours.device)
    return Row(
        name=source.name, expected=source.status.value, status=result.status.value, verdict=verdict_of(result.status),
        ours_s=spent, cell_s=waited, device_s=result.device_s, build_s=result.build_s, again_s=again, parts=notes,
        stock_verdict=str(found["verdict"]), stock_s=stock_s,
        stock_parts={name: float(value) for name, value in found.items() if name.endswith("_s")},
    )  # fmt: skip


def show(row: Row) -> None:
    """A line of it."""
    ours = " ".join(f"{name.removesuffix('_s')} {value:.2f}" for name, value in row.parts.items())
    theirs = " ".join(f"{name.removesuffix('_s')} {value:.2f}" for name, value in row.stock_parts.items())
    print(
        f"{row.name:14} {row.status:13} {row.ours_s:6.2f} s ({ours}; build {row.build_s:.2f}; again {row.again_s:.2f};"
        f" a cold cell adds {row.cell_s:.2f}); KernelBench's way {row.stock_verdict:12} {row.stock_s:6.2f} s ({theirs})"
        f"{'' if row.agrees else '  DIFFERS'}",
        flush=True,
    )


def report(rows: list[Row], wanted: int, backend: str) -> bool:
    """The figures. True if the bars hold."""
    if not rows:
        return False
    median = {name: statistics.median(getattr(row, name) for row in rows) for name in ("ours_s", "stock_s", "again_s")}
    cold = statistics.median(row.ours_s + row.cell_s for row in rows)
    held = sum(row.device_s for row in rows) / sum(row.ours_s for row in rows)
    built = sum(row.build_s for row in rows) / sum(row.ours_s for row in rows)
    ratio, same = median["stock_s"] / median["ours_s"], sum(row.agrees for row in rows) / len(rows)
    barred = backend == "cuda"
    kept = [
        figure(
            f"validate_{backend}_latency_ratio_of_medians", ratio, "x", f">= {BAR:g}" if barred else "",
            ratio >= BAR if barred else None,
        ),
        figure(f"validate_{backend}_same_verdicts", same, "share", "= 1", same == 1),
        figure(f"validate_{backend}_sources", len(rows), "sources", f"= {wanted}", len(rows) == wanted),
    ]  # fmt: skip
    figure(f"validate_{backend}_latency_median", median["ours_s"], "s", "", None)
    figure(f"validate_{backend}_latency_kernelbench_median", median["stock_s"], "s", "", None)
    figure(f"validate_{backend}_latency_ratio_with_a_cold_cell", median["stock_s"] / cold, "x", "", None)
    figure(f"validate_{backend}_latency_build_found_median", median["again_s"], "s", "", None)
    figure(f"validate_{backend}_device_held", held, "share", "", None)
    figure(f"validate_{backend}_spent_building", built, "share", "", None)
    return all(row["holds"] is not False for row in kept)


def run(options: argparse.Namespace, backend: str) -> bool:
    """Measure what is not in the rows' file yet, then report on all of it."""
    sources = [one for one in (gpu() if backend == "cuda" else CPU) if not options.only or one.name in options.only]
    sources = sources[: options.limit]
    done: dict[str, Row] = {}
    if options.rows and options.rows.is_file():
        done = {row.name: row for row in (Row(**json.loads(line)) for line in options.rows.read_text().splitlines())}
    core = min(os.sched_getaffinity(0))
    device = Device("validate", "cuda" if backend == "cuda" else "cpu", 0 if backend == "cuda" else core)
    cache_root = Path(tempfile.mkdtemp(prefix="specgen-validate-cache-"))
    if options.cache:
        for support in options.cache.glob("support-*"):
            (cache_root / support.name).symlink_to(support)
    end, ours, longest = time.monotonic() + options.limit_s, Ours(device, cache_root), 60.0
    try:
        for source in sources:
            if source.name not in done:
                if time.monotonic() + longest > end:
                    print(f"time is up before {source.name}")
                    break
                start = time.monotonic()
                done[source.name] = measure(source, ours, backend)
                longest = max(longest, time.monotonic() - start)
                if options.rows:
                    with options.rows.open("a") as file:
                        file.write(json.dumps(asdict(done[source.name])) + "\n")
            show(done[source.name])
    finally:
        close_zygote()
        shutil.rmtree(cache_root, ignore_errors=True)
    return report([done[source.name] for source in sources if source.name in done], len(sources), backend)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate", description=__doc__.partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="this machine's first core (default)")
    parser.add_argument("--gpu", action="store_true", help="this machine's first GPU")
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="only the first N sources")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="only these sources")
    parser.add_argument("--limit-s", type=float, default=float("inf"), metavar="S", help="begin no source after that")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keep rows there, and go on from what it holds")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where the façade's support library was built before")
    options = parser.parse_args()
    if options.gpu and not Path("/proc/driver/nvidia/version").exists():
        parser.error("no NVIDIA GPU here; --cpu measures this machine's first core")
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}")
    return 0 if run(options, "cuda" if options.gpu else "cpu") else 1


if __name__ == "__main__":
    raise SystemExit(main())
