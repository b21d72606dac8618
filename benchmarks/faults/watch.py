"""The database's own witness of stale writes: triggers that note every write of a worker that does not hold the lease.

Each iteration worker connects as a user of its own, called as the worker, and a lease's owner starts with the worker's
name. So a write for a job by one worker while another one holds the job is seen by the server, whatever the code
believes.
"""

from __future__ import annotations

import sqlalchemy

TABLES = ("jobs", "iterations", "triggers", "generations", "candidates", "requests", "outcomes", "side_calls")
_FUNCTION = """
CREATE FUNCTION fault_note() RETURNS trigger AS $$
DECLARE
  writer text := session_user;
  holder text;
  name text;
BEGIN
  IF NOT starts_with(writer, 'iterations') THEN RETURN NULL; END IF;
  IF TG_TABLE_NAME = 'jobs' THEN
    name := NEW.id;
    holder := coalesce(NEW.lease_owner, OLD.lease_owner);
  ELSE
    name := NEW.job_id;
    SELECT lease_owner INTO holder FROM jobs WHERE id = name;
  END IF;
  IF holder IS NULL OR NOT starts_with(holder, writer || '@') THEN
    INSERT INTO fault_writes VALUES (clock_timestamp(), TG_TABLE_NAME, name, writer, holder);
  END IF;
  RETURN NULL;
END $$ LANGUAGE plpgsql
"""


def install(url: str, users: list[str]) -> None:
    """Into a migrated database, with a user for each of the writers."""
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        run = connection.exec_driver_sql
        run("CREATE TABLE fault_writes (at timestamptz, relation text, job_id text, writer text, holder text)")
        run(_FUNCTION)
        for user in users:
            run(f"CREATE ROLE {user} SUPERUSER LOGIN")
        for table in TABLES:
            when = "UPDATE" if table == "jobs" else "INSERT OR UPDATE"
            run(f"CREATE TRIGGER fault_note AFTER {when} ON {table} FOR EACH ROW EXECUTE FUNCTION fault_note()")
    engine.dispose()


def blocked(engine: sqlalchemy.Engine, user: str = "") -> list[str]:
    """Sessions (of a user) that hold a transaction open without doing anything, or wait for a lock."""
    query = sqlalchemy.text(
        "SELECT usename, state, left(query, 90) AS query FROM pg_stat_activity WHERE (:user = '' OR usename = :user) "
        "AND (wait_event_type = 'Lock' OR state LIKE 'idle in transaction%')"
    )
    with engine.connect() as connection:
        rows = connection.execute(query, {"user": user})
        return [f"{row.usename} {row.state} {row.query!r}" for row in rows]


def stale_writes(engine: sqlalchemy.Engine, job_ids: list[str]) -> list[str]:
    """One line for every write of these jobs by a worker that did not hold them."""
    query = sqlalchemy.text("SELECT * FROM fault_writes WHERE job_id = ANY(:jobs) ORDER BY at")
    with engine.connect() as connection:
        return [
            f"{row.at:%H:%M:%S.%f} {row.relation} of {row.job_id} by {row.writer}, held by {row.holder}"
            for row in connection.execute(query, {"jobs": job_ids})
        ]
