"""Candidates and what became of them. The only writer of results.

One row per request, one FINAL outcome per candidate of a job, however often it was evaluated. Final is: a candidate's
or a problem's failure in either phase, and any result of profiling that is not our own fault. A valid validation waits
for its profile; ``aborted`` and ``infra_error`` leave the candidate open. Not here: the verdict (specgen.evaluation).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, or_, select, update

from specgen.store import tables as t
from specgen.store.database import Database, from_unix, now
from specgen.store.records import CandidateRecord, RequestRecord, UnfinishedRecord
from specgen.types import (
    EvaluationRequest,
    EvaluationResult,
    Origin,
    Phase,
    Profile,
    Status,
    normalise_source,
    source_id,
)

OPEN = ("queued", "dropped", Status.ABORTED.value, Status.INFRA_ERROR.value)  # a later result may overwrite these


def is_final(phase: Phase, status: Status) -> bool:
    """Whether a result of that phase ends the candidate's way."""
    waits_for_profile = phase is Phase.VALIDATE and status in (Status.VALID, Status.PROFILER_UNAVAILABLE)
    return status.final and not waits_for_profile


class Outcomes(Database):
    """The part of `Store` about candidates, requests and outcomes."""

    def add_candidate(
        self,
        job_id: str,
        iteration: int,
        source: str,
        *,
        origin: Origin,
        generation_id: int | None = None,
        trigger_id: int | None = None,
        token: int,
    ) -> CandidateRecord:
        """Store a kernel source under its sha256; ``is_new`` is False where the job has it already. Raises StaleLease.

        What is stored (and built) is the normalised source, so that the name is the text's.
        """
        name = source_id(source)
        row = {
            "job_id": job_id,
            "candidate_id": name,
            "iteration": iteration,
            "origin": origin.value,
            "source": normalise_source(source),
            "generation_id": generation_id,
            "trigger_id": trigger_id,
            "created_at": now(),
        }
        with self._fenced(job_id, token) as connection:
            is_new = self._insert_new(connection, t.candidates, row)
            stored = connection.execute(select(t.candidates).where(*_of(t.candidates, job_id, name))).one()
        return candidate_record(stored, is_new)

    def add_request(self, request: EvaluationRequest, *, token: int) -> bool:
        """Store that a device is asked, before it is; False if that request is known. Raises StaleLease."""
        row = {
            "request_id": request.request_id,
            "job_id": request.job_id,
            "iteration": request.iteration,
            "candidate_id": request.candidate_id,
            "phase": request.phase.value,
            "origin": request.origin.value,
            "status": "queued",
            "enqueued_at": from_unix(request.enqueued_at) if request.enqueued_at else now(),
        }
        with self._fenced(request.job_id, token) as connection:
            return self._insert_new(connection, t.requests, row)

    def record_result(self, result: EvaluationResult, job_id: str, *, token: int) -> bool:
        """Store a result; True if it became the candidate's final outcome, exactly once per candidate.

        The first final result stands: a repetition of it, or of the evaluation, changes nothing. Raises StaleLease,
        ValueError for a request that was never stored.
        """
        columns = _result_columns(result)
        with self._fenced(job_id, token) as connection:
            request = self._request(connection, job_id, result)
            if request.status in OPEN:
                stored = update(t.requests).where(t.requests.c.request_id == result.request_id)
                connection.execute(stored.values(status=result.status.value, **columns))
            if not is_final(result.phase, result.status):
                return False
            outcome = {
                "job_id": job_id,
                "candidate_id": result.candidate_id,
                "iteration": request.iteration,
                "request_id": result.request_id,
                "phase": result.phase.value,
                "origin": request.origin,
                "status": result.status.value,
                "recorded_at": now(),
                **columns,
            }
            return self._insert_new(connection, t.outcomes, outcome)

    def _request(self, connection: Connection, job_id: str, result: EvaluationResult) -> Row[Any]:
        row = connection.execute(select(t.requests).where(t.requests.c.request_id == result.request_id)).one_or_none()
        told = (job_id, result.candidate_id, result.phase.value)
        if row is None or (row.job_id, row.candidate_id, row.phase) != told:
            raise ValueError(f"request {result.request_id} of job {job_id} is not the one that was stored")
        return row

    def outcome_of(self, job_id: str, candidate_id: str) -> EvaluationResult | None:
        """The candidate's final outcome, None while it has none."""
        with self._read() as connection:
            query = select(t.outcomes).where(*_of(t.outcomes, job_id, candidate_id))
            row = connection.execute(query).one_or_none()
        return None if row is None else evaluation_result(row)

    def validation_of(self, job_id: str, candidate_id: str) -> EvaluationResult | None:
        """A validation that found the candidate valid, None if there is none: after a crash it goes straight on to
        profiling."""
        valid = (t.requests.c.phase == Phase.VALIDATE.value, t.requests.c.status == Status.VALID.value)
        query = select(t.requests).where(*_of(t.requests, job_id, candidate_id), *valid).limit(1)
        with self._read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else evaluation_result(row)

    def unfinished(self, job_id: str, iteration: int) -> tuple[UnfinishedRecord, ...]:
        """Candidates that an iteration found or asked for and that have no outcome, each with its unanswered request,
        if there is one: what an attempt that died left behind. In the order in which they were found."""
        candidates, outcomes, requests = t.candidates.c, t.outcomes.c, t.requests.c
        asked = select(requests.candidate_id).where(requests.job_id == job_id, requests.iteration == iteration)
        settled = select(outcomes.candidate_id).where(outcomes.job_id == job_id)
        query = select(t.candidates).where(
            candidates.job_id == job_id,
            or_(candidates.iteration == iteration, candidates.candidate_id.in_(asked)),
            candidates.candidate_id.not_in(settled),
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(candidates.id)).all()
        waiting = {r.candidate_id: r for r in self.requests(job_id, iteration) if r.status == "queued"}
        return tuple(
            UnfinishedRecord(
                candidate_record(row),
                validated=self.validation_of(job_id, row.candidate_id) is not None,
                request=waiting.get(row.candidate_id),
            )
            for row in rows
        )

    def requests(self, job_id: str, iteration: int | None = None) -> tuple[RequestRecord, ...]:
        """The job's requests (or one iteration's) in the order in which they were made."""
        query = select(t.requests).where(t.requests.c.job_id == job_id)
        if iteration is not None:
            query = query.where(t.requests.c.iteration == iteration)
        with self._read() as connection:
            rows = connection.execute(query.order_by(t.requests.c.enqueued_at, t.requests.c.request_id))
            return tuple(_request_record(row) for row in rows)


