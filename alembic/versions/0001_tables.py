"""The tables.

Frozen: a later change is a later revision. specgen/store/tables.py says what the newest schema is.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Time = sa.DateTime(timezone=True)
Document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def job_key() -> sa.Column[str]:
    return sa.Column("job_id", sa.String(64), nullable=False)


def of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=f"fk_{table}_job_id", ondelete="CASCADE")


def of_iteration(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id", "iteration"],
        ["iterations.job_id", "iterations.iteration"],
        name=f"fk_{table}_job_id_iteration",
        ondelete="CASCADE",
    )


def of_candidate(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id", "candidate_id"],
        ["candidates.job_id", "candidates.candidate_id"],
        name=f"fk_{table}_job_id_candidate_id",
        ondelete="CASCADE",
    )


def of_row(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=f"fk_{table}_{column}", ondelete="CASCADE")


def tokens() -> list[sa.Column[int]]:
    kinds = ("prompt", "cached", "reasoning", "completion")
    return [sa.Column(f"{kind}_tokens", sa.Integer, nullable=False, server_default="0") for kind in kinds]


def reported() -> sa.Column[bool]:
    return sa.Column("usage_reported", sa.Boolean, nullable=False, server_default=sa.false())


def result_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("error", sa.Text, nullable=False, server_default=""),
        sa.Column("rule", sa.Text, nullable=False, server_default=""),
        sa.Column("speedup", sa.Float),
        sa.Column("speedup_std", sa.Float),
        sa.Column("profile", Document),
        sa.Column("labels", Document),
        sa.Column("max_abs_error", sa.Float),
        sa.Column("build_route", sa.String(16)),
        sa.Column("queue_s", sa.Float),
        sa.Column("build_s", sa.Float),
        sa.Column("device_s", sa.Float),
        sa.Column("worker", sa.Text),
        sa.Column("device", sa.Text),
        sa.Column("environment", Document),
        sa.Column("finished_at", Time),
    ]


def create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("spec", Document, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("problem_sha256", sa.String(64), nullable=False),
        sa.Column("backend", sa.String(16), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("search", sa.Text, nullable=False),
        sa.Column("termination", sa.Text, nullable=False),
        sa.Column("max_iterations", sa.Integer, nullable=False),
        sa.Column("speculation", sa.Boolean, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("stop_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("started_at", Time),
        sa.Column("finished_at", Time),
        sa.Column("fencing_token", sa.Integer, nullable=False, server_default="0"),
        sa.Column("lease_owner", sa.Text),
        sa.Column("lease_expires_at", Time),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])


def create_iterations() -> None:
    op.create_table(
        "iterations",
        job_key(),
        sa.Column("iteration", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("step", Document, nullable=False),
        sa.Column("prompt_system", sa.Text, nullable=False),
        sa.Column("prompt_user", sa.Text, nullable=False),
        sa.Column("template_hash", sa.String(64), nullable=False),
        sa.Column("state_opened", Document),
        sa.Column("state_closed", Document),
        sa.Column("opened_at", Time, nullable=False),
        sa.Column("closed_at", Time),
        sa.Column("reason", sa.String(32)),
        sa.Column("chosen_candidate", sa.String(64)),
        sa.Column("threshold", sa.Float),
        sa.PrimaryKeyConstraint("job_id", "iteration", name="pk_iterations"),
        of_job("iterations"),
    )


def create_triggers() -> None:
    op.create_table(
        "triggers",
        sa.Column("id", sa.Integer, nullable=False),
        job_key(),
        sa.Column("iteration", sa.Integer, nullable=False),
        sa.Column("trigger_class", sa.String(16), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("launched", sa.Integer, nullable=False),
        sa.Column("fired_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_triggers"),
        of_job("triggers"),
        of_iteration("triggers"),
    )
    op.create_index("ix_triggers_job_id_iteration", "triggers", ["job_id", "iteration"])


def create_generations() -> None:
    op.create_table(
        "generations",
        sa.Column("id", sa.Integer, nullable=False),
        job_key(),
        sa.Column("iteration", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("trigger_id", sa.Integer),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("template_hash", sa.String(64), nullable=False),
        sa.Column("prefix_chars", sa.Integer, nullable=False),
        sa.Column("started_at", Time, nullable=False),
        sa.Column("first_token_at", Time),
        sa.Column("ended_at", Time),
        sa.Column("finish_reason", sa.String(32)),
        *tokens(),
        reported(),
        sa.Column("reasoning", sa.Text, nullable=False, server_default=""),
        sa.Column("content", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_generations"),
        of_job("generations"),
        of_row("generations", "trigger_id", "triggers.id"),
        of_iteration("generations"),
    )
    op.create_index("ix_generations_job_id_iteration", "generations", ["job_id", "iteration"])
    op.create_index("ix_generations_trigger_id", "generations", ["trigger_id"])


def create_candidates() -> None:
    op.create_table(
        "candidates",
        sa.Column("id", sa.Integer, nullable=False),
        job_key(),
        sa.Column("candidate_id", sa.String(64), nullable=False),
        sa.Column("iteration", sa.Integer, nullable=False),
        sa.Column("origin", sa.String(8), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("generation_id", sa.Integer),
        sa.Column("trigger_id", sa.Integer),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_candidates"),
        sa.UniqueConstraint("job_id", "candidate_id", name="uq_candidates_job_id_candidate_id"),
        of_job("candidates"),
        of_row("candidates", "generation_id", "generations.id"),
        of_row("candidates", "trigger_id", "triggers.id"),
        of_iteration("candidates"),
    )
    op.create_index("ix_candidates_trigger_id", "candidates", ["trigger_id"])


def create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", sa.String(64), nullable=False),
        job_key(),
        sa.Column("iteration", sa.Integer, nullable=False),
        sa.Column("candidate_id", sa.String(64), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(8), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("enqueued_at", Time, nullable=False),
        *result_columns(),
        sa.PrimaryKeyConstraint("request_id", name="pk_requests"),
        of_job("requests"),
        of_iteration("requests"),
        of_candidate("requests"),
    )
    op.create_index("ix_requests_job_id_iteration", "requests", ["job_id", "iteration"])
    op.create_index("ix_requests_job_id_candidate_id", "requests", ["job_id", "candidate_id"])


def create_outcomes() -> None:
    op.create_table(
        "outcomes",
        sa.Column("id", sa.Integer, nullable=False),
        job_key(),
        sa.Column("candidate_id", sa.String(64), nullable=False),
        sa.Column("iteration", sa.Integer, nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(8), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("recorded_at", Time, nullable=False),
        *result_columns(),
        sa.PrimaryKeyConstraint("id", name="pk_outcomes"),
        sa.UniqueConstraint("job_id", "candidate_id", name="uq_outcomes_job_id_candidate_id"),
        of_job("outcomes"),
        of_row("outcomes", "request_id", "requests.request_id"),
        of_candidate("outcomes"),
    )
    op.create_index("ix_outcomes_job_id_iteration", "outcomes", ["job_id", "iteration"])


def create_side_calls() -> None:
    op.create_table(
        "side_calls",
        job_key(),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("reply", Document),
        *tokens(),
        reported(),
        sa.Column("made_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "key", name="pk_side_calls"),
        of_job("side_calls"),
    )


def create_scheduler_decisions() -> None:
    counts = ("devices", "validators", "profilers", "max_validate", "max_profile", "moved", "dropped")
    op.create_table(
        "scheduler_decisions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("decided_at", Time, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in counts),
        sa.PrimaryKeyConstraint("id", name="pk_scheduler_decisions"),
    )
    op.create_index("ix_scheduler_decisions_decided_at", "scheduler_decisions", ["decided_at"])


def upgrade() -> None:
    create_jobs()
    create_iterations()
    create_triggers()
    create_generations()
    create_candidates()
    create_requests()
    create_outcomes()
    create_side_calls()
    create_scheduler_decisions()


def downgrade() -> None:
    tables = ("scheduler_decisions", "side_calls", "outcomes", "requests", "candidates", "generations", "triggers")
    for table in (*tables, "iterations", "jobs"):
        op.drop_table(table)
