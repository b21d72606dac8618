"""Commands that run the system: up, worker, migrate, dashboard, metrics."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import typer

from specgen.cli.main import app
from specgen.cli.run import access_of, configure, console
from specgen.errors import SettingsError
from specgen.evaluation.cell import Device, devices
from specgen.runtime.stack import Stack, Synthetic, chosen_gpus, iteration_worker
from specgen.settings import Settings
from specgen.store import migrate as migrate_database

worker = typer.Typer(no_args_is_help=True, help="Run one worker process of the distributed system.")
app.add_typer(worker, name="worker")


def become(*arguments: str) -> None:
    """Replace this process: signals and exit codes are the worker's own."""
    os.execv(sys.executable, [sys.executable, "-m", *arguments])


@app.command()
def up(
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint")] = "",
    model_name: Annotated[str, typer.Option("--model", help="model name")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="key of the endpoint")] = "",
    gpus: Annotated[str, typer.Option(help="GPUs that serve: all, or numbers such as 0,1")] = "",
    cpu_devices: Annotated[int, typer.Option(help="cores that serve; default: all, with --gpus none")] = -1,
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
    synthetic: Annotated[float, typer.Option(help="synthetic model server's speed instead of an LLM")] = 0.0,
) -> None:
    """The whole system until Ctrl-C or SIGTERM, for weeks: what dies is started again.

    SPECGEN_REDIS_URL and SPECGEN_DATABASE_URL name services that exist already; without them it keeps its own.
    """
    if cpu_devices > 0:
        os.environ["SPECGEN_EVALUATION__CPU_DEVICES"] = str(cpu_devices)
    settings = configure(home, "")
    pool = _chosen(settings, gpus, cpu_devices)
    access = None if synthetic else access_of(settings, "default", base_url, model_name, api_key)
    given = Synthetic(synthetic) if synthetic else None
    try:
        with Stack(settings, access, given, tell=_tell, pool=pool, patient=True) as stack:
            _tell(f"up; SPECGEN_REDIS_URL={_shown(settings.redis)} SPECGEN_DATABASE_URL={_shown(settings.database)}")
            stack.keep()
    except KeyboardInterrupt:
        _tell("stopped")


def _chosen(settings: Settings, gpus: str, cpu_devices: int) -> list[Device]:
    cores = [] if cpu_devices == 0 or (gpus and cpu_devices < 0) else devices(settings)
    pool = [*cores, *(chosen_gpus(gpus) if gpus else [])]
    if not pool and not settings.redis_url:
        raise SettingsError(
            "no device is chosen, and no other host could serve",
            "give --gpus or --cpu-devices, or SPECGEN_REDIS_URL of a Redis that other hosts' devices reach",
        )
    return pool


def _tell(line: str) -> None:
    console.print(line, markup=False)


def _shown(url: str) -> str:
    """Without its password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


@worker.command("device")
def worker_device(
    gpu: Annotated[int, typer.Option(help="index of the GPU")] = -1,
    device: Annotated[str, typer.Option(help="name of the device, such as cpu:0")] = "",
) -> None:
    """One device: validates and profiles, alone on it."""
    if (gpu < 0) == (not device):
        raise SettingsError("a device worker needs --gpu N or --device NAME, one of them", "such as --device cpu:0")
    become("workers.device", *(["--gpu", str(gpu)] if gpu >= 0 else ["--device", device]))


@worker.command("builder")
def worker_builder(
    device: Annotated[list[str] | None, typer.Option(help="a device of this host, such as cpu:0; repeatable")] = None,
    gpus: Annotated[str, typer.Option(help="GPUs of this host: all, or numbers such as 0,1")] = "",
) -> None:
    """One a host: builds candidates that wait, before a device is spent on it."""
    named = [word for name in device or [] for word in ("--device", name)]
    become("workers.builder", *named, *(["--gpus", gpus] if gpus else []))


@worker.command("iterations")
def worker_iterations(concurrency: Annotated[int, typer.Option(help="iterations at a time")] = 64) -> None:
    """Iterations of jobs: SpecController. Needs the database and the LLM profiles."""
    become(*iteration_worker(concurrency))


@worker.command("scheduler")
def worker_scheduler() -> None:
    """ElasticScheduler; a second one waits as a standby."""
    become("workers.scheduler")


@app.command()
def dashboard(
    address: Annotated[str, typer.Option(envvar="FLOWER_ADDRESS", help="to bind")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="FLOWER_PORT", min=1, max=65535, help="to bind")] = 5555,
    basic_auth: Annotated[str, typer.Option(envvar="FLOWER_BASIC_AUTH", help="name:password")] = "",
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
) -> None:
    """Flower: workers, tasks and queues, live."""
    configure(home, "")
    os.environ |= {"FLOWER_ADDRESS": address, "FLOWER_PORT": str(port)}
    if basic_auth:
        os.environ["FLOWER_BASIC_AUTH"] = basic_auth
    become("workers.dashboard")


@app.command()
def metrics(
    address: Annotated[str, typer.Option(envvar="SPECGEN_METRICS_ADDRESS", help="to bind")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="SPECGEN_METRICS_PORT", min=1, max=65535, help="to bind")] = 9464,
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
) -> None:
    """Prometheus metrics of queues and devices, at /metrics."""
    configure(home, "")
    become("workers.metrics", "--address", address, "--port", str(port))


@app.command()
def migrate() -> None:
    """Bring the database to the newest schema."""
    settings = configure("", "")
    settings.home_path.mkdir(parents=True, exist_ok=True)
    migrate_database(settings.database)
    console.print("database is at the newest schema", markup=False)
