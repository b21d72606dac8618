"""Trying a problem before any job runs it: ``python -m specgen.evaluation.register PROBLEM`` prints one JSON object.

The reference runs in a process of its own, under a time limit; its tolerance is tried on strawmen (zeros, the mean, a
copy of an input). :func:`register` is the call for the client and the CLI and imports no torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import specgen
from specgen.errors import ProblemError
from specgen.evaluation.kernelbench import Needs, needs
from specgen.evaluation.problems import Backend, load_problem
from specgen.types import ProblemSpec

_START = "import sys; sys.path.insert(0, sys.argv[1]); from specgen.evaluation import register; register.serve()"


@dataclass(frozen=True)
class Registration:
    """What a problem costs and whether its tolerance is fit. Bytes count every stored element once."""

    name: str
    origin: str
    sha256: str
    backend: str
    tolerance: float
    device: str  # what the floor is of
    limits: str  # where gb_s and gflop_s come from: measured here, or a data sheet
    gb_s: float  # of a copy
    gflop_s: float  # of the fastest products that can meet the tolerance
    input_bytes: int
    parameter_bytes: int  # buffers too
    output_bytes: int
    peak_bytes: int  # inputs, parameters and all that is alive at once in forward
    moved_bytes: int  # what is read of inputs and parameters, and outputs
    outputs: list[str]  # such as "float32 [1024, 1024]"
    flops: float  # of the reference: products, and one per element of any other operator
    product_flops: float
    needed_flops: float  # stated by the problem; 0: not stated
    floor_ms: float  # bytes moved once at gb_s, or needed_flops at gflop_s
    floor_bound: str  # memory or arithmetic
    warnings: list[str]
    reference_ms: float | None = None  # median of repeated runs; None: it was not run
    distributions: int = 0  # on how many kinds of inputs candidates will be tried
    strawmen: list[str] = field(default_factory=list)  # accepted on every kind of inputs; empty is good
    straw_errors: dict[str, dict[str, float]] = field(default_factory=dict)  # by kind, relative to the output's scale


def register(problem: ProblemSpec, timeout_s: float = 120.0) -> Registration:
    """Run the reference in a subprocess. Raises ProblemError with one line and a hint."""
    wanted = needs(problem.source)
    if wanted.objects:
        names, packages = ", ".join(wanted.objects), ", ".join(wanted.packages)
        raise ProblemError(
            f"{problem.name} cannot be judged: get_init_inputs() gives {names}, an object of {packages}, which does not"
            " reach the candidate's process",
            "init inputs are numbers, strings, tensors, and lists and dicts of them" + _downloads(wanted)
            + "; the candidate's process has no network",
        )  # fmt: skip
    if wanted.missing:
        raise ProblemError(
            f"{problem.name} needs what is not installed here: {wanted.text}",
            f"pip install {' '.join(wanted.missing)}, here and on every device host" + _downloads(wanted),
        )
    place = str(Path(specgen.__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory(prefix="specgen-") as folder:
        answer = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [sys.executable, "-c", _START, place, str(answer)],
                input=problem.model_dump_json(), capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise ProblemError(
                f"the reference did not finish within {timeout_s:g} s", "use smaller sizes or a longer limit"
            ) from exc
        if not answer.is_file():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise ProblemError(f"the reference's process died: {last[:300]}", "does it fit into this machine's memory?")
        report = json.loads(answer.read_text())
    if "error" in report:
        raise ProblemError(report["error"], report["hint"] + _downloads(wanted))
    return Registration(**report)


def _downloads(wanted: Needs) -> str:
    if not wanted.downloads:
        return ""
    return f"; {', '.join(wanted.downloads)} comes from huggingface.co when the file is first run"


def serve() -> None:
    """In the subprocess: the problem on standard input, the answer's path as an argument."""
    problem = ProblemSpec.model_validate_json(sys.stdin.read())
    try:
        report: dict[str, Any] = asdict(examine(problem))
    except ProblemError as exc:
        report = {"error": exc.message, "hint": exc.hint}
    Path(sys.argv[2]).write_text(json.dumps(report))


def examine(problem: ProblemSpec) -> Registration:
    """Run the reference here. Raises ProblemError."""
    from specgen.evaluation.examine import examine_reference
    from specgen.evaluation.verdict import Verdict

    try:
        return Registration(**examine_reference(problem))
    except Verdict as verdict:
        first = verdict.error.splitlines()[0]
        raise ProblemError(
            first, "check that get_inputs() fits forward() and get_init_inputs() fits Model()"
        ) from verdict


def main(argv: list[str] | None = None) -> int:
    """The command. Exit code 2 and one line for a problem that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m specgen.evaluation.register", description=__doc__)
    parser.add_argument("problem", help="a built-in name, the path of a KernelBench-format file, or L1/12")
    parser.add_argument("--backend", choices=get_args(Backend), default="cpu")
    parser.add_argument("--tolerance", type=float, default=None)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds")
    given = parser.parse_args(argv)
    try:
        registration = register(load_problem(given.problem, given.backend, tolerance=given.tolerance), given.timeout)
    except ProblemError as exc:
        sys.stderr.write(f"{exc.message}{'. ' if exc.hint else ''}{exc.hint}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(registration)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
