"""Jobs of the benchmark: submitted side by side, waited for, and measured from SQL."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from specgen.client import Client, JobSpec, problem
from specgen.store import Store
from specgen.types import IterationReason, Origin

POLL_S = 0.25


@dataclass(frozen=True)
class Run:
    """A job to be run. ``variant`` names its group in tables."""

    variant: str
    search: str
    task: str
    seed: int
    iterations: int
    speculation: bool
    termination: str = "historical_mean"
    llm: str = "default"


@dataclass(frozen=True)
class Measured:
    """What became of it."""

    run: Run
    state: str
    seconds: float  # first iteration opened -> last one closed, roles' calls between them included
    iterations: int
    profiles: int
    with_feedback: float  # share of iterations with at least one profile
    early: int
    tokens: int  # of main generations, forks and roles: prompts and completions
    fresh_tokens: int  # the same without prompts served from the prefix cache
    curve: tuple[float, ...]  # best speedup after each iteration; 0 while there is none
    first: float  # speedup of the first valid kernel; 0 where there is none
    tokens_per_s: float = 0.0  # of main streams that were not cut off, from their first token on

    @property
    def best(self) -> float:
        """At the end."""
        return self.curve[-1] if self.curve else 0.0

    def after(self, iterations: int) -> float:
        """Best speedup after that many."""
        return self.curve[min(iterations, len(self.curve)) - 1] if self.curve else 0.0


def run_all(
    client: Client, runs: Sequence[Run], *, at_once: int, policy: dict[str, str | int | float | bool]
) -> list[Measured]:
    """So many side by side, in order; a line for each that has ended."""
    waiting, running, done = list(runs), dict[str, Run](), list[Measured]()
    while waiting or running:
        while waiting and len(running) < at_once:
            run = waiting.pop(0)
            running[client.submit(_spec(run, policy))] = run
        time.sleep(POLL_S)
        for job_id, run in list(running.items()):
            if client.job(job_id).state.terminal:
                del running[job_id]
                done.append(measure(client.store, job_id, run))
                print(line(done[-1]), flush=True)
    return done


def _spec(run: Run, policy: dict[str, str | int | float | bool]) -> JobSpec:
    return JobSpec(
        problem=problem(run.task),
        llm_profile=run.llm,
        model="specgen-synthetic",
        search=run.search,
        termination=run.termination,
        iterations=run.iterations,
        speculation=run.speculation,
        seed=run.seed,
        policy=policy,
    )


def measure(store: Store, job_id: str, run: Run) -> Measured:
    """From SQL."""
    job, iterations, tokens = store.job(job_id), store.iterations(job_id), store.tokens(job_id)
    found = [(one.iteration, one.result.speedup) for one in store.evaluated(job_id) if one.result.profile is not None]
    valid = [(index, speedup) for index, speedup in found if speedup is not None]
    closed = [one for one in iterations if one.closed_at is not None]
    with_any = {index for index, _ in valid}
    usages = (tokens.main, tokens.forks, tokens.side)
    everything = sum(one.prompt_tokens + one.completion_tokens for one in usages)
    return Measured(
        run=run,
        state=job.state.value,
        seconds=(closed[-1].closed_at - closed[0].opened_at).total_seconds() if closed else 0.0,  # type: ignore[operator]
        iterations=len(closed),
        profiles=len(valid),
        with_feedback=statistics.fmean(one.iteration in with_any for one in closed) if closed else 0.0,
        early=sum(one.reason is IterationReason.EARLY for one in closed),
        tokens=everything,
        fresh_tokens=everything - sum(one.cached_tokens for one in usages),
        curve=tuple(max((s for i, s in valid if i <= one.iteration), default=0.0) for one in closed),
        first=valid[0][1] if valid else 0.0,
        tokens_per_s=_rate(store, job_id),
    )


def _rate(store: Store, job_id: str) -> float:
    """What the client got, which is less than what the server was set to where the machine did not keep up."""
    tokens, seconds = 0, 0.0
    for one in store.generations(job_id):
        if one.kind is Origin.MAIN and one.usage.reported and one.first_token_at and one.ended_at:
            tokens += one.usage.completion_tokens
            seconds += (one.ended_at - one.first_token_at).total_seconds()
    return tokens / seconds if seconds else 0.0


def line(done: Measured) -> str:
    """For the reader who waits."""
    run = done.run
    how = f"speculation, {run.termination}" if run.speculation else "no speculation"
    return (
        f"{run.variant:<12} {run.task:<3} seed {run.seed} {how:<28} {done.state}: {done.seconds:6.1f} s, "
        f"{done.profiles} profiles in {done.iterations} iterations ({done.early} ended early), "
        f"{done.tokens:,} tokens ({done.fresh_tokens:,} not cached), best {done.best:.2f}x"
    )
