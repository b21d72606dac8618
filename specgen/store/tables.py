"""The schema, as SQLAlchemy Core tables. SQLite and Postgres get the same one.

Not here: how it came to be (alembic/versions), the views (alembic/views). A test holds the migrated schema and these
tables equal. Times are UTC; `UtcTime` refuses a naive one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
    false,
)
from sqlalchemy import Text as PlainText
from sqlalchemy.dialects.postgresql import JSONB

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMES)


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC time: ``timestamptz`` on Postgres; text without a zone, meaning UTC, on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times: they mean something else on every machine."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Always aware."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


def clean(text: str) -> str:
    """Without what Postgres cannot store and an LLM or a compiler can emit: NUL bytes and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def clean_json(value: Any) -> Any:
    """The same for every string inside; NaN and infinities, which are no JSON, become null."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value


class Text(TypeDecorator[str]):
    """Text as it was received, save what the database cannot hold (see `clean`)."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """On the way in."""
        return None if value is None else clean(value)


class Document(TypeDecorator[Any]):
    """JSON; ``jsonb`` on Postgres."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """The dialect's own."""
        postgres = dialect.name == "postgresql"
        return dialect.type_descriptor(JSONB(none_as_null=True) if postgres else JSON(none_as_null=True))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """On the way in."""
        return clean_json(value)


def _job_key(primary: bool = False) -> Column[str]:
    return Column("job_id", String(64), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, primary_key=primary)


def _of_iteration() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["job_id", "iteration"], ["iterations.job_id", "iterations.iteration"], ondelete="CASCADE"
    )


def _of_candidate() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["job_id", "candidate_id"], ["candidates.job_id", "candidates.candidate_id"], ondelete="CASCADE"
    )


def _row_key() -> Column[str]:
    """Made by the writer before its first attempt: a write whose commit was done but not acknowledged is tried again,
    and finds its own row. Null in rows from before revision 0003."""
    return Column("row_key", String(64))


def _result_columns() -> Sequence[Column[object]]:
    """What one evaluation gave: the fields of `EvaluationResult`. The same in ``requests`` and ``outcomes``."""
    return [
        Column("error", Text, nullable=False, server_default=""),
        Column("rule", Text, nullable=False, server_default=""),
        Column("speedup", Float),
        Column("speedup_std", Float),
        Column("profile", Document),
        Column("labels", Document),
        Column("max_abs_error", Float),
        Column("build_route", String(16)),
        Column("queue_s", Float),
        Column("build_s", Float),
        Column("device_s", Float),
        Column("worker", Text),
        Column("device", Text),
        Column("environment", Document),
        Column("finished_at", UtcTime),
    ]


