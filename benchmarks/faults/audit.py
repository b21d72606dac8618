"""What the database, Redis and the process table say once all jobs of a case have ended.

Lost is: a job that did not end as it should, an iteration missing, a result that was published before another one that
was stored and is not stored itself, a candidate given up for faults of ours, and a valid kernel that was asked for but
has neither an outcome nor a dropped request. Doubled is: two outcomes of a candidate, or an iteration that was run
again after its boundary. What a boundary drops is not lost: that is what it is for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import func, select

from benchmarks.faults.system import System
from specgen.store import tables as t
from specgen.types import EvaluationResult, JobState

DROPPED = ("dropped", "aborted")
LATE = timedelta(seconds=5)  # a published result may wait so long for a controller that is at its boundary
EMPTY_WITHIN_S = 25.0


@dataclass
class Findings:
    """Counts of one case, and a line for everything that is wrong."""

    jobs: int = 0
    outcomes: int = 0
    requests: int = 0
    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    unfollowed: int = 0  # valid, of an attempt that died before it asked for the profile
    twice: int = 0  # requests that were executed more than once
    executed: int = 0
    leaks: int = 0
    notes: list[str] = field(default_factory=list)

    def fault(self, kind: str, text: str) -> None:
        """One more of ``lost``, ``doubled``, ``stuck`` or ``leaks``."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.notes.append(f"{kind}: {text}")


def audit(system: System, job_ids: list[str], *, streams: bool = True) -> Findings:
    """Everything of these jobs. ``streams``: Redis still has the results that were published (it was not wiped)."""
    found = Findings(jobs=len(job_ids))
    for job_id in job_ids:
        _job(system, job_id, found)
        _candidates(system, job_id, found)
        if streams:
            _published(system, job_id, found)
    _executions(system, set(job_ids), found)
    _leftovers(system, found)
    return found


def _job(system: System, job_id: str, found: Findings) -> None:
    job, iterations = system.client.job(job_id), system.client.store.iterations(job_id)
    if not job.state.terminal:
        found.fault("stuck", f"{job_id} is {job.state}, lease {job.lease_owner} until {job.lease_expires_at}")
        return
    if job.state is not JobState.DONE or len(iterations) < job.spec.iterations:
        found.fault("lost", f"{job_id} is {job.state}: {job.reason}")
    if [it.iteration for it in iterations if it.closed] != list(range(len(iterations))):
        found.fault("lost", f"{job_id}: iterations {[(it.iteration, it.closed) for it in iterations]}")
    closed = {it.iteration: it.closed_at for it in iterations}
    for made in system.client.store.generations(job_id):
        if (end := closed.get(made.iteration)) is not None and made.started_at > end:
            found.fault("doubled", f"{job_id}/{made.iteration}: a generation began after its boundary")


def _rows(system: System, query: Any) -> list[Any]:
    with system.client.store.engine.connect() as connection:
        return list(connection.execute(query))


def _candidates(system: System, job_id: str, found: Findings) -> None:
    outcomes, requests = t.outcomes.c, t.requests.c
    numbers = select(outcomes.candidate_id, func.count().label("number")).where(outcomes.job_id == job_id)
    settled = {row.candidate_id: row.number for row in _rows(system, numbers.group_by(outcomes.candidate_id))}
    found.outcomes += len(settled)
    for name, number in settled.items():
        if number > 1:
            found.fault("doubled", f"{job_id}: {number} outcomes of {name[:8]}")
    asked: dict[str, list[Any]] = defaultdict(list)
    for row in _rows(system, select(t.requests).where(requests.job_id == job_id).order_by(requests.enqueued_at)):
        asked[row.candidate_id].append(row)
        found.requests += 1
    closed = {it.iteration: it.closed_at for it in system.client.store.iterations(job_id)}
    for name, rows in asked.items():
        last = rows[-1]
        if name in settled or closed.get(last.iteration) is None or any(row.status in DROPPED for row in rows):
            continue
        where = f"{job_id}/{last.iteration} {name[:8]}: {[(row.phase, row.status) for row in rows]}"
        if last.status == "valid" and closed[last.iteration] - last.finished_at < LATE:
            continue  # the boundary came before its profile could be asked for
        if last.status == "valid":
            found.unfollowed += 1
            found.notes.append(f"unfollowed: {where}")
        else:
            found.fault("lost", where)


def _published(system: System, job_id: str, found: Findings) -> None:
    """Results reach the controller in the order of the stream: all before one that was stored must be stored, and
    those behind it unless the boundary came within five seconds of the last that was (the database may be away)."""
    requests = select(t.requests).where(t.requests.c.job_id == job_id)
    states = {row.request_id: row.status for row in _rows(system, requests)}
    recorded = select(t.outcomes.c.iteration, func.max(t.outcomes.c.recorded_at).label("at"))
    recorded = recorded.where(t.outcomes.c.job_id == job_id).group_by(t.outcomes.c.iteration)
    read = {row.iteration: row.at.timestamp() for row in _rows(system, recorded)}
    for iteration in system.client.store.iterations(job_id):
        stream = system.keys.results(f"{job_id}/{iteration.iteration}")
        entries = cast("Any", system.redis.xrange(stream))
        results = [(entry, EvaluationResult.model_validate_json(fields["result"])) for entry, fields in entries]
        stored = [states.get(result.request_id) not in ("queued", "dropped", None) for _, result in results]
        last = max((at for at, yes in enumerate(stored) if yes), default=-1)
        end = iteration.closed_at.timestamp() if iteration.closed_at else float("inf")
        for at, (entry, result) in enumerate(results):
            published = int(entry.partition("-")[0]) / 1000
            early = max(published, read.get(iteration.iteration, 0.0)) < end - LATE.total_seconds()
            if not stored[at] and (at < last or early):
                found.fault("lost", f"{stream} {entry} {result.phase} {result.status}: {states.get(result.request_id)}")


def _executions(system: System, jobs: set[str], found: Findings) -> None:
    starts: Counter[str] = Counter()
    for line in system.log.read_text().splitlines() if system.log.exists() else ():
        what, request, _, job, _ = line.split()
        starts[request] += what == "start" and job in jobs
    found.executed += sum(number > 0 for number in starts.values())
    found.twice += sum(number > 1 for number in starts.values())


def leftovers(system: System) -> dict[str, int]:
    """What must be gone once nothing runs: messages, leases, claims of starts and forks, processes without a parent."""
    client, prefix = system.redis, system.keys.prefix
    patterns = {"messages": "message", "start claims": "start", "scopes' tags": "scope", "lanes": "lane"}
    numbers = {
        name: sum(1 for _ in client.scan_iter(f"{prefix}:{key}:*", count=1000)) for name, key in patterns.items()
    }
    claims = [client.zcard(key) for key in client.scan_iter(f"{prefix}:claims*", count=1000)]
    numbers |= {
        "fork claims": sum(claims),
        "busy": client.hlen(system.keys.busy),
        "counted as waiting": sum(int(value) for value in client.hvals(f"{prefix}:lengths")),
        "leases": client.zcard("unacked_index"),
        "unacked": client.hlen("unacked"),
        "orphaned processes": len(system.orphans()),
    }
    for queue in ("validate", "profile", "iterations"):
        numbers[queue] = client.zcard(queue) if client.type(queue) == "zset" else client.llen(queue)
    return {name: number for name, number in numbers.items() if number}


def _leftovers(system: System, found: Findings) -> None:
    if not system.wait(lambda: not leftovers(system), EMPTY_WITHIN_S, 0.5):
        found.fault("leaks", f"left {EMPTY_WITHIN_S:g} s after the end: {leftovers(system)}")
