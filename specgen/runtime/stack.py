"""The embedded system of `specgen run` and `specgen up`: Valkey, database, workers, and (for a demo) the model server.

Nothing but settings differs from the distributed system: the same worker processes, started here with an environment
that gives each only what it may know (the LLM key and the database go to the iteration worker alone).
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from specgen.errors import EnvironmentLacking, InfrastructureError, UserError
from specgen.evaluation.cell import Device, devices
from specgen.evaluation.sandbox import probe
from specgen.runtime.processes import Child, stop_all
from specgen.runtime.valkey import Valkey
from specgen.scheduler.pool import PoolState
from specgen.settings import ModelProfile, Settings
from specgen.store import migrate

START_TIMEOUT_S = 90.0
GRACE_S = 12.0
SECRET_PREFIXES = ("SPECGEN_LLM", "SPECGEN_DATABASE", "OPENAI_")


def iteration_worker(concurrency: int = 64) -> list[str]:
    """Celery's own command, for ``python -m``: an interpreter called by its path may not have it on PATH."""
    arguments = ["celery", "-A", "workers.app", "worker", "-Q", "iterations", "--pool", "threads"]
    arguments += ["--concurrency", str(concurrency), "--without-gossip", "--without-mingle"]
    return [*arguments, "-n", "iterations@%h", "-l", "INFO"]


@dataclass(frozen=True)
class Synthetic:
    """The project's own model server with its synthetic source, in place of an LLM endpoint."""

    speed: float = 40.0  # times §3.1's token rate
    seed: int = 0
    success: float = 1.0  # times the paper's rates of valid kernels


@dataclass
class Stack:
    """Start in order, stop in reverse. ``tell`` gets one line a step."""

    settings: Settings
    model: ModelProfile | None = None
    synthetic: Synthetic | None = None
    backend: str = "cpu"
    profile: str = "default"  # the name under which iteration workers find ``model``
    tell: Callable[[str], None] = lambda _: None
    children: list[Child] = field(default_factory=list)
    valkey: Valkey | None = None
    _lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------ start

    def start(self) -> None:
        """Everything up and every device at work, or an error that names what is missing."""
        self._claim_home()
        pool = [device for device in devices(self.settings) if device.backend == self.backend]
        if not pool:
            raise EnvironmentLacking(f"no GPU for the {self.backend} backend here", "run it with --backend cpu")
        if self.settings.evaluation.sandbox == "bubblewrap":
            probe()
        self._build_support()
        if not self.settings.redis_url:
            self.tell("Valkey on a unix socket")
            self.valkey = Valkey(self.settings.socket_path, self.settings.home_path / "valkey").start()
        self.tell("database")
        migrate(self.settings.database)
        if self.synthetic is not None:
            self.tell("model server (synthetic)")
            self.model = self._serve_model(self.synthetic)
        self.tell(f"workers: 1 scheduler, 1 iteration, {len(pool)} device")
        self._start_workers(pool)
        self._await_devices(len(pool))

    def _claim_home(self) -> None:
        home = self.settings.home_path
        home.mkdir(parents=True, exist_ok=True)
        self._lock = (home / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise UserError(
                f"another specgen is running in {home}", "wait for it, or set SPECGEN_HOME to another folder"
            ) from exc

    def _build_support(self) -> None:
        """The fast build's support library, once per torch and compiler (about half a minute)."""
        self.tell("build support library (half a minute, the first time only)")
        command = [sys.executable, "-m", "specgen.evaluation.build", "--cache", str(self.settings.cache_path)]
        done = subprocess.run(command, env=self._env(), capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise EnvironmentLacking(lines[0], lines[1] if len(lines) > 1 else "a C++ compiler (g++) is needed")

    def _serve_model(self, synthetic: Synthetic) -> ModelProfile:
        port_file = self.settings.home_path / "model-server.url"
        port_file.unlink(missing_ok=True)
        arguments = ["--port", "0", "--port-file", str(port_file)]
        arguments += ["--speed", str(synthetic.speed), "--seed", str(synthetic.seed)]
        arguments += ["--success", str(synthetic.success)]
        self._spawn("model-server", ["-m", "specgen.llm.server", *arguments], secrets=False)
        self._await(lambda: port_file.exists(), "the model server")
        return ModelProfile(base_url=port_file.read_text().strip(), model="specgen-synthetic")

    def _start_workers(self, pool: list[Device]) -> None:
        # Celery's own command, in this interpreter: finds it in a virtual environment that is not activated
        self._spawn("scheduler", ["-m", "workers.scheduler"], secrets=False)
        for device in pool:
            self._spawn(f"device-{device.backend}{device.index}", ["-m", "workers.device", "--device", device.name])
        self._spawn("iterations", ["-m", *iteration_worker()], secrets=True)

    def _spawn(self, name: str, arguments: list[str], *, secrets: bool = False) -> None:
        env = self._env(secrets=secrets)
        self.children.append(Child.start(name, [sys.executable, *arguments], self.settings.home_path / "logs", env))

    def _env(self, *, secrets: bool = False) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(SECRET_PREFIXES)}
        env["SPECGEN_HOME"] = str(self.settings.home_path)
        env["SPECGEN_CACHE"] = str(self.settings.cache_path)
        env["SPECGEN_REDIS_URL"] = self.settings.redis
        for group in ("forks", "pool", "evaluation"):  # as this command has them, its flags included
            for name, value in getattr(self.settings, group).model_dump(mode="json").items():
                env[f"SPECGEN_{group}__{name}".upper()] = value if isinstance(value, str) else json.dumps(value)
        env["OMP_NUM_THREADS"] = "1"  # a CPU device is one core; the workers themselves need none
        if secrets:
            env["SPECGEN_DATABASE_URL"] = self.settings.database
            env |= {k: v for k, v in os.environ.items() if k.startswith("SPECGEN_LLM")}
            if self.model is not None:
                given = self.model.model_dump(mode="json") | {"api_key": self.model.api_key.get_secret_value()}
                env |= {f"SPECGEN_LLM__{self.profile}__{name}".upper(): str(value) for name, value in given.items()}
        return env

    def _await_devices(self, count: int) -> None:
        state = PoolState(self.settings.redis, self.settings.prefix)
        self._await(lambda: len(state.devices()) >= count, f"{count} devices")

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            for child in self.children:
                child.check()
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{what} did not come up in {START_TIMEOUT_S:.0f} s", f"logs: {self.logs}")
            time.sleep(0.05)

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.settings.home_path / "logs"

    # ------------------------------------------------------------------------------------------ stop

    def check(self) -> None:
        """Raises InfrastructureError if one of the processes has ended."""
        for child in self.children:
            child.check()

    def stop(self) -> None:
        """Everything that was started; idempotent."""
        stop_all(self.children[::-1], GRACE_S)
        self.children.clear()
        if self.valkey is not None:
            self.valkey.stop()
            self.valkey = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
