"""R1–R5, R8, R9: faults while whole jobs run, from prompt to stored outcome, and the audit once they have ended."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from random import Random

from benchmarks.faults.audit import Findings, audit
from benchmarks.faults.cases import Case, Result
from benchmarks.faults.kills import role_of, strike
from benchmarks.faults.system import System
from benchmarks.faults.watch import blocked, stale_writes
from specgen.client import problem
from specgen.types import JobSpec, JobState, Origin

JOBS = 6  # at a time
ITERATIONS = 3
END_S = 240.0  # a job must end so long after the last fault: a wiped Redis is made up for within two minutes
SPACING_S = {  # between two faults; else 0.3 to 1.5
    "iteration": (2.0, 5.0),
    "scheduler": (1.0, 3.0),
    "killed": (2.0, 6.0),
    "wiped": (3.0, 8.0),
    "transaction": (0.05, 0.1),
}


class Jobs:
    """Some jobs at a time, new ones for those that end, until no more are wanted."""

    def __init__(self, system: System, seed: int) -> None:
        self.system, self.seed = system, seed
        self.ids: list[str] = []
        self._spec = JobSpec(problem=problem("T4"), model="specgen-synthetic", iterations=ITERATIONS)

    def top_up(self) -> None:
        """As many as belong."""
        while len(self.running()) < JOBS:
            spec = self._spec.model_copy(update={"seed": self.seed * 1000 + len(self.ids)})
            self.ids.append(self.system.client.submit(spec))

    def running(self) -> list[str]:
        """Those that have not ended."""
        return [name for name in self.ids if not self.system.client.job(name).state.terminal]


def faults(system: System, case: Case, result: Result, inject: Callable[[], str | None]) -> Jobs:
    """Inject until the case has as many as it wants, with jobs running all the time; then wait for them."""
    jobs, rng, begun = Jobs(system, case.index), case.rng, time.monotonic()
    low, high = SPACING_S.get(case.kind, (0.3, 1.5))
    tries = 0
    while result.faults < case.faults and tries < 1000 * case.faults:
        jobs.top_up()
        system.sleep(rng.uniform(low, high) if tries == 0 or result.schedule else 0.1)
        tries += 1
        at = time.monotonic() - begun
        if (told := inject()) is not None:
            result.faults += 1
            result.schedule.append(f"{at:.2f} s: {told}")
    if not system.wait(lambda: not jobs.running(), END_S, 0.3):
        result.notes.append(f"not ended {END_S:g} s after the last fault: {jobs.running()}")
    return jobs


def record(result: Result, found: Findings) -> None:
    """The audit's counts."""
    counts = asdict(found)
    result.notes += counts.pop("notes")
    for name, number in counts.items():
        result.counts[name] = result.count(name) + number


def kill_case(system: System, case: Case) -> Result:
    """R1, R2, R8: SIGKILL at random moments."""
    result, rng = Result(case.key, case.line, case.kind), case.rng
    spent = system.tokens()["completion"]

    jobs = faults(system, case, result, lambda: strike(system, case.kind, rng))
    record(result, audit(system, jobs.ids))
    if case.kind == "iteration":
        _repeated(system, jobs.ids, system.tokens()["completion"] - spent, result)
    return result


def _repeated(system: System, job_ids: list[str], served: int, result: Result) -> None:
    """R8: what the model server wrote beyond the attempts that stand, which are the last of each iteration."""
    needed = iterations = 0
    for job_id in job_ids:
        made = system.client.store.generations(job_id)
        last = {one.iteration: one.id for one in made if one.kind is Origin.MAIN}
        iterations += len(last)
        needed += sum(one.usage.completion_tokens for one in made if one.id >= last.get(one.iteration, one.id))
    result.counts |= {"tokens_served": served, "tokens_needed": needed, "iterations": iterations}
    result.counts["reruns"] = reruns(system, job_ids)


def reruns(system: System, job_ids: list[str]) -> int:
    """Iterations that were begun again, each as often as it was."""
    mains: Counter[tuple[str, int]] = Counter()
    for job_id in job_ids:
        mains.update(
            (job_id, one.iteration) for one in system.client.store.generations(job_id) if one.kind is Origin.MAIN
        )
    return sum(mains.values()) - len(mains)


def valkey_case(system: System, case: Case) -> Result:
    """R3: the server is killed and started again, with its append-only file or (``wiped``) without anything."""
    result, rng, wipe = Result(case.key, case.line, case.kind), case.rng, case.kind == "wiped"

    def inject() -> str:
        away_s = rng.uniform(0.0, 2.0)
        system.kill_valkey(wipe=wipe, away_s=away_s)
        return f"Valkey {'wiped' if wipe else 'killed'}, away {away_s:.2f} s"

    jobs = faults(system, case, result, inject)
    record(result, audit(system, jobs.ids, streams=not wipe))
    return result


def postgres_case(system: System, case: Case) -> Result:
    """R4: an immediate stop, or SIGKILL of the postmaster."""
    result, rng = Result(case.key, case.line, case.kind), case.rng

    def inject() -> str:
        number, away_s = rng.choice((signal.SIGQUIT, signal.SIGKILL)), rng.uniform(0.0, 2.0)
        system.kill_postgres(number, away_s)
        return f"Postgres {number.name}, away {away_s:.2f} s"

    jobs = faults(system, case, result, inject)
    record(result, audit(system, jobs.ids))
    return result


def zombie_case(system: System, case: Case) -> Result:
    """R5: a worker sleeps (SIGSTOP) past its leases, others take over, it wakes (SIGCONT) and goes on."""
    result, rng = Result(case.key, case.line, case.kind), case.rng

    def inject() -> str | None:
        if case.kind == "device":
            return _device_zombie(system, rng, result)
        return _iteration_zombie(system, rng, result, within=case.kind == "transaction")

    jobs = faults(system, case, result, inject)
    record(result, audit(system, jobs.ids))
    stale = stale_writes(system.client.store.engine, jobs.ids)
    result.counts["stale_writes"] = len(stale)
    result.notes += stale
    return result


