"""What clients, the CLI, reports and a resumed iteration read. No writes here; people's own SQL is in docs/sql.md."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Select, func, select

from specgen.store import tables as t
from specgen.store.database import Database, now
from specgen.store.iterations import iteration_record, usage_of
from specgen.store.outcomes import candidate_record, evaluation_result
from specgen.store.records import (
    BestKernel,
    EvaluatedRecord,
    GenerationRow,
    IterationRecord,
    JobSummary,
    SchedulerDecision,
    TokenTotals,
    TriggerRecord,
)
from specgen.store.wishes import Wishes
from specgen.types import IterationReason, JobState, Origin, TriggerClass, Usage


class Queries(Wishes):
    """The reading part of `Store`. An unknown job gives empty answers, except in `summary`."""

    def iterations(self, job_id: str) -> tuple[IterationRecord, ...]:
        """In order; the last may be open."""
        query = select(t.iterations).where(t.iterations.c.job_id == job_id).order_by(t.iterations.c.iteration)
        return tuple(iteration_record(row) for row in self._rows(query))

    def history(self, job_id: str, *, without: int | None = None) -> tuple[float, ...]:
        """H: 0, then the speedups of valid, profiled kernels in the order in which their profiles came back; perhaps
        ``without`` those of one iteration."""
        outcomes = t.outcomes.c
        query = (
            select(outcomes.speedup)
            .where(outcomes.job_id == job_id, outcomes.speedup.is_not(None))
            .order_by(outcomes.id)
        )
        if without is not None:
            query = query.where(outcomes.iteration != without)
        return (0.0, *(float(row.speedup) for row in self._rows(query)))

    def evaluated(self, job_id: str, iteration: int | None = None) -> tuple[EvaluatedRecord, ...]:
        """Candidates that have a final outcome, in the order in which it became final; of the job or one iteration."""
        candidates = t.candidates
        query = select(t.outcomes).where(t.outcomes.c.job_id == job_id).order_by(t.outcomes.c.id)
        if iteration is not None:
            query = query.where(t.outcomes.c.iteration == iteration)
        with self._read() as connection:
            rows = connection.execute(query).all()
            sources = select(candidates).where(candidates.c.job_id == job_id)
            known = {row.candidate_id: candidate_record(row) for row in connection.execute(sources)}
        return tuple(
            EvaluatedRecord(known[row.candidate_id], row.iteration, Origin(row.origin), evaluation_result(row))
            for row in rows
        )

    def best(self, job_id: str) -> BestKernel | None:
        """The job's answer: the fastest valid kernel, the earliest of equals; None if there is none."""
        outcomes, candidates = t.outcomes.c, t.candidates.c
        same = (candidates.job_id == outcomes.job_id) & (candidates.candidate_id == outcomes.candidate_id)
        query = (
            select(outcomes.candidate_id, candidates.source, outcomes.speedup, outcomes.iteration, outcomes.origin)
            .join(t.candidates, same)
            .where(outcomes.job_id == job_id, outcomes.speedup.is_not(None))
            .order_by(outcomes.speedup.desc(), outcomes.id)
            .limit(1)
        )
        rows = self._rows(query)
        if not rows:
            return None
        row = rows[0]
        return BestKernel(row.candidate_id, row.source, row.speedup, row.iteration, Origin(row.origin))

    def triggers(self, job_id: str) -> tuple[TriggerRecord, ...]:
        """In the order in which they fired."""
        query = select(t.triggers).where(t.triggers.c.job_id == job_id).order_by(t.triggers.c.id)
        return tuple(
            TriggerRecord(
                id=row.id,
                iteration=row.iteration,
                kind=TriggerClass(row.trigger_class),
                position=row.position,
                text=row.text,
                launched=row.launched,
                fired_at=row.fired_at,
            )
            for row in self._rows(query)
        )

    def generations(self, job_id: str, iteration: int | None = None) -> tuple[GenerationRow, ...]:
        """Mains and forks with their texts, in the order in which they started."""
        query = select(t.generations).where(t.generations.c.job_id == job_id).order_by(t.generations.c.id)
        if iteration is not None:
            query = query.where(t.generations.c.iteration == iteration)
        return tuple(_generation(row) for row in self._rows(query))

    def over(self, scopes: Collection[str]) -> set[str]:
        """Those of the scopes (``<job>/<iteration>``) that have no business in the pool any more: their iteration is
        closed, or their job has ended or is unknown. An iteration that is not stored yet is not over."""
        named = {scope: scope.rpartition("/") for scope in scopes}
        jobs, iterations = t.jobs.c, t.iterations.c
        ids = {job for job, _, _ in named.values()}
        states = {
            row.id: JobState(row.state) for row in self._rows(select(jobs.id, jobs.state).where(jobs.id.in_(ids)))
        }
        closed = select(iterations.job_id, iterations.iteration)
        closed = closed.where(iterations.job_id.in_(ids), iterations.closed_at.is_not(None))
        done = {f"{row.job_id}/{row.iteration}" for row in self._rows(closed)}
        return {
            scope for scope, (job, _, _) in named.items() if job not in states or states[job].terminal or scope in done
        }

    def decisions(self, limit: int = 100) -> tuple[SchedulerDecision, ...]:
        """The latest reallocations, oldest first."""
        decisions = t.scheduler_decisions
        rows = self._rows(select(decisions).order_by(decisions.c.id.desc()).limit(limit))
        return tuple(
            SchedulerDecision(
                scope=row.scope,
                policy=row.policy,
                devices=row.devices,
                validators=row.validators,
                profilers=row.profilers,
                max_validate=row.max_validate,
                max_profile=row.max_profile,
                moved=row.moved,
                dropped=row.dropped,
            )
            for row in reversed(rows)
        )

    def tokens(self, job_id: str) -> TokenTotals:
        """What the job has spent so far, by main generations, forks and side calls."""
        with self._read() as connection:
            return TokenTotals(
                main=_spent(connection, t.generations, job_id, kind=Origin.MAIN.value),
                forks=_spent(connection, t.generations, job_id, kind=Origin.FORK.value),
                side=_spent(connection, t.side_calls, job_id),
            )

    def cost(self, job_id: str) -> float | None:
        """What the job has cost so far, in the unit of its profile's price; None where nothing had a price."""
        costs = [
            self._rows(select(func.sum(table.c.cost).label("cost")).where(table.c.job_id == job_id))[0].cost
            for table in (t.generations, t.side_calls)
        ]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known else None

    def summary(self, job_id: str) -> JobSummary:
        """The job at a glance. Raises UserError for an unknown job."""
        job, iterations, best = self.job(job_id), self.iterations(job_id), self.best(job_id)
        outcomes = t.outcomes.c
        by_status = (
            select(outcomes.status, func.count().label("number"))
            .where(outcomes.job_id == job_id)
            .group_by(outcomes.status)
            .order_by(outcomes.status)
        )
        candidates = self._rows(select(func.count().label("number")).where(t.candidates.c.job_id == job_id))
        started = job.started_at or job.created_at
        return JobSummary(
            job=job,
            iterations_closed=sum(iteration.closed for iteration in iterations),
            early_terminations=sum(iteration.reason is IterationReason.EARLY for iteration in iterations),
            candidates=candidates[0].number,
            profiled=len(self.history(job_id)) - 1,
            best_speedup=None if best is None else best.speedup,
            tokens=self.tokens(job_id),
            cost=self.cost(job_id),
            elapsed_s=((job.finished_at or now()) - started).total_seconds(),
            statuses={row.status: row.number for row in self._rows(by_status)},
        )

    def _rows(self: Database, query: Select[Any]) -> list[Any]:
        with self._read() as connection:
            return list(connection.execute(query))


def _spent(connection: Connection, table: Any, job_id: str, kind: str | None = None) -> Usage:
    columns = ("prompt_tokens", "cached_tokens", "reasoning_tokens", "completion_tokens")
    sums = [func.coalesce(func.sum(table.c[name]), 0).label(name) for name in columns]
    unreported = func.count().filter(table.c.usage_reported.is_(False))
    query = select(*sums, (unreported == 0).label("usage_reported")).where(table.c.job_id == job_id)
    if kind is not None:
        query = query.where(table.c.kind == kind)
    return usage_of(connection.execute(query).one())


def _generation(row: Any) -> GenerationRow:
    return GenerationRow(
        id=row.id,
        iteration=row.iteration,
        kind=Origin(row.kind),
        trigger_id=row.trigger_id,
        seed=row.seed,
        model=row.model,
        prefix_chars=row.prefix_chars,
        started_at=row.started_at,
        first_token_at=row.first_token_at,
        ended_at=row.ended_at,
        finish_reason=row.finish_reason or "",
        usage=usage_of(row),
        reasoning=row.reasoning,
        content=row.content,
        row_key=row.row_key or "",
    )
