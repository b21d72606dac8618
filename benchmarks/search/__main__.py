"""Every search algorithm with and without speculation, on one pool and one synthetic model.

    python -m benchmarks.search [--short] [--real] [--algorithms refine,cudaforge] [--tasks T1,T4,E1] [--iterations 8]

Simulated devices by default (`benchmarks.search.cell`): real Valkey, Celery workers, controllers, scheduler and model
server; a device answers after §3.1's service times, with the status of the mistake that the source carries, and with a
speedup from a model of designs. ``--real``: this machine's own devices, which compile and time. Jobs without
speculation run side by side first, then those with it; then Table 9's criteria; last, without speculation and with
short traces, since time plays no part in it, how best-so-far rises, and what `refine` loses without its feedback.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from benchmarks.figures import machine
from benchmarks.search import report
from benchmarks.search.cost import MODELLED
from benchmarks.search.jobs import Measured, Run, run_all
from benchmarks.search.system import SHORT, Place, system
from specgen.client import Client
from specgen.llm.server import ServerConfig

ALGORITHMS = ("best_of_n", "refine", "cudaforge", "kernelagent", "alphaevolve")
CRITERIA = ("first_valid", "historical_mean", "historical_best", "never")
WITHHELD = "the kernel alone"
PER_S = ServerConfig.tokens_per_s


class Benchmark:
    """One run of it."""

    def __init__(self, options: argparse.Namespace, client: Client, place: Place) -> None:
        self.options, self.client, self.place = options, client, place
        self.algorithms = options.algorithms.split(",")

    def run(self) -> None:
        """All parts, then all figures."""
        options = self.options
        without = self.wave("without speculation", [self.plan(name, speculation=False) for name in self.algorithms])
        spec = self.wave("with speculation", [self.plan(name, speculation=True) for name in self.algorithms])
        criteria = self.terminations(spec["refine"]) if "refine" in self.algorithms and options.criteria else {}
        curves = self.curves() if options.seeds and not options.real else {}
        for name in self.algorithms:
            report.table(name, without[name], spec[name])
        for what, side in (("without speculation", without), ("with speculation", spec)):
            report.pace(what, [one for found in side.values() for one in found], PER_S * options.speed)
        report.means([report.speculation(name, without[name], spec[name]) for name in self.algorithms])
        report.terminations(without.get("refine", []), criteria)
        for side in (without, spec, curves):
            for name in self.algorithms:
                report.progress(name, side.get(name, []), judged=side is curves)
        if WITHHELD in curves:
            report.feedback_matters(curves["refine"], {WITHHELD: curves[WITHHELD]})

    def plan(self, name: str, *, speculation: bool) -> list[Run]:
        """An algorithm's jobs: every task, with one seed."""
        tasks = self.options.tasks.split(",")
        return [Run(name, name, task, 1, self.options.iterations, speculation) for task in tasks]

    def terminations(self, default: list[Measured]) -> dict[str, list[Measured]]:
        """`refine` with each criterion; all but the default one, which has run, in one wave."""
        names = [name for name in self.options.criteria.split(",") if name != "historical_mean"]
        runs = [
            [replace(run, variant=name, termination=name) for run in self.plan("refine", speculation=True)]
            for name in names
        ]
        return {"historical_mean": default} | (self.wave("termination criteria, refine", runs) if runs else {})

    def curves(self) -> dict[str, list[Measured]]:
        """Best so far of every algorithm; of `refine` with feedback and without, over several seeds."""
        tasks, searches = self.options.tasks.split(","), {name: name for name in self.algorithms}
        if "refine" in searches:
            searches[WITHHELD] = "benchmarks.search.withheld:KernelOnly"
        runs = []
        for name, search in searches.items():
            seeds = range(1, (self.options.seeds if name in ("refine", WITHHELD) else 1) + 1)
            make = partial(Run, name, search, iterations=self.options.curve, speculation=False, llm=SHORT)
            runs.append([make(task, seed) for seed in seeds for task in tasks])
        return self.wave("best so far, short traces, without speculation", runs)

    def wave(self, what: str, groups: list[list[Run]]) -> dict[str, list[Measured]]:
        """Run them side by side; by variant."""
        runs = [run for turn in zip_longest(*groups) for run in turn if run is not None]
        at_once = self.options.at_once or len(runs)
        began = time.monotonic()
        print(f"-- {what}: {len(runs)} jobs, at most {min(at_once, len(runs))} at a time", flush=True)
        done = run_all(self.client, runs, at_once=at_once, policy=self.place.policy)
        print(f"-- {time.monotonic() - began:.0f} s", flush=True)
        return {group[0].variant: [one for one in done if one.run.variant == group[0].variant] for group in groups}


