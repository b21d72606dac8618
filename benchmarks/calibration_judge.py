"""The source's word against the evaluator's: sampled CPU kernels, really built and validated."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibration_samples import Attempt, asked, attempt_of, task_of
from benchmarks.figures import figure
from specgen.controller.answers import extract
from specgen.llm.synthetic import Rates, SyntheticSource
from specgen.llm.synthetic.flaws import Flaw
from specgen.types import Status

_JUDGED = {
    Flaw.NONE: {Status.VALID},
    Flaw.COMPILE: {Status.COMPILE_ERROR, Status.LOAD_ERROR},
    Flaw.RAISES: {Status.RUNTIME_ERROR, Status.LOAD_ERROR},
    Flaw.FAULT: {Status.DEVICE_FAULT},
    Flaw.NUMERIC: {Status.WRONG_VALUE, Status.NOT_FINITE},
    Flaw.NO_CODE: {Status.NO_CODE},
    Flaw.NO_MODELNEW: {Status.NO_MODELNEW},
}


def judge(count: int, names: Sequence[str]) -> None:
    """Validate ``count`` kernels; every kind of mistake has its turn."""
    agreed = 0
    kinds = [Flaw.NONE, Flaw.COMPILE, Flaw.NUMERIC, Flaw.FAULT, Flaw.RAISES, Flaw.NO_MODELNEW]
    for number in range(count):
        name = names[number % len(names)]
        attempt = _sampled(name, kinds[number % len(kinds)])
        status = _status(name, attempt)
        agreed += status in _JUDGED[attempt.flaw]
        print(f"  {name}: {attempt.flaw.value} by the source, {status.value} by the evaluator", flush=True)
    figure("judged as the source said", 100 * agreed / count, "%", "100", agreed == count)


def _sampled(name: str, flaw: Flaw) -> Attempt:
    """The first answer with that mistake."""
    source = SyntheticSource(seed=9, rates=Rates(trace_tokens_mean=200))
    told = (attempt_of(source.tell(asked(name, seed))) for seed in range(10_000))
    return next(attempt for attempt in told if attempt.flaw is flaw)


def _status(name: str, attempt: Attempt) -> Status:
    answer = extract(attempt.content)
    if answer.source is None:
        assert answer.status is not None
        return answer.status
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.py"
        path.write_text(answer.source)
        command = [
            sys.executable,
            "-m",
            "specgen",
            "evaluate",
            str(path),
            "--problem",
            task_of(name).name,
            "--phase",
            "validate",
        ]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not rows:
        raise RuntimeError(f"{name} was not judged: {done.stderr[-500:]}")
    return Status(json.loads(rows[-1])["status"])
