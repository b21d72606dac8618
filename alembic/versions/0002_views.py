"""The views of alembic/views/0002.sql.

``SECONDS(later, earlier)`` in that file becomes what the database at hand calls it.
"""

from __future__ import annotations

import re
from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SECONDS = re.compile(r"SECONDS\(([\w.]+), ([\w.]+)\)")
IN_SECONDS = {
    "postgresql": r"CAST(EXTRACT(EPOCH FROM (\1 - \2)) AS double precision)",
    "sqlite": r"((julianday(\1) - julianday(\2)) * 86400.0)",
}


def statements() -> list[str]:
    script = (Path(__file__).parent.parent / "views" / "0002.sql").read_text(encoding="utf-8")
    text = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    text = SECONDS.sub(IN_SECONDS[op.get_context().dialect.name], text)
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def upgrade() -> None:
    for statement in statements():
        op.execute(statement)


def downgrade() -> None:
    for statement in reversed(statements()):
        name = statement.split()[2]
        op.execute(f"DROP VIEW {name}")
