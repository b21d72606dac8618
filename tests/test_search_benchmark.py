"""The benchmark of search algorithms: what its simulated device says is what the source says, and a short run ends."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.search import cost, report
from benchmarks.search.cell import SERVICE_S, STATUS, SimulatedCell, judge, service_s
from benchmarks.search.jobs import Measured, Run
from specgen.llm.synthetic.flaws import Flaw, spoil
from specgen.llm.synthetic.tasks import TASKS
from specgen.types import EvaluationRequest, Origin, Phase, ProblemSpec, Status, source_id

ROOT = Path(__file__).parents[1]


def request(source: str, phase: Phase = Phase.VALIDATE) -> EvaluationRequest:
    return EvaluationRequest(
        request_id="r",
        job_id="j",
        iteration=0,
        candidate_id=source_id(source),
        phase=phase,
        origin=Origin.MAIN,
        source=source,
        problem=ProblemSpec(name="p", source="x"),
    )


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_the_status_is_that_of_the_mistake_and_the_speedup_that_of_the_design(task):
    rng = random.Random(1)
    for flaw in STATUS:
        design = task.space.sample(rng, careful=False)
        source = spoil(task.render(design), task, flaw, rng)

        result = judge(request(source, Phase.PROFILE))

        assert result.status is STATUS[flaw]
        if flaw is Flaw.NONE:
            assert result.speedup == pytest.approx(cost.speedup(task.name, design), rel=0.1)
            assert result.profile is not None


def test_what_the_synthetic_model_did_not_write_is_refused():
    assert judge(request("class ModelNew: pass")).status is Status.LOAD_ERROR
    source = TASKS[0].render(TASKS[0].space.extreme(best=True))
    assert judge(request(source.replace("return", "return  "))).status is Status.LOAD_ERROR
    assert judge(request(SimulatedCell.PROBE)).status is Status.VALID


def test_service_times_are_the_papers_on_average_and_scale_with_the_speed():
    for phase, mean in SERVICE_S.items():
        times = [service_s(request(f"source {number}", phase), 10.0) for number in range(400)]
        assert statistics.fmean(times) == pytest.approx(mean / 10, rel=0.03)
        assert max(times) < 1.31 * mean / 10


def test_bootstrap_tells_a_difference_from_none():
    rng = random.Random(1)
    assert report.bootstrap([rng.gauss(1, 1) for _ in range(40)], rng)[2] < 0.01
    assert 0.2 < report.bootstrap([1.0, -1.0, 0.5, -0.5], rng)[2] < 0.8
    assert report.geometric([2.0, 8.0]) == pytest.approx(4.0)
    assert report.geometric([]) == report.geometric([0.0, 1.0]) == 0.0


def measured(variant: str, seed: int, curve: tuple[float, ...]) -> Measured:
    run = Run(variant, "refine", "T4", seed, len(curve), speculation=False)
    return Measured(run, "done", 100.0, len(curve), 5, 0.5, 1, 1000, 500, curve, curve[0])


def test_withheld_feedback_is_compared_by_pairs_of_task_and_seed(capsys):
    fed = [measured("refine", seed, (1.0, 2.0 + seed, 4.0 + seed)) for seed in range(5)]
    blind = [measured("nothing", seed, (1.0, 1.5 + seed, 2.0 + seed)) for seed in range(5)]

    report.feedback_matters(fed, {"nothing": blind[::-1]})
    report.terminations(fed, {"never": blind})

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    values = {row["name"]: row for row in rows}
    assert values["feedback over nothing: best so far"]["holds"]
    assert values["feedback over nothing: pairs ahead"]["value"] == 1.0
    assert values["termination never: best kernel"]["value"] < 1.0


def test_a_short_run_prints_what_is_simulated_and_its_figures(tmp_path):
    command = ["-m", "benchmarks.search", "--algorithms", "refine", "--tasks", "T4", "--iterations", "2"]
    command += ["--speed", "1500", "--devices", "1", "--seeds", "0", "--criteria", ""]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("SIMULATED devices")
    rows = {row["name"]: row for row in (json.loads(line) for line in lines if line.startswith("{"))}
    assert "all algorithms, geometric mean: time" in rows
    assert all(math.isfinite(row["value"]) for row in rows.values())
    assert sum(" done: " in line for line in lines) == 2
