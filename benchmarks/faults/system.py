"""The whole system as processes of the benchmark: what dies is started again, as compose or systemd would.

Valkey (AOF everysec), Postgres, the project's model server, one scheduler, device workers with a cheap cell and
iteration workers. Everything is started from the main thread and looked after by `tend`, which every wait calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis

from benchmarks.faults import cheap_cell, watch
from benchmarks.faults.postgres import Postgres
from specgen.client import Client
from specgen.runtime.processes import die_with_parent
from specgen.runtime.stack import iteration_worker
from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import PoolState, PoolView
from specgen.settings import get_settings
from specgen.store import migrate

VISIBILITY_S = 5.0
BUDGET_S = 6.0  # of an evaluation
RUN = "SPECGEN_FAULTS_RUN"  # marks every process of this run, those that outlive their parents included


@dataclass(frozen=True)
class Size:
    """How large the system is, and how fast its model talks."""

    devices: int = 3
    iteration_workers: int = 2
    trace_tokens: int = 1500  # of a main generation, on average
    speed: float = 25.0  # times 33.5 tokens a second


@dataclass(frozen=True)
class Part:
    """A process of the system, in a session of its own; it dies with the benchmark."""

    name: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, name: str, command: list[str], logs: Path, env: dict[str, str]) -> Part:
        """From the main thread; its output is appended to ``logs/<name>.log``."""
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return cls(name, process)


@dataclass
class System:
    """`start`, then `workers`; `stop` at the end. ``home`` is a short path: unix sockets allow 107 characters."""

    home: Path
    size: Size = field(default_factory=Size)
    children: dict[str, Part] = field(default_factory=dict)
    extra: dict[str, dict[str, str]] = field(default_factory=dict)  # environment of single roles, at their next start
    held: set[str] = field(default_factory=set)  # roles that are not started again
    restarts: int = 0
    model_url: str = ""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.valkey = Valkey(self.home / "valkey.sock", self.home / "valkey")
        self.postgres = Postgres(self.home)
        self.log = self.home / "evaluations.log"

    # ------------------------------------------------------------------------------------------ start and stop

    def start(self) -> None:
        """Servers; this process gets their settings too."""
        self.valkey.start()
        self.postgres.start()
        os.environ |= self._settings() | {"SPECGEN_DATABASE_URL": self.postgres.url}
        get_settings.cache_clear()
        migrate(self.postgres.url)
        watch.install(self.postgres.url, [f"iterations{i}" for i in range(self.size.iteration_workers)])
        self._spawn("model-server", self._commands()["model-server"])
        port = self.home / "model.url"
        if not self.wait(port.exists, 60):
            raise TimeoutError(f"the model server did not start: {self.home / 'logs'}")
        self.model_url = port.read_text().strip()
        self.client = Client(get_settings())
        self.redis = redis.Redis.from_url(self.valkey.url, decode_responses=True)
        self.keys = Keys(get_settings().prefix, get_settings().pool.order)
        self.pool = PoolState(self.valkey.url)

    def workers(self) -> None:
        """Scheduler, devices, iteration workers; waits until every device is there."""
        for name, command in self._commands().items():
            if name not in self.children:
                self._spawn(name, command)
        if not self.wait(lambda: len(self.view().devices) >= self.size.devices, 90):
            raise TimeoutError(f"not every device came up: {self.home / 'logs'}")

    def stop(self) -> None:
        """Everything, at once; nothing of this run is left."""
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        self.children.clear()
        for pid in list(self.pids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(AttributeError):
            self.client.close()
        self.postgres.stop()
        self.valkey.stop()

    def _settings(self) -> dict[str, str]:
        return {
            "SPECGEN_HOME": str(self.home),
            "SPECGEN_CACHE": str(self.home / "cache"),
            "SPECGEN_REDIS_URL": self.valkey.url,
            "SPECGEN_VISIBILITY_TIMEOUT_S": str(VISIBILITY_S),
            "SPECGEN_EVALUATION__VALIDATE_BUDGET_S": str(BUDGET_S),
            "SPECGEN_EVALUATION__PROFILE_BUDGET_S": str(BUDGET_S),
        }

    def _environment(self, name: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPECGEN_")} | self._settings()
        env |= {RUN: self.mark, "OMP_NUM_THREADS": "1"}
        if name.startswith("device"):
            env |= {"SPECGEN_CELL": "benchmarks.faults.cheap_cell:CheapCell", cheap_cell.LOG: str(self.log)}
        if name.startswith("iterations"):
            env["SPECGEN_DATABASE_URL"] = self.postgres.url_of(name.replace("-", ""))
            env["SPECGEN_LLM__DEFAULT__MODEL"] = "specgen-synthetic"
            env["SPECGEN_LLM__DEFAULT__BASE_URL"] = self.model_url
        return env | self.extra.get(name, {})

    def _commands(self) -> dict[str, list[str]]:
        speed, tokens = str(self.size.speed), str(self.size.trace_tokens)
        serve = ["specgen.llm.server", "--port", "0", "--port-file", str(self.home / "model.url"), "--speed", speed]
        commands = {"model-server": [*serve, "--trace-tokens", tokens, "--success", "3"]}
        commands["scheduler"] = ["workers.scheduler"]
        for i in range(self.size.devices):
            commands[f"device-{i}"] = ["workers.device", "--device", f"cpu{i}"]
        for i in range(self.size.iteration_workers):
            commands[f"iterations-{i}"] = [
                f"iterations{i}@%h" if part.endswith("@%h") else part for part in iteration_worker(16)
            ]
        return commands

    def _spawn(self, name: str, command: list[str]) -> None:
        line = [sys.executable, "-m", *command]
        self.children[name] = Part.start(name, line, self.home / "logs", self._environment(name))

    # ------------------------------------------------------------------------------------------ supervision

    def tend(self) -> None:
        """Start again what ended."""
        for name, child in list(self.children.items()):
            if child.process.poll() is not None and name not in self.held:
                self.restarts += 1
                self._spawn(name, self._commands()[name])
        if (
            self.postgres.process is not None
            and self.postgres.process.poll() is not None
            and "postgres" not in self.held
        ):
            self.postgres.launch()

    def wait(self, condition: Callable[[], object], timeout_s: float, every_s: float = 0.05) -> bool:
        """Until the condition holds; False where it did not in time. Servers that are away count as "not yet"."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.tend()
            with contextlib.suppress(Exception):
                if condition():
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(every_s)

    def sleep(self, seconds: float) -> None:
        """Pass time, looking after the children."""
        self.wait(lambda: False, seconds)

    def restart(self, name: str, **env: str) -> None:
        """Start a role with another environment; SIGTERM first."""
        self.extra[name] = env
        child = self.children[name]
        child.process.terminate()
        if not self.wait(lambda: self.children[name] is not child, 60):
            os.killpg(child.process.pid, signal.SIGKILL)
            self.wait(lambda: self.children[name] is not child, 10)

    # ------------------------------------------------------------------------------------------ looking

    def view(self) -> PoolView:
        """The pool."""
        return self.pool.view()

    def tokens(self) -> dict[str, int]:
        """What the model server has counted: prompt, cached, reasoning, completion."""
        with urllib.request.urlopen(self.model_url.removesuffix("/v1") + "/stats", timeout=10) as answer:
            return cast("dict[str, int]", json.load(answer)["tokens"])

    def pids(self) -> Iterator[int]:
        """Every process of this run but the benchmark and the servers, by a mark in their environment."""
        needle = f"{RUN}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if needle in (entry / "environ").read_bytes() and _state(int(entry.name)) not in ("Z", "X"):
                        yield int(entry.name)

    def orphans(self) -> list[int]:
        """Processes of this run whose parent is neither the benchmark nor one of this run's: left behind."""
        known = {*self.pids(), os.getpid()}
        return [pid for pid in known if pid != os.getpid() and parent(pid) not in known]

    # ------------------------------------------------------------------------------------------ servers

    def kill_valkey(self, *, wipe: bool, away_s: float) -> None:
        """SIGKILL, then start again with the append-only file, or without any data."""
        process = self.valkey.process
        assert process is not None
        process.kill()
        process.wait()
        self.valkey.stop()
        if wipe:
            shutil.rmtree(self.valkey.directory / "appendonlydir", ignore_errors=True)
        self.sleep(away_s)
        self.valkey.start()

    def kill_postgres(self, number: signal.Signals, away_s: float) -> None:
        """The postmaster dies; it is started again after ``away_s`` and waited for."""
        self.held.add("postgres")
        self.postgres.kill(number)
        self.sleep(away_s)
        self.held.discard("postgres")
        self.postgres.wait()
        self.client.store.engine.dispose()  # our own connections are broken, too


def parent(pid: int) -> int:
    """A process's parent; 0 where it has ended."""
    return int(_stat(pid)[1]) if _stat(pid) else 0


def _state(pid: int) -> str:
    return _stat(pid)[0] if _stat(pid) else "X"


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def children_of(pid: int) -> list[int]:
    """Direct children that run."""
    found: list[Any] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and int(stat[1]) == pid and stat[0] not in "ZX":
            found.append(int(entry.name))
    return found