def _iteration_zombie(system: System, rng: Random, result: Result, *, within: bool) -> str | None:
    """``within``: it falls asleep in the middle of a transaction, whose locks it keeps."""
    name = f"iterations-{rng.randrange(system.size.iteration_workers)}"
    owner, store = name.replace("-", "") + "@", system.client.store
    mine = [job.id for job in store.jobs(JobState.RUNNING) if (job.lease_owner or "").startswith(owner)]
    if not mine:
        return None
    group = system.children[name].process.pid
    os.killpg(group, signal.SIGSTOP)
    if within and not blocked(store.engine, owner.removesuffix("@")):
        os.killpg(group, signal.SIGCONT)
        return None

    def taken() -> bool:
        now = [store.job(job_id) for job_id in mine]
        return all(job.state.terminal or not (job.lease_owner or owner).startswith(owner) for job in now)

    over = system.wait(taken, 45, 0.2)
    if not over:
        result.notes += blocked(store.engine)
    begun = time.monotonic()
    os.killpg(group, signal.SIGCONT)
    result.counts["zombies"] = result.count("zombies") + len(mine)
    if not over:
        result.notes.append(f"stuck: {name} slept 45 s and nobody took over {mine}")
    system.sleep(rng.uniform(1.0, 3.0))
    return f"{name} slept with {len(mine)} jobs, taken over: {over}, awake for {time.monotonic() - begun:.1f} s"


def _device_zombie(system: System, rng: Random, result: Result) -> str | None:
    busy = sorted(device.worker for device in system.view().devices if device.busy)
    if not busy:
        return None
    worker = rng.choice(busy)
    group = system.children[role_of(worker)].process.pid
    tag = system.redis.hget(system.keys.busy, worker)
    os.killpg(group, signal.SIGSTOP)
    over = system.wait(lambda: system.redis.hget(system.keys.busy, worker) != tag, 30, 0.2)
    system.sleep(rng.uniform(0.0, 1.0))
    os.killpg(group, signal.SIGCONT)
    result.counts["zombies"] = result.count("zombies") + 1
    if not over:
        result.notes.append(f"stuck: {worker} slept 30 s and nobody took its message")
    return f"{worker} slept, its message taken: {over}"


def drain_case(system: System, case: Case) -> Result:
    """R9: SIGTERM; the worker finishes what it does, ends and is started again."""
    result, rng = Result(case.key, case.line, case.kind), case.rng

    def inject() -> str | None:
        count = system.size.devices if case.kind == "device" else system.size.iteration_workers
        name = f"{'device' if case.kind == 'device' else 'iterations'}-{rng.randrange(count)}"
        child, begun = system.children[name], time.monotonic()
        child.process.terminate()
        if not system.wait(lambda: system.children[name] is not child, 60):
            result.notes.append(f"stuck: {name} did not end within 60 s of SIGTERM")
            os.killpg(child.process.pid, signal.SIGKILL)
        result.samples.append(time.monotonic() - begun)
        return f"{name} SIGTERM, ended after {time.monotonic() - begun:.2f} s with {child.process.poll()}"

    jobs = faults(system, case, result, inject)
    record(result, audit(system, jobs.ids))
    result.counts["reruns"] = reruns(system, jobs.ids)
    return result


POINTS: dict[str, dict[str, str]] = {  # points that are tried together -> the role that dies at each
    "points of requests": {
        "ticket.grabbed": "device-0",
        "evaluation.claimed": "device-1",
        "evaluation.publishing": "device-2",
        "put.stored": "iterations-0",
        "put.sent": "iterations-1",
        "roles.written": "scheduler",
    },
    "points of results": {
        "evaluation.published": "device-0",
        "ticket.acknowledging": "device-1",
        "result.storing": "iterations-0",
        "result.stored": "iterations-1",
    },
    "points of boundaries": {"boundary.storing": "iterations-0", "boundary.stored": "iterations-1"},
    "points between iterations": {"iteration.sending": "iterations-0"},
}


def point_case(system: System, case: Case) -> Result:
    """R1, R2 at named points (docs/faults.md): for certain, at the first to third pass."""
    result, rng, begun = Result(case.key, case.line, case.kind), case.rng, time.monotonic()
    markers = {point: system.home / f"{point}-{case.index}-{time.monotonic_ns()}" for point in POINTS[case.kind]}
    for point, role in POINTS[case.kind].items():
        nth = rng.randint(1, 3)
        if role == "scheduler":
            nth = 1  # roles are seldom written
            system.redis.delete(system.keys.roles)
        system.restart(role, SPECGEN_CRASH_POINT=f"{point}:{nth}", SPECGEN_CRASH_ONCE=str(markers[point]))
        result.schedule.append(f"{role} dies at pass {nth} of {point}")
    jobs, deadline = Jobs(system, case.index), time.monotonic() + 60
    while not all(marker.exists() for marker in markers.values()) and time.monotonic() < deadline:
        jobs.top_up()
        system.sleep(0.2)
    for point, marker in markers.items():
        result.faults += marker.exists()
        if not marker.exists():
            result.notes.append(f"{point} was not passed often enough within 60 s")
    for role in POINTS[case.kind].values():
        system.extra.pop(role, None)
    if not system.wait(lambda: not jobs.running(), END_S, 0.3):
        result.notes.append(f"not ended {END_S:g} s after {time.monotonic() - begun:.0f} s: {jobs.running()}")
    record(result, audit(system, jobs.ids))
    return result
