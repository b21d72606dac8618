"""Several problems in one run: which ones (`--suite`, `--pick`, a TOML of jobs), their jobs side by side, a table.

A problem that cannot be loaded or whose reference fails is left out and listed; the others run. All jobs share one
pool, where turns are fair (docs/policy.md).
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from specgen.client import Client
from specgen.errors import ProblemError, SettingsError, SpecGenError
from specgen.evaluation.kernelbench import checkout
from specgen.evaluation.problems import Backend, builtin_names, load_problem
from specgen.evaluation.register import register
from specgen.report.scores import Score, suite_table, summary_lines
from specgen.settings import get_settings
from specgen.types import JobSpec, JobState

POLL_S = 1.0
REGISTER_S = 120.0  # for a reference's process
_LEVEL = re.compile(r"level([1-4])")
_RANGE = re.compile(r"(\d+)\s*(?:…|\.\.\.?|-|–)\s*(\d+)")
_RESTING = (JobState.PAUSED, JobState.STOPPED)


@dataclass(frozen=True)
class Wanted:
    """A problem of the suite, and what of the job differs from the command line's."""

    problem: str
    fields: dict[str, Any]


def chosen(suite: str, pick: str, backend: Backend) -> list[Wanted]:
    """The suite's problems in order. Raises SettingsError or ProblemError: no such suite, a wrong pick or TOML."""
    if suite.endswith(".toml"):
        return _picked(_from_toml(Path(suite)), pick)
    if suite == "paper":
        names = [name for name in builtin_names(backend) if name.startswith("T")]
    elif (level := _LEVEL.fullmatch(suite)) is not None:
        names = [entry.name for entry in checkout(get_settings().kernelbench).entries(int(level[1]))]
    elif Path(suite).is_dir():
        names = [str(path) for path in sorted(Path(suite).glob("*.py"))]
    else:
        raise SettingsError(
            f"no suite {suite!r}", "level1 … level4, paper, a folder of problem files, or a TOML of jobs"
        )
    return _picked([Wanted(name, {}) for name in names], pick)


def _from_toml(path: Path) -> list[Wanted]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"{path}: {exc.strerror}", "a TOML file with [[jobs]]") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path}: {exc}", "see docs/problems.md for an example") from exc
    jobs, defaults = data.pop("jobs", None), data.pop("defaults", {})
    if data or not isinstance(jobs, list) or not jobs or not isinstance(defaults, dict):
        unknown = f"unknown {', '.join(data)}" if data else "no [[jobs]]"
        raise SettingsError(f"{path}: {unknown}", "[defaults] and one [[jobs]] for each problem")
    wanted = []
    for number, job in enumerate(jobs, 1):
        fields = defaults | job
        if not isinstance(fields.get("problem"), str):
            raise SettingsError(f"{path}: job {number} names no problem", 'such as problem = "T4"')
        name = fields.pop("problem")
        known = set(JobSpec.model_fields) - {"problem"} | {"backend", "tolerance"}
        if wrong := sorted(set(fields) - known):
            raise SettingsError(f"{path}: job {number}: unknown {', '.join(wrong)}", f"of {', '.join(sorted(known))}")
        wanted.append(Wanted(name, fields))
    return wanted


def _picked(wanted: list[Wanted], pick: str) -> list[Wanted]:
    """By the numbers in the problems' names (L1/12, T4), in the suite's order; by place where names have none."""
    if not pick:
        return wanted
    numbers: set[int] = set()
    for part in filter(None, re.split(r"[,\s]+", re.sub(r"\s*(…|\.\.\.?|–|-)\s*", r"\1", pick.strip()))):
        ends = _RANGE.fullmatch(part)
        if ends is None and not part.isdigit():
            raise SettingsError(f"--pick {pick}: {part!r} is no number or range", "such as 10…18, or 1,4,12")
        numbers |= set(range(int(ends[1]), int(ends[2]) + 1)) if ends else {int(part)}
    found = [item for place, item in enumerate(wanted, 1) if _number(item.problem, place) in numbers]
    if not found:
        raise SettingsError(f"--pick {pick}: the suite has none of these", f"it has {len(wanted)} problems")
    return found


