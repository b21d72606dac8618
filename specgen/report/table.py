"""The table that a job ends with: one row an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from specgen.store import Store
from specgen.types import Origin


@dataclass(frozen=True)
class IterationRow:
    """One iteration in figures."""

    index: int
    reason: str
    chosen_speedup: float | None
    valid: int
    outcomes: int
    forks: int
    reasoning_chars: int
    tokens: int
    seconds: float


def iteration_rows(store: Store, job_id: str) -> list[IterationRow]:
    """In order; the last iteration may be open."""
    evaluated, generations = store.evaluated(job_id), store.generations(job_id)
    speedups = {e.candidate.candidate_id: e.result.speedup for e in evaluated}
    rows = []
    for record in store.iterations(job_id):
        mine = [e.result for e in evaluated if e.iteration == record.iteration]
        streams = [g for g in generations if g.iteration == record.iteration]
        valid = sum(r.speedup is not None for r in mine)
        rows.append(
            IterationRow(
                index=record.iteration,
                reason=record.reason.value if record.reason else "open",
                chosen_speedup=speedups.get(record.chosen_candidate) if record.chosen_candidate else None,
                valid=valid,
                outcomes=len(mine),
                forks=sum(g.kind is Origin.FORK for g in streams),
                reasoning_chars=sum(len(g.reasoning) for g in streams if g.kind is Origin.MAIN),
                tokens=sum(g.usage.prompt_tokens + g.usage.completion_tokens for g in streams),
                seconds=(record.closed_at - record.opened_at).total_seconds() if record.closed_at else 0.0,
            )
        )
    return rows


def job_table(store: Store, job_id: str) -> Table:
    """Why each iteration ended, k*, best so far, feedback, forks, tokens, time."""
    table = Table(title=f"job {job_id}")
    for column in ("iteration", "ended by", "k*", "best", "valid", "forks", "reasoning", "tokens", "seconds"):
        table.add_column(column, justify="left" if column == "ended by" else "right")
    best = 0.0
    for row in iteration_rows(store, job_id):
        best = max(best, row.chosen_speedup or 0.0)
        table.add_row(
            str(row.index + 1),
            row.reason,
            f"{row.chosen_speedup:.2f}x" if row.chosen_speedup else "-",
            f"{best:.2f}x" if best else "-",
            f"{row.valid} of {row.outcomes}",
            str(row.forks),
            f"{row.reasoning_chars:,}",
            f"{row.tokens:,}",
            f"{row.seconds:.1f}",
        )
    return table
