"""The same jobs with and without speculation, on this machine's pool and the synthetic model server.

    python -m benchmarks.speculation [--problems T4,T12] [--iterations 8] [--speed 12] [--seeds 1]

Both kinds run one after the other on the same pool with the same seeds, so their ratio is of one run. The model is
synthetic: its trace lengths, error rates and prefix conditioning are set from the paper (docs/model-server.md); builds,
validations and profiles are real. Printed per job, then as geometric means over the jobs: end-to-end time, profiles
per iteration, tokens; and, from SQL, what became of the forks.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import figure, machine
from specgen.client import Client, JobSpec, problem
from specgen.report.table import iteration_rows
from specgen.runtime.stack import Stack, Synthetic
from specgen.settings import get_settings
from specgen.store import Store
from specgen.types import IterationReason, Origin


@dataclass(frozen=True)
class JobFigures:
    """One job, measured."""

    seconds: float  # sum over its iterations
    profiles_per_iteration: float
    with_feedback: float  # share of iterations with at least one profile
    tokens: int  # completion + prompt not served from the prefix cache
    all_tokens: int  # completion + prompt
    best: float
    early: int
    iterations: int
    forks: int
    trigger_to_feedback: list[float]  # seconds, fork's start -> its final outcome


def measure(store: Store, job_id: str) -> JobFigures:
    """From SQL."""
    rows, evaluated, generations = iteration_rows(store, job_id), store.evaluated(job_id), store.generations(job_id)
    started = {g.id: g.started_at for g in generations if g.kind is Origin.FORK}
    waits = [
        e.result.finished_at - started[e.candidate.generation_id].timestamp()
        for e in evaluated
        if e.candidate.generation_id in started and e.result.finished_at
    ]
    best = store.best(job_id)
    return JobFigures(
        seconds=sum(row.seconds for row in rows),
        profiles_per_iteration=statistics.fmean(row.valid for row in rows),
        with_feedback=statistics.fmean(row.valid > 0 for row in rows),
        tokens=sum(g.usage.completion_tokens + g.usage.prompt_tokens - g.usage.cached_tokens for g in generations),
        all_tokens=sum(g.usage.completion_tokens + g.usage.prompt_tokens for g in generations),
        best=best.speedup if best else 0.0,
        early=sum(row.reason == IterationReason.EARLY for row in rows),
        iterations=len(rows),
        forks=len(started),
        trigger_to_feedback=waits,
    )


def run_job(client: Client, name: str, *, speculation: bool, iterations: int, seed: int) -> JobFigures:
    """Submit, wait, measure, print a line."""
    spec = JobSpec(
        problem=problem(name), model="specgen-synthetic", iterations=iterations, speculation=speculation, seed=seed
    )
    job_id = client.submit(spec)
    job = client.wait(job_id)
    done = measure(client.store, job_id)
    print(
        f"{name} seed {seed} {'with   ' if speculation else 'without'} speculation: {job.state} {done.seconds:7.1f} s  "
        f"{done.profiles_per_iteration:.2f} profiles/iteration  early {done.early}/{done.iterations}  "
        f"forks {done.forks}  tokens {done.tokens:,} ({done.all_tokens:,} with cached)  best {done.best:.2f}x",
        flush=True,
    )
    return done


def geometric(values: list[float]) -> float:
    """Geometric mean; zeros make it zero."""
    return math.exp(statistics.fmean(map(math.log, values))) if all(v > 0 for v in values) else 0.0


def report(pairs: list[tuple[JobFigures, JobFigures]]) -> None:
    """The figures; each pair is (without, with)."""
    time = geometric([base.seconds / spec.seconds for base, spec in pairs])
    feedback = sum(s.profiles_per_iteration for _, s in pairs) / max(
        1e-9, sum(b.profiles_per_iteration for b, _ in pairs)
    )
    tokens = geometric([spec.tokens / base.tokens for base, spec in pairs])
    everything = geometric([spec.all_tokens / base.all_tokens for base, spec in pairs])
    figure("end-to-end speedup of speculation", time, "x", ">= 2.0", time >= 2.0)
    figure("profiles per iteration, ratio", feedback, "x", ">= 2.5", feedback >= 2.5)
    figure("tokens, ratio", tokens, "x", "<= 1.0", tokens <= 1.0)
    figure("tokens with cached ones, ratio", everything, "x", "printed", None)
    share = statistics.fmean(s.with_feedback for _, s in pairs)
    base = statistics.fmean(b.with_feedback for b, _ in pairs)
    figure("iterations with feedback, with speculation", share, "share", "printed", None)
    figure("iterations with feedback, without", base, "share", "printed", None)
    best = geometric([s.best / b.best for b, s in pairs if b.best and s.best] or [0.0])
    figure("best kernel, ratio", best, "x", "printed", None)
    early = sum(s.early for _, s in pairs) / sum(s.iterations for _, s in pairs)
    figure("iterations ended early", early, "share", "printed", None)
    if waits := sorted(w for _, s in pairs for w in s.trigger_to_feedback):
        figure("trigger to feedback p50", waits[len(waits) // 2], "s", "printed", None)
        figure("trigger to feedback p90", waits[int(len(waits) * 0.9)], "s", "printed", None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="T4,T12")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--speed", type=float, default=12.0, help="of the model, times the paper's token rate")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--home", default="", help="keep the state there (default: a temporary folder)")
    options = parser.parse_args()
    print(f"{machine()}; synthetic model at {options.speed:g}x the paper's token rate", flush=True)
    with contextlib.ExitStack() as stack:
        home = options.home or stack.enter_context(tempfile.TemporaryDirectory(prefix="sg-bench-"))
        os.environ["SPECGEN_HOME"] = str(Path(home).resolve())
        get_settings.cache_clear()
        settings = get_settings()
        stack.enter_context(Stack(settings, synthetic=Synthetic(options.speed, 1)))
        client = stack.enter_context(contextlib.closing(Client(settings)))
        pairs = []
        for name in options.problems.split(","):
            for seed in range(1, options.seeds + 1):
                base, spec = (
                    run_job(client, name, speculation=on, iterations=options.iterations, seed=seed)
                    for on in (False, True)
                )
                pairs.append((base, spec))
    report(pairs)


if __name__ == "__main__":
    main()
