"""The embedded system of `specgen run` and `specgen up`: Valkey, database, workers, and (for a demo) the model server.

Nothing but settings differs from the distributed system: the same worker processes, started here with an environment
that gives each only what it may know (the LLM key and the database go to the iteration worker alone). `specgen run`
ends when one of them dies (`check`); `specgen up` starts it again (`keep`), and waits for a Redis or a database of its
own settings that is away.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import redis

from specgen.errors import EnvironmentLacking, InfrastructureError, PoolUnavailable, SettingsError, UserError
from specgen.evaluation.cell import Device, devices
from specgen.evaluation.sandbox import probe
from specgen.runtime.processes import Child, stop_all
from specgen.runtime.supervision import Restartable, RestartPolicy, Supervisor
from specgen.runtime.valkey import Valkey
from specgen.scheduler.pool import PoolState
from specgen.settings import ModelProfile, Settings
from specgen.store import migrate

START_TIMEOUT_S = 90.0
GRACE_S = 12.0
AGAIN_S = 2.0  # between two tries of a service that is away
LOOK_S = 5.0  # between two looks at the disk
SECRET_PREFIXES = ("SPECGEN_LLM", "SPECGEN_DATABASE", "OPENAI_", "ANTHROPIC_", "DEEPSEEK_", "PGPASS", "POSTGRES_")


def iteration_worker(concurrency: int = 64) -> list[str]:
    """Celery's own command, for ``python -m``: an interpreter called by its path may not have it on PATH."""
    arguments = ["celery", "-A", "workers.app", "worker", "-Q", "iterations", "--pool", "threads"]
    arguments += ["--concurrency", str(concurrency), "--without-gossip", "--without-mingle"]
    return [*arguments, "-n", "iterations@%h", "-l", "INFO"]


def local_gpus() -> list[int]:
    """Numbers of this machine's NVIDIA GPUs, from the driver's device files."""
    found = (re.fullmatch(r"nvidia(\d+)", node.name) for node in Path("/dev").glob("nvidia*"))
    return sorted(int(match[1]) for match in found if match)


def chosen_gpus(choice: str) -> list[Device]:
    """``all``, or numbers such as ``0,1``. Raises SettingsError for another text, EnvironmentLacking for a GPU that is
    not there."""
    there = local_gpus()
    if choice != "all" and not re.fullmatch(r"\d+(,\d+)*", choice):
        raise SettingsError(f"no GPUs are called {choice!r}", "all, or numbers such as 0,1")
    wanted = there if choice == "all" else sorted({int(number) for number in choice.split(",")})
    missing = [str(number) for number in wanted if number not in there]
    if missing or not wanted:
        known = ", ".join(map(str, there)) or "none"
        raise EnvironmentLacking(f"no GPU {', '.join(missing) or 'here'}; GPUs of this machine: {known}",
                                 "is the driver loaded? `nvidia-smi -L` lists them")  # fmt: skip
    return [Device(name=f"{socket.gethostname()}/gpu{number}", backend="cuda", index=number) for number in wanted]


