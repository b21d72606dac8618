"""What the user wishes of a job, its priority, its seconds of work, and keys that make a repeated write harmless.

Columns are added and dropped in place. Alembic's batch mode would copy a table and drop the old one, and on SQLite that
deletes whatever refers to it.
"""

from __future__ import annotations

import re

import sqlalchemy as sa

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEYED = ("triggers", "generations", "scheduler_decisions")
WORKED = """
UPDATE jobs SET active_s = COALESCE(
    (SELECT SUM(SECONDS(i.closed_at, i.opened_at)) FROM iterations i
     WHERE i.job_id = jobs.id AND i.closed_at IS NOT NULL), 0)
"""
IN_SECONDS = {
    "postgresql": r"CAST(EXTRACT(EPOCH FROM (\1 - \2)) AS double precision)",
    "sqlite": r"((julianday(\1) - julianday(\2)) * 86400.0)",
}


def worked() -> str:
    return re.sub(r"SECONDS\(([\w.]+), ([\w.]+)\)", IN_SECONDS[op.get_context().dialect.name], WORKED)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("wish", sa.String(16), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("active_s", sa.Float, nullable=False, server_default="0"))
    op.execute("UPDATE jobs SET wish = 'stop' WHERE stop_requested")
    op.execute(worked())
    op.drop_column("jobs", "stop_requested")
    for table in KEYED:
        op.add_column(table, sa.Column("row_key", sa.String(64)))
        op.create_index(f"ix_{table}_row_key", table, ["row_key"], unique=True)


def downgrade() -> None:
    """The older program knows neither these states nor this reason: the nearest that it has."""
    for table in KEYED:
        op.drop_index(f"ix_{table}_row_key", table)
        op.drop_column(table, "row_key")
    op.add_column("jobs", sa.Column("stop_requested", sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute("UPDATE jobs SET stop_requested = (wish <> '')")
    op.execute("UPDATE jobs SET state = 'stopped' WHERE state = 'paused'")
    op.execute("UPDATE jobs SET state = 'done' WHERE state = 'cancelled'")
    op.execute("UPDATE iterations SET reason = 'main_outcome' WHERE reason = 'budget'")
    for column in ("active_s", "priority", "wish"):
        op.drop_column("jobs", column)