def parse() -> argparse.Namespace:
    """The command line; what does not fit together is refused."""
    parser = argparse.ArgumentParser(prog="benchmarks.search", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--algorithms", default=",".join(ALGORITHMS), help="names, or module:Class")
    add("--tasks", default="T1,T4,E1", help=f"of {', '.join(MODELLED)}")
    add("--iterations", type=int, default=0, help="of each job that is timed (default 8, --short 3)")
    add("--curve", type=int, default=0, help="iterations over which best-so-far is followed (default 20, --short 6)")
    add("--seeds", type=int, default=None, help="with feedback withheld (default 5, --short 2; 0: leave that part out)")
    add("--criteria", default=None, help=f"of Table 9 (default {','.join(CRITERIA)}; empty: leave that part out)")
    add("--speed", type=float, default=0.0, help="of the model and of simulated devices, times the paper's")
    add("--devices", type=int, default=0, help="simulated ones (default: one for each algorithm and task, at most 15)")
    add("--at-once", type=int, default=0, help="jobs side by side (default: one a device)")
    add("--short", action="store_true", help="about 90 s")
    add("--real", action="store_true", help="this machine's devices: compiles and times; slow")
    add("--home", type=Path, help="keep the state there")
    options = parser.parse_args()
    options.iterations = options.iterations or (3 if options.short else 8)
    options.curve = options.curve or (6 if options.short else 20)
    options.seeds = (2 if options.short else 5) if options.seeds is None else options.seeds
    if options.criteria is None:
        options.criteria = "" if options.short else ",".join(CRITERIA)
    options.speed = options.speed or (12.0 if options.real else 60.0)
    jobs = len(options.algorithms.split(",")) * len(options.tasks.split(","))
    options.devices = 0 if options.real else options.devices or min(jobs, 15)
    options.at_once = options.at_once or options.devices or 1
    unknown = [name for name in options.tasks.split(",") if name not in MODELLED]
    if unknown:
        parser.error(f"no simulated kernels of {', '.join(unknown)}: one of {', '.join(MODELLED)}")
    if strange := [name for name in options.criteria.split(",") if name and name not in CRITERIA]:
        parser.error(f"Table 9 has no criterion {', '.join(strange)}: one of {', '.join(CRITERIA)}")
    if min(options.iterations, options.curve, options.speed, options.at_once) <= 0 or options.devices < 0:
        parser.error("iterations, speed, devices and jobs must be positive")
    return options


def main() -> None:
    """Everything up, the parts, the figures."""
    options = parse()
    if options.real:
        print("REAL devices of this machine: candidates are compiled, checked and timed; the model is synthetic")
    else:
        print(
            "SIMULATED devices: wait the paper's service times; speedups come from a model of designs, no kernel runs"
        )
    print(
        f"{machine()}; model at {options.speed:g}x the paper's token rate; {options.devices or 'real'} devices, "
        f"{options.at_once} jobs side by side; {options.iterations} timed iterations of {options.tasks}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="sg-search-") as folder:
        place = Place(options.home or Path(folder), options.speed, options.devices, short=options.seeds > 0)
        with system(place) as client:
            Benchmark(options, client, place).run()


if __name__ == "__main__":
    main()