def _of(table: Any, job_id: str, candidate_id: str) -> tuple[Any, Any]:
    return table.c.job_id == job_id, table.c.candidate_id == candidate_id


def candidate_record(row: Any, is_new: bool = False) -> CandidateRecord:
    """A row of ``candidates`` as a record."""
    return CandidateRecord(
        job_id=row.job_id,
        candidate_id=row.candidate_id,
        iteration=row.iteration,
        source=row.source,
        origin=Origin(row.origin),
        generation_id=row.generation_id,
        trigger_id=row.trigger_id,
        created_at=row.created_at,
        is_new=is_new,
    )


def _request_record(row: Any) -> RequestRecord:
    return RequestRecord(
        request_id=row.request_id,
        job_id=row.job_id,
        iteration=row.iteration,
        candidate_id=row.candidate_id,
        phase=Phase(row.phase),
        origin=Origin(row.origin),
        status=row.status,
        enqueued_at=row.enqueued_at,
    )


PLAIN = (
    "error",
    "rule",
    "speedup",
    "speedup_std",
    "max_abs_error",
    "build_route",
    "queue_s",
    "build_s",
    "device_s",
    "worker",
    "device",
    "environment",
)  # fields of EvaluationResult that are columns of the same name and type


def _result_columns(result: EvaluationResult) -> dict[str, object]:
    columns: dict[str, object] = {name: getattr(result, name) for name in PLAIN}
    columns["labels"] = list(result.labels)
    columns["profile"] = None if result.profile is None else result.profile.model_dump(mode="json")
    columns["finished_at"] = from_unix(result.finished_at) if result.finished_at else now()
    return columns


def evaluation_result(row: Any) -> EvaluationResult:
    """A row of ``outcomes``, or of ``requests`` once answered, as the result it came from."""
    return EvaluationResult(
        request_id=row.request_id,
        candidate_id=row.candidate_id,
        phase=Phase(row.phase),
        status=Status(row.status),
        labels=tuple(row.labels),
        profile=None if row.profile is None else Profile.model_validate(row.profile),
        finished_at=row.finished_at.timestamp(),
        **{name: getattr(row, name) for name in PLAIN},
    )
