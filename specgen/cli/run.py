"""`specgen run`, `specgen demo`, `specgen resume`: one job with live progress, embedded or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from specgen.cli import suite as suites
from specgen.cli.live import Progress
from specgen.cli.main import app, terminal
from specgen.client import Client
from specgen.controller import termination
from specgen.errors import ModelAccessError, SettingsError, UserError
from specgen.evaluation.problems import backend_of, load_problem
from specgen.llm import detect
from specgen.prompts import Renderer
from specgen.report.table import job_table
from specgen.runtime.stack import Stack, Synthetic
from specgen.search import check_lanes
from specgen.settings import PRICE_HINT, ModelProfile, Settings, get_settings
from specgen.types import JobSpec, JobState, ProblemSpec

CHECK_EVERY_S = 1.0

console = terminal()
SYNTHETIC = "specgen-synthetic"  # the model name of the project's own server

Iterations = Annotated[int, typer.Option(min=1, help="iteration budget")]
Search = Annotated[str, typer.Option(help="best_of_n, refine, cudaforge, kernelagent, alphaevolve, or module:Class")]
Termination = Annotated[str, typer.Option(help="termination criterion: a name or module:callable")]


@app.command()
def run(
    path: Annotated[str, typer.Argument(metavar="[PROBLEM]", help="T1 … T20, E1, L1/12, or a file")] = "",
    suite: Annotated[str, typer.Option(help="several: level1 … level4, paper, a folder, or a TOML of jobs")] = "",
    pick: Annotated[str, typer.Option(help="of the suite, such as 10…18 or 1,4,12")] = "",
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint")] = "",
    model: Annotated[str, typer.Option(help="model name")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="key of the endpoint")] = "",
    profile: Annotated[str, typer.Option(help="named LLM profile of specgen.toml")] = "default",
    iterations: Iterations = 10,
    search: Search = "refine",
    lanes: Annotated[int, typer.Option(min=1, help="main generations at a time, where the search allows it")] = 1,
    termination_name: Annotated[str, typer.Option("--termination", help="criterion")] = "historical_mean",
    speculation: Annotated[bool, typer.Option(help="fork during the reasoning")] = True,
    seed: Annotated[int, typer.Option(help="of the search and of the generations")] = 0,
    max_tokens: Annotated[int, typer.Option(min=16, help="per generation")] = 32_768,
    backend: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    tolerance: Annotated[float, typer.Option(help="absolute and relative; 0: the problem's default")] = 0.0,
    token_budget: Annotated[int, typer.Option(min=0, help="end the job after that many tokens; 0: none")] = 0,
    time_budget: Annotated[
        float, typer.Option(min=0, help="end the job after that many seconds of work; 0: none")
    ] = 0.0,
    cost_budget: Annotated[float, typer.Option(min=0, help="end it once it cost that, by the profile's price")] = 0.0,
    target: Annotated[float, typer.Option(min=0, help="end it once a kernel is that many times faster; 0: no")] = 0.0,
    plateau: Annotated[int, typer.Option(min=0, help="end it after that many iterations without a faster kernel")] = 0,
    device: Annotated[str, typer.Option(help="label of the devices that may serve it, such as h200")] = "",
    priority: Annotated[int, typer.Option(min=-9, max=9, help="higher goes first")] = 0,
    prompts: Annotated[str, typer.Option(help="folder of your own templates, looked up first")] = "",
    sandbox: Annotated[str, typer.Option(help="bubblewrap, or none (your own decision)")] = "",
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
    synthetic: Annotated[float, typer.Option(help="speed of the synthetic model server, instead of an LLM")] = 0.0,
    success: Annotated[float, typer.Option(help="of the synthetic model, times the paper's rates")] = 1.0,
) -> None:
    """Optimise one problem's kernel, or those of a suite side by side; print a table and where the best ones are."""
    if bool(path) == bool(suite):
        raise SettingsError("a problem or a --suite is needed, one of them", "such as T4, or --suite paper --pick 1,4")
    settings = configure(home, sandbox)
    check_lanes(search, lanes)
    termination.resolve(termination_name)
    Renderer(prompts or None)
    wanted = suites.chosen(suite, pick, backend_of(backend)) if suite else [suites.Wanted(path, {})]
    if path:
        load_problem(path, backend_of(backend))  # a wrong file is told before anybody is asked
    access = None if synthetic else access_of(settings, profile, base_url, model, api_key)
    if cost_budget and (access is None or access.price is None):
        raise SettingsError("a cost budget needs a price, and this LLM profile has none", PRICE_HINT)
    base = JobSpec(
        problem=ProblemSpec(name="", source="", backend=backend_of(backend)),
        llm_profile="default" if synthetic else profile,
        model=model or (SYNTHETIC if synthetic else access.model if access else ""),
        search=search,
        termination=termination_name,
        iterations=iterations,
        lanes=lanes,
        speculation=speculation,
        seed=seed,
        max_tokens=max_tokens,
        token_budget=token_budget or None,
        time_budget_s=time_budget or None,
        cost_budget=cost_budget or None,
        target_speedup=target or None,
        plateau=plateau or None,
        device=device,
        priority=priority,
        prompt_dir=str(Path(prompts).resolve()) if prompts else "",
    )
    if tolerance:
        wanted = [suites.Wanted(item.problem, {"tolerance": tolerance} | item.fields) for item in wanted]
    jobs, left_out = suites.specs(wanted, base, lambda line: console.print(line, markup=False), alone=not suite)
    made = Synthetic(synthetic, seed, success) if synthetic else None
    with _system(settings, access, made, jobs) as (client, stack):
        if suite:
            check = stack.check if stack is not None else lambda: None
            raise typer.Exit(suites.follow(client, jobs, left_out, console, check))
        _follow(client, client.submit(jobs[0]), settings, stack)