def spare_core(pool: list[Device]) -> bool:
    """Whether a builder has a core that no device needs: a CPU device is one, a GPU's worker keeps one busy.

    Without, builds ahead would take from the devices what they save them (docs/devices.md).
    """
    return 0 < len(pool) < len(os.sched_getaffinity(0))


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
    pool: list[Device] | None = None  # the devices to serve; None: all of ``backend``
    patient: bool = False  # wait for services that are away
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
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
        pool = self._devices()
        if pool and self.settings.evaluation.sandbox == "bubblewrap":
            probe()
        if pool:
            self._build_support()
        if not self.settings.redis_url:
            self.tell("Valkey on a unix socket")
            self.valkey = Valkey(self.settings.socket_path, self.settings.home_path / "valkey")
            self.valkey.start()
        self._reach("Redis", self._ping)
        self.tell("database")
        self._reach("the database", lambda: migrate(self.settings.database))
        if self.synthetic is not None:
            self.tell("model server (synthetic)")
            self.model = self._serve_model(self.synthetic)
        self.tell(f"workers: 1 scheduler, 1 iteration, {len(pool)} device{', 1 builder' if spare_core(pool) else ''}")
        self._start_workers(pool)
        self._await_devices(pool)

    def _devices(self) -> list[Device]:
        if self.pool is not None:
            return self.pool
        return chosen_gpus("all") if self.backend == "cuda" else devices(self.settings)

    def _ping(self) -> None:
        try:
            with redis.Redis.from_url(self.settings.redis, socket_timeout=5) as client:
                client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as exc:  # BusyLoadingError too; not a wrong password
            if isinstance(exc, redis.AuthenticationError):
                raise SettingsError(f"Redis refuses the login: {exc}", "see SPECGEN_REDIS_URL") from exc
            raise PoolUnavailable(f"Redis cannot be reached: {exc}", "see SPECGEN_REDIS_URL") from exc
        except redis.RedisError as exc:
            raise SettingsError(f"Redis refuses: {exc}", "see SPECGEN_REDIS_URL") from exc

    def _reach(self, what: str, call: Callable[[], object]) -> None:
        """Call it; where ``patient``, again for as long as the service is away, with a line a minute."""
        told_at = -60.0
        while True:
            try:
                call()
                return
            except InfrastructureError as exc:
                if not self.patient:
                    raise
                if time.monotonic() - told_at >= 60.0:
                    self.tell(f"waiting for {what}: {' '.join(exc.message.split())[:300]}")
                    told_at = time.monotonic()
                time.sleep(AGAIN_S)

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
        arguments = ["-m", "specgen.llm.server", "--speed", str(synthetic.speed), "--seed", str(synthetic.seed)]
        arguments += ["--success", str(synthetic.success), "--port-file", str(port_file), "--port"]
        child = self._spawn("model-server", [*arguments, "0"])
        self._await(lambda: port_file.exists(), "the model server")
        url = port_file.read_text().strip()
        port = re.search(r":(\d+)", url.partition("://")[2])
        assert port is not None, url
        child.command = [*child.command[:-1], port[1]]  # started again it must be where the workers know it
        return ModelProfile(base_url=url, model="specgen-synthetic")

    def _start_workers(self, pool: list[Device]) -> None:
        # Celery's own command, in this interpreter: finds it in a virtual environment that is not activated
        self._spawn("scheduler", ["-m", "workers.scheduler"], secrets=False)
        for device in pool:
            kind = "cpu" if device.backend == "cpu" else "gpu"
            self._spawn(f"device-{kind}{device.index}", ["-m", "workers.device", "--device", device.name])
        if spare_core(pool):
            named = [word for device in pool for word in ("--device", device.name)]
            self._spawn("builder", ["-m", "workers.builder", *named])
        self._spawn("iterations", ["-m", *iteration_worker()], secrets=True)

    def _spawn(self, name: str, arguments: list[str], *, secrets: bool = False) -> Child:
        child = Child(name, [sys.executable, *arguments], self.logs, self._env(secrets=secrets))
        self.children.append(child)
        return child.start()

    def _env(self, *, secrets: bool = False) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(SECRET_PREFIXES)}
        env["SPECGEN_HOME"] = str(self.settings.home_path)
        env["SPECGEN_CACHE"] = str(self.settings.cache_path)
        env["SPECGEN_REDIS_URL"] = self.settings.redis
        for group in ("forks", "pool", "evaluation"):  # as this command has them, its flags included
            env |= _variables(f"SPECGEN_{group}", getattr(self.settings, group).model_dump(mode="json"))
        env["OMP_NUM_THREADS"] = "1"  # a CPU device is one core; the workers themselves need none
        if secrets:
            env["SPECGEN_DATABASE_URL"] = self.settings.database
            env |= {k: v for k, v in os.environ.items() if k.startswith("SPECGEN_LLM")}
            if self.model is not None:
                given = self.model.model_dump(mode="json") | {"api_key": self.model.api_key.get_secret_value()}
                env |= _variables(f"SPECGEN_LLM__{self.profile}", given)
        return env

    def _await_devices(self, pool: list[Device]) -> None:
        """Until they have registered; those of other hosts on the same Redis do not count."""
        host = socket.gethostname()
        ours = {f"device-{'cpu' if device.backend == 'cpu' else 'gpu'}{device.index}@{host}" for device in pool}
        with PoolState(self.settings.redis, self.settings.prefix) as state:
            self._await(lambda: ours <= {device.worker for device in state.devices()}, f"{len(ours)} devices")

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

    # ------------------------------------------------------------------------------------------ keep

    def keep(self) -> None:
        """Start again what dies, until a signal; tells what goes wrong and when it is over.

        Raises InfrastructureError once a process does not stay up.
        """
        supervisor, looked_at, troubles = Supervisor(self.restarts, self.tell), 0.0, set[str]()
        while True:
            kept: list[Restartable] = [*([self.valkey] if self.valkey is not None else []), *self.children]
            now = time.monotonic()
            supervisor.step(kept, now)
            if now - looked_at >= LOOK_S:
                looked_at, found = now, self._disk_troubles()
                for trouble in sorted(found ^ troubles):
                    self.tell(trouble if trouble in found else f"over: {trouble}")
                troubles = found
            time.sleep(0.25)

    def _disk_troubles(self) -> set[str]:
        found = set()
        if self.valkey is not None and (error := self.valkey.write_error()):
            found.add(f"Valkey refuses writes, {error}: jobs wait until {self.settings.home_path} has space")
        dropped = {child.pump.file.trouble for child in self.children if child.pump is not None} - {""}
        found |= {f"logs cannot be written ({cause}): lines are dropped" for cause in dropped}
        return found

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


def _variables(group: str, values: Mapping[str, object]) -> dict[str, str]:
    """A group of settings as environment variables; what is not set stays unset."""
    return {
        f"{group}__{name}".upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value is not None
    }