jobs = Table(
    "jobs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("spec", Document, nullable=False),
    Column("problem", Text, nullable=False),
    Column("problem_sha256", String(64), nullable=False),
    Column("backend", String(16), nullable=False),
    Column("model", Text, nullable=False),
    Column("search", Text, nullable=False),
    Column("termination", Text, nullable=False),
    Column("max_iterations", Integer, nullable=False),
    Column("speculation", Boolean, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("wish", String(16), nullable=False, server_default=""),  # of the user, while somebody works on the job
    Column("priority", Integer, nullable=False, server_default="0"),  # -9 to 9
    Column("search_state", Document),  # of the search algorithm, after the latest select() or update()
    Column("active_s", Float, nullable=False, server_default="0"),  # wall clock in iterations
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("finished_at", UtcTime),
    Column("fencing_token", Integer, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    Column("lease_expires_at", UtcTime),
    Index(None, "state"),
)

iterations = Table(
    "iterations",
    metadata,
    _job_key(primary=True),
    Column("iteration", Integer, primary_key=True, autoincrement=False),
    Column("step", Document, nullable=False),
    Column("prompt_system", Text, nullable=False),
    Column("prompt_user", Text, nullable=False),
    Column("template_hash", String(64), nullable=False),
    Column("state_opened", Document),  # of the search algorithm, after select()
    Column("state_closed", Document),  # after update()
    Column("opened_at", UtcTime, nullable=False),
    Column("closed_at", UtcTime),
    Column("reason", String(32)),
    Column("chosen_candidate", String(64)),
    Column("threshold", Float),  # what the terminating speedup had to exceed
)

triggers = Table(
    "triggers",
    metadata,
    Column("id", Integer, primary_key=True),
    _job_key(),
    Column("iteration", Integer, nullable=False),
    Column("trigger_class", String(16), nullable=False),
    Column("position", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("launched", Integer, nullable=False),
    Column("fired_at", UtcTime, nullable=False),
    _row_key(),
    _of_iteration(),
    Index(None, "job_id", "iteration"),
    Index(None, "row_key", unique=True),
)

generations = Table(
    "generations",
    metadata,
    Column("id", Integer, primary_key=True),
    _job_key(),
    Column("iteration", Integer, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("trigger_id", Integer, ForeignKey("triggers.id", ondelete="CASCADE")),
    Column("seed", BigInteger, nullable=False),
    Column("model", Text, nullable=False),
    Column("template_hash", String(64), nullable=False),
    Column("prefix_chars", Integer, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("first_token_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("finish_reason", String(32)),
    Column("prompt_tokens", Integer, nullable=False, server_default="0"),
    Column("cached_tokens", Integer, nullable=False, server_default="0"),
    Column("reasoning_tokens", Integer, nullable=False, server_default="0"),
    Column("completion_tokens", Integer, nullable=False, server_default="0"),
    Column("usage_reported", Boolean, nullable=False, server_default=false()),
    Column("cost", Float),  # by the profile's price, in its unit; null where it has none
    Column("longest_gap_s", Float),  # between two chunks of text
    Column("reasoning", Text, nullable=False, server_default=""),
    Column("content", Text, nullable=False, server_default=""),
    _row_key(),
    _of_iteration(),
    Index(None, "job_id", "iteration"),
    Index(None, "trigger_id"),
    Index(None, "row_key", unique=True),
)

candidates = Table(
    "candidates",
    metadata,
    Column("id", Integer, primary_key=True),
    _job_key(),
    Column("candidate_id", String(64), nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("origin", String(8), nullable=False),
    Column("source", Text, nullable=False),
    Column("generation_id", Integer, ForeignKey("generations.id", ondelete="CASCADE")),
    Column("trigger_id", Integer, ForeignKey("triggers.id", ondelete="CASCADE")),
    Column("created_at", UtcTime, nullable=False),
    _of_iteration(),
    UniqueConstraint("job_id", "candidate_id"),
    Index(None, "trigger_id"),
)

requests = Table(
    "requests",
    metadata,
    Column("request_id", String(64), primary_key=True),
    _job_key(),
    Column("iteration", Integer, nullable=False),
    Column("candidate_id", String(64), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("origin", String(8), nullable=False),
    Column("status", String(32), nullable=False),  # queued, dropped, or a Status
    Column("enqueued_at", UtcTime, nullable=False),
    *_result_columns(),
    _of_iteration(),
    _of_candidate(),
    Index(None, "job_id", "iteration"),
    Index(None, "job_id", "candidate_id"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("id", Integer, primary_key=True),  # the order in which a job's outcomes became final
    _job_key(),
    Column("candidate_id", String(64), nullable=False),
    Column("iteration", Integer, nullable=False),  # of the request that gave it
    Column("request_id", String(64), ForeignKey("requests.request_id", ondelete="CASCADE"), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("origin", String(8), nullable=False),
    Column("status", String(32), nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    *_result_columns(),
    _of_candidate(),
    UniqueConstraint("job_id", "candidate_id"),
    Index(None, "job_id", "iteration"),
)

side_calls = Table(
    "side_calls",
    metadata,
    _job_key(primary=True),
    Column("key", String(255), primary_key=True),
    Column("reply", Document),
    Column("prompt_tokens", Integer, nullable=False, server_default="0"),
    Column("cached_tokens", Integer, nullable=False, server_default="0"),
    Column("reasoning_tokens", Integer, nullable=False, server_default="0"),
    Column("completion_tokens", Integer, nullable=False, server_default="0"),
    Column("usage_reported", Boolean, nullable=False, server_default=false()),
    Column("cost", Float),
    Column("made_at", UtcTime, nullable=False),
)

scheduler_decisions = Table(
    "scheduler_decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("decided_at", UtcTime, nullable=False),
    Column("scope", Text, nullable=False),  # <job>/<iteration> whose boundary it was; empty for a repair
    Column("policy", String(32), nullable=False),
    Column("devices", Integer, nullable=False),
    Column("validators", Integer, nullable=False),
    Column("profilers", Integer, nullable=False),
    Column("max_validate", Integer, nullable=False),  # L_v
    Column("max_profile", Integer, nullable=False),  # L_p
    Column("moved", Integer, nullable=False),  # workers that changed their queue
    Column("dropped", Integer, nullable=False),  # queued requests that the boundary dropped
    _row_key(),
    Index(None, "decided_at"),
    Index(None, "row_key", unique=True),
)
