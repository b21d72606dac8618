"""Commands that run the system: up, worker, model serve, migrate, dashboard, problems."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from specgen.cli.main import app
from specgen.cli.run import access_of, configure, console
from specgen.errors import SettingsError
from specgen.evaluation.problems import builtin_names
from specgen.runtime.stack import Stack, Synthetic, iteration_worker
from specgen.store import migrate as migrate_database

worker = typer.Typer(no_args_is_help=True, help="Run one worker process of the distributed system.")
model = typer.Typer(no_args_is_help=True, help="The project's own model server.")
app.add_typer(worker, name="worker")
app.add_typer(model, name="model")


def _become(*arguments: str) -> None:
    """Replace this process: signals and exit codes are the worker's own."""
    os.execv(sys.executable, [sys.executable, "-m", *arguments])


@app.command()
def up(
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint")] = "",
    model_name: Annotated[str, typer.Option("--model", help="model name")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="key of the endpoint")] = "",
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
    synthetic: Annotated[float, typer.Option(help="synthetic model server's speed instead of an LLM")] = 0.0,
) -> None:
    """The whole embedded system until Ctrl-C, for jobs submitted by `specgen.Client`."""
    settings = configure(home, "")
    access = None if synthetic else access_of(settings, "default", base_url, model_name, api_key)
    with Stack(settings, access, Synthetic(synthetic) if synthetic else None, tell=console.print) as stack:
        console.print(f"up; SPECGEN_REDIS_URL={settings.redis} SPECGEN_DATABASE_URL={settings.database}", markup=False)
        try:
            while True:
                stack.check()
                time.sleep(1.0)
        except KeyboardInterrupt:
            console.print("stopping", markup=False)


@worker.command("device")
def worker_device(
    gpu: Annotated[int, typer.Option(help="index of the GPU")] = -1,
    device: Annotated[str, typer.Option(help="name of the device, such as cpu:0")] = "",
) -> None:
    """One device: validates and profiles, alone on it."""
    if (gpu < 0) == (not device):
        raise SettingsError("a device worker needs --gpu N or --device NAME, one of them", "such as --device cpu:0")
    _become("workers.device", *(["--gpu", str(gpu)] if gpu >= 0 else ["--device", device]))


@worker.command("iterations")
def worker_iterations(concurrency: Annotated[int, typer.Option(help="iterations at a time")] = 64) -> None:
    """Iterations of jobs: SpecController. Needs the database and the LLM profiles."""
    _become(*iteration_worker(concurrency))


@worker.command("scheduler")
def worker_scheduler() -> None:
    """ElasticScheduler; a second one waits as a standby."""
    _become("workers.scheduler")


@model.command(
    "serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def model_serve(context: typer.Context) -> None:
    """An OpenAI-compatible server with the synthetic source (`--help` lists its options)."""
    _become("specgen.llm.server", *context.args)


@app.command()
def dashboard(
    address: Annotated[str, typer.Option(envvar="FLOWER_ADDRESS", help="to bind")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="FLOWER_PORT", help="to bind")] = 5555,
    basic_auth: Annotated[str, typer.Option(envvar="FLOWER_BASIC_AUTH", help="name:password")] = "",
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
) -> None:
    """Flower: workers, tasks and queues, live."""
    configure(home, "")
    os.environ |= {"FLOWER_ADDRESS": address, "FLOWER_PORT": str(port)}
    if basic_auth:
        os.environ["FLOWER_BASIC_AUTH"] = basic_auth
    _become("workers.dashboard")


@app.command()
def migrate() -> None:
    """Bring the database to the newest schema."""
    settings = configure("", "")
    settings.home_path.mkdir(parents=True, exist_ok=True)
    migrate_database(settings.database)
    console.print("database is at the newest schema", markup=False)


@app.command()
def problems() -> None:
    """The built-in problems."""
    for name in builtin_names():
        console.print(name, markup=False)