@app.command()
def demo(
    name: Annotated[str, typer.Argument(metavar="PROBLEM", help="T1, T4, T12 or E1")] = "T4",
    iterations: Iterations = 8,
    speed: Annotated[float, typer.Option(help="of the synthetic model server, times the paper's token rate")] = 60.0,
    seed: Annotated[int, typer.Option(help="of search and model")] = 1,
    success: Annotated[float, typer.Option(help="of the model, times the paper's rates of valid kernels")] = 2.5,
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
) -> None:
    """Everything on this machine, with the synthetic model server: no GPU, no Redis, no Postgres, no LLM key."""
    run(name, iterations=iterations, seed=seed, home=home, synthetic=speed, success=success)


@app.command()
def resume(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="key of the endpoint")] = "",
    home: Annotated[str, typer.Option(help="folder of the embedded system's state")] = "",
    synthetic: Annotated[float, typer.Option(help="speed of the synthetic model server, instead of an LLM")] = 0.0,
) -> None:
    """Go on with a job that was paused, stopped (Ctrl-C too) or failed, or whose processes were killed."""
    settings = configure(home, "")
    with contextlib.closing(Client(settings)) as reader:  # before anything is started: is there such a job?
        job = reader.job(job_id)
        if job.state in (JobState.DONE, JobState.CANCELLED):
            raise UserError(f"job {job_id} is {job.state}: {job.reason}", "submit a new one")
    if not synthetic and not base_url and job.spec.model == SYNTHETIC:
        synthetic = 60.0
    access = None if synthetic else access_of(settings, job.spec.llm_profile, base_url, job.spec.model, api_key)
    made = Synthetic(synthetic, job.spec.seed) if synthetic else None
    with _system(settings, access, made, [job.spec]) as (client, stack):
        _follow(client, job_id, settings, stack, since=client.resume(job_id))


def configure(home: str, sandbox: str) -> Settings:
    """The process's settings with these flags; through the environment, since Celery's configuration reads it too."""
    if sandbox not in ("", "bubblewrap", "none"):
        raise SettingsError(f"no sandbox is called {sandbox!r}", "bubblewrap or none")
    for name, value in (("SPECGEN_HOME", home), ("SPECGEN_EVALUATION__SANDBOX", sandbox)):
        if value:
            os.environ[name] = value
    get_settings.cache_clear()
    return get_settings()


