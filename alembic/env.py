"""Alembic's environment. `specgen migrate` hands in its own connection; the alembic command opens one from settings."""

from __future__ import annotations

from sqlalchemy import Connection

from alembic import context
from specgen.store.tables import metadata


def run(connection: Connection) -> None:
    """Within the transaction of whoever opened the connection."""
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    from specgen.settings import get_settings
    from specgen.store.database import connect

    with connect(get_settings().database).begin() as opened:
        run(opened)