def _number(problem: str, place: int) -> int:
    number = re.search(r"(?:^|/)[A-Za-z]*(\d+)(?:_[^/]*)?$", problem.removesuffix(".py"))
    return int(number[1]) if number else place


def specs(
    wanted: Sequence[Wanted], base: JobSpec, tell: Callable[[str], None], *, alone: bool = False
) -> tuple[list[JobSpec], list[Score]]:
    """The jobs, and the problems that are left out with their reasons. ``base`` gives what a job does not say;
    ``alone``: there is one problem, and its ProblemError is the command's."""
    jobs, left_out = [], []
    for item in wanted:
        fields = dict(item.fields)
        backend, tolerance = fields.pop("backend", base.problem.backend), fields.pop("tolerance", None)
        try:
            task = load_problem(item.problem, backend, tolerance=tolerance)
            spec = JobSpec.model_validate(base.model_dump() | fields | {"problem": task})
            for warning in register(task, REGISTER_S).warnings:
                tell(f"note: {warning}" if alone else f"note: {task.name}: {warning}")
            jobs.append(spec)
        except ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise SettingsError(f"job of {item.problem}: {where}: {first['msg']}", "see docs/problems.md") from exc
        except ProblemError as exc:
            if alone:
                raise
            tell(f"left out: {item.problem}: {exc.message}")
            left_out.append(Score(item.problem, "left out", exc.message))
    if not jobs:
        raise ProblemError("none of the suite's problems can be run", left_out[0].reason if left_out else "")
    return jobs, left_out


def follow(
    client: Client, jobs: Sequence[JobSpec], left_out: Sequence[Score], console: Console, check: Callable[[], None]
) -> int:
    """Submit all, watch until each has ended or rests, print the table. Returns the exit code; Ctrl-C stops all."""
    ids = [client.submit(spec) for spec in jobs]
    for job_id, spec in zip(ids, jobs, strict=True):
        console.print(f"job {job_id}: {spec.problem.name}, {spec.iterations} iterations, {spec.search}", markup=False)
    running = list(ids)
    try:
        while running:
            time.sleep(POLL_S)
            check()
            for job_id in list(running):
                if (state := client.job(job_id).state).terminal or state in _RESTING:
                    running.remove(job_id)
                    score = _score(client, job_id)
                    best = f"best {score.speedup:.3f}x" if score.speedup is not None else "no valid kernel"
                    ended = f"{score.problem}: {score.state}, {best} ({len(ids) - len(running)} of {len(ids)} jobs)"
                    console.print(ended, markup=False)
    except KeyboardInterrupt:
        _stop(client, running, console)
        raise typer.Exit(130) from None
    scores = [*(_score(client, job_id) for job_id in ids), *left_out]
    console.print(suite_table(scores))
    for score in left_out:
        console.print(f"left out: {score.problem}: {score.reason}", markup=False)
    for line in summary_lines(scores):
        console.print(line, markup=False)
    if any(client.job(job_id).state is not JobState.DONE for job_id in ids):
        return 3
    return 2 if left_out else 0


def _stop(client: Client, running: Sequence[str], console: Console) -> None:
    for job_id in running:
        try:
            client.stop(job_id)
        except SpecGenError:
            continue  # it has ended meanwhile
    for job_id in running:
        try:
            client.wait(job_id, timeout_s=15.0)
        except (TimeoutError, SpecGenError):
            continue
    console.print(f"\nstopped; go on with: {'; '.join(f'specgen resume {job_id}' for job_id in running)}", markup=False)


def _score(client: Client, job_id: str) -> Score:
    seen = client.store.summary(job_id)
    return Score(
        problem=seen.job.spec.problem.name,
        state=seen.job.state.value,
        reason=seen.job.reason,
        speedup=seen.best_speedup,
        iterations=seen.iterations_closed,
        profiled=seen.profiled,
        tokens=seen.tokens.total,
        cost=seen.cost,
        seconds=seen.job.active_s,
        job_id=job_id,
    )
