"""R1–R10: parts of the system are killed, stopped, wiped and drained while it works; what was lost is counted.

    python -m benchmarks.faults [--short] [--state FILE] [--only R1 [--case K]] [--seed S]

Without ``--short`` it runs for hours with the scorecard's numbers; with ``--state`` finished cases are kept and a
second call goes on. A failing case prints its schedule and how to run it again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.faults import lines
from benchmarks.faults.cases import Case, Finished, Result
from benchmarks.faults.system import System
from benchmarks.figures import machine


def run(system: System, case: Case) -> Result:
    """One case, told in a line."""
    begun = time.monotonic()
    result = lines.RUN[case.line](system, case)
    result.seconds = round(time.monotonic() - begun, 1)
    counts = ", ".join(f"{name} {number}" for name, number in result.counts.items())
    print(f"# {case.line} case {case.index} ({case.kind} x{result.faults}) {result.seconds:g} s: {counts}", flush=True)
    if result.notes:
        print(f"#   again: --only {case.line} --seed {case.seed} --case {case.index}")
        for text in (*result.schedule, *result.notes[:20]):
            print(f"#   {text}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="few faults of each kind, under ten minutes")
    parser.add_argument("--only", default="", help="lines, such as R1,R4")
    parser.add_argument("--case", type=int, help="one case of a line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="file of finished cases, to go on later")
    parser.add_argument("--home", type=Path, help="keep logs and data there (a short path)")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    cases = [case for case in lines.cases(options.seed, short=options.short) if not wanted or case.line in wanted]
    cases = [case for case in cases if options.case is None or case.index == options.case]
    if not cases:
        parser.error(f"no such line or case: lines are {', '.join(lines.RUN)}")
    begun, finished = time.monotonic(), Finished(options.state)
    home = options.home or Path(tempfile.mkdtemp(prefix="sgf-"))
    home.mkdir(parents=True, exist_ok=True)
    print(
        f"# {machine()}, load {os.getloadavg()[0]:.1f}, seed {options.seed}, {len(cases)} cases, logs: {home / 'logs'}"
    )
    system = System(home.resolve())
    try:
        if any(finished.get(case) is None for case in cases):
            system.start()
            system.workers()
        results = []
        for case in cases:
            result = finished.get(case)
            if result is None:
                result = run(system, case)
                finished.add(result)
            results.append(result)
    finally:
        system.stop()
    lines.report(results)
    print(f"# took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
