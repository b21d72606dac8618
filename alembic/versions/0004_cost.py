"""What generations and side calls cost, the longest gap between two chunks, what was thrown away, and one search state
a job: several iterations of it may be open."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

IN_SECONDS = {
    "postgresql": r"CAST(EXTRACT(EPOCH FROM (\1 - \2)) AS double precision)",
    "sqlite": r"((julianday(\1) - julianday(\2)) * 86400.0)",
}
VIEWS = ("generation_use", "token_use")


def statements() -> list[str]:
    script = (Path(__file__).parent.parent / "views" / "0004.sql").read_text(encoding="utf-8")
    text = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    text = re.sub(r"SECONDS\(([\w.]+), ([\w.]+)\)", IN_SECONDS[op.get_context().dialect.name], text)
    return [statement.strip() for statement in text.split(";") if statement.strip()]


STATE = """
UPDATE jobs SET search_state = (
    SELECT CASE WHEN i.closed_at IS NULL THEN i.state_opened ELSE i.state_closed END FROM iterations i
    WHERE i.job_id = jobs.id ORDER BY i.iteration DESC LIMIT 1)
"""


def upgrade() -> None:
    document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("jobs", sa.Column("search_state", document))
    op.execute(STATE)
    op.add_column("generations", sa.Column("cost", sa.Float))
    op.add_column("generations", sa.Column("longest_gap_s", sa.Float))
    op.add_column("side_calls", sa.Column("cost", sa.Float))
    for statement in statements():
        op.execute(statement)


def downgrade() -> None:
    for view in reversed(VIEWS):
        op.execute(f"DROP VIEW {view}")
    op.drop_column("jobs", "search_state")
    op.drop_column("side_calls", "cost")
    op.drop_column("generations", "longest_gap_s")
    op.drop_column("generations", "cost")
