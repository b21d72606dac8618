"""A refusal's rule and number are in the outcome, in the request's row and in SQL, as the judge gave them."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from specgen.types import EvaluationResult, Phase, Status
from tests.store.conftest import Running


def test_a_refusals_rule_and_number_are_in_sql(job: Running, url: str) -> None:
    rule = "work_outside_window: 12.00 ms of CPU time, allowed 0.60"
    error = "rejected by rule work_outside_window (12.00 ms of CPU time, allowed 0.60): it computed between runs"
    request = job.request(job.candidate("a = 1"), Phase.VALIDATE)
    result = EvaluationResult(
        request_id=request.request_id, candidate_id=request.candidate_id, phase=Phase.VALIDATE,
        status=Status.REJECTED, rule=rule, error=error,
    )  # fmt: skip
    assert job.store.record_result(result, job.id, token=job.token)
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            for table in ("outcomes", "requests"):
                rows = connection.execute(text(f"SELECT status, rule, error FROM {table}")).all()
                assert [tuple(row) for row in rows] == [("rejected", rule, error)]
    finally:
        engine.dispose()
    stored = job.store.outcome_of(job.id, request.candidate_id)
    assert stored is not None
    assert (stored.rule, stored.error) == (rule, error)