def access_of(settings: Settings, name: str, base_url: str, model: str, api_key: str) -> ModelProfile:
    """The LLM to use, tried once. Raises ModelAccessError or SettingsError before anything is started."""
    profile = profile_of(settings, name, base_url, model, api_key)
    seen = asyncio.run(detect(profile))
    plain = f"; {settings.forks.plain} plain generations beside each main one" if settings.forks.plain else ""
    can = "forks the reasoning" if seen.can_fork else f"no speculation: {seen.why_not}{plain}"
    console.print(f"LLM: {seen.model} at {profile.base_url} ({seen.dialect}): {can}", markup=False)
    return profile.model_copy(update={"model": seen.model})


def profile_of(settings: Settings, name: str, base_url: str, model: str, api_key: str) -> ModelProfile:
    """A named profile with what the command line gives. Raises ModelAccessError or SettingsError; asks nobody."""
    if name not in settings.llm and name != "default":
        raise SettingsError(f"no LLM profile is called {name!r}", f"profiles: {', '.join(settings.llm) or 'none'}")
    profile = settings.llm.get(name, ModelProfile())
    given = {"base_url": base_url, "model": model, "api_key": SecretStr(api_key) if api_key else None}
    profile = profile.model_copy(update={key: value for key, value in given.items() if value})
    if not profile.base_url:
        raise ModelAccessError(
            "no LLM endpoint is set", "give --base-url and --model, or --synthetic 60 for the synthetic model server"
        )
    return profile


@contextlib.contextmanager
def _system(
    settings: Settings, access: ModelProfile | None, synthetic: Synthetic | None, jobs: Sequence[JobSpec]
) -> Iterator[tuple[Client, Stack | None]]:
    """The embedded system around a client; or only the client where SPECGEN_REDIS_URL names an existing system."""
    if settings.redis_url:
        with contextlib.closing(Client(settings)) as client:
            yield client, None
        return
    backends = {job.problem.backend for job in jobs}
    if len(backends) > 1:
        raise SettingsError("the suite has jobs of two backends", "start the system with `specgen up --gpus all` first")
    stack = Stack(settings, access, synthetic, backends.pop(), jobs[0].llm_profile, _starting)
    with stack, contextlib.closing(Client(settings)) as client:
        yield client, stack


def _starting(line: str) -> None:
    console.print(f"starting: {line}", markup=False)


def _follow(client: Client, job_id: str, settings: Settings, stack: Stack | None, since: str = "0") -> None:
    """Show the job until it ends; Ctrl-C stops it so that `specgen resume` can go on. Exits 0 only if it is done."""
    job = client.job(job_id)
    console.print(f"job {job_id}: {job.spec.problem.name}, {job.spec.iterations} iterations, {job.spec.search}")
    try:
        with Progress(console, job.spec.iterations) as progress:
            checked = time.monotonic()
            for event in client.events(job_id, since=since):
                progress.add(event)
                if event is None and client.job(job_id).state.terminal:
                    break
                if stack is not None and time.monotonic() - checked > CHECK_EVERY_S:
                    stack.check()  # a process that was killed: say so instead of waiting for it
                    checked = time.monotonic()
    except KeyboardInterrupt:
        url = stack.model.base_url if stack is not None and stack.model is not None and not stack.synthetic else ""
        again = {"--home": os.environ.get("SPECGEN_HOME", ""), "--base-url": url}
        with contextlib.suppress(UserError):  # it has ended meanwhile
            client.stop(job_id)
        with contextlib.suppress(TimeoutError):
            client.wait(job_id, timeout_s=15.0)
        flags = "".join(f" {name} {value}" for name, value in again.items() if value)
        console.print(f"\nstopped; go on with: specgen resume {job_id}{flags}", markup=False)
        raise typer.Exit(130) from None
    _conclude(client, job_id, settings)


def _conclude(client: Client, job_id: str, settings: Settings) -> None:
    job, best = client.job(job_id), client.best(job_id)
    console.print(job_table(client.store, job_id))
    if best is not None:
        folder = settings.home_path / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{job_id}.py"
        path.write_text(best.source)
        console.print(f"best kernel: {best.speedup:.3f}x over the reference, iteration {best.iteration + 1}")
        console.print(str(path), markup=False, soft_wrap=True)
    else:
        console.print(f"no valid kernel: {job.reason}", markup=False)
    if job.state in (JobState.PAUSED, JobState.STOPPED):
        console.print(f"{job.reason}; go on with: specgen resume {job_id}", markup=False)
    if job.state is not JobState.DONE:
        raise typer.Exit(3)
