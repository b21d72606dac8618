"""Is the device fit? A tiny known candidate is evaluated on it, in a process of its own that can be given up.

``python -m workers.probing --device cpu0`` prints one line of JSON and always exits with 0: what it found out is the
answer. The parent of a device worker runs it (`probe`) with a time limit, so that a driver that hangs takes nothing but
that process along. The candidate is plain PyTorch: it is loaded, constructed, run and compared like any other, needs no
build (a second instead of many), and is then refused as ``library_only``, which is the verdict that proves the rest.
Not here: when a device is probed and what follows (`workers.health`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO

import structlog
from pydantic import ValidationError

from specgen.errors import SpecGenError
from specgen.evaluation.cell import Device, close_zygote
from specgen.evaluation.processes import die_with_parent
from specgen.settings import Settings, get_settings
from specgen.types import EvaluationRequest, EvaluationResult, Frozen, Origin, Phase, ProblemSpec, Status, source_id
from workers.cells import Cell, cell_class
from workers.labels import parse_device

LIMIT_S = 120.0  # of one probe: a cold file system loads torch in half a minute; SPECGEN_PROBE_LIMIT_S
PROBLEM = """\
import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return a + b


def get_inputs():
    return [torch.rand(64, 64), torch.rand(64, 64)]


def get_init_inputs():
    return []
"""
CANDIDATE = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return torch.add(a, b)
"""

log = structlog.get_logger(__name__)


class Finding(Frozen):
    """What a probe found: ``why`` is empty where the device is fit."""

    why: str = ""
    seconds: float = 0.0


def examine(device: Device, settings: Settings, cell_type: type[Cell], limit_s: float) -> Finding:
    """Evaluate the known candidate once, here."""
    started = time.monotonic()
    policy = settings.evaluation.model_copy(update={"build": "stock"})  # nothing is built: wait for no build support
    try:
        cell = cell_type.start(device, policy, settings.cache_path)
    except SpecGenError as exc:
        return Finding(why=exc.message, seconds=time.monotonic() - started)
    try:
        cell.submit(_request(device, cell_type, limit_s))
        result = cell.poll(limit_s)
    finally:
        cell.kill(0.5)
    return Finding(why=_fault(result, limit_s), seconds=round(time.monotonic() - started, 3))


def _request(device: Device, cell_type: type[Cell], limit_s: float) -> EvaluationRequest:
    source = str(getattr(cell_type, "PROBE", CANDIDATE))
    return EvaluationRequest(
        request_id=f"probe-{os.getpid()}",
        job_id="probe",
        iteration=0,
        candidate_id=source_id(source),
        phase=Phase.VALIDATE,
        origin=Origin.MAIN,
        source=source,
        problem=ProblemSpec(name="probe", source=PROBLEM, backend=device.backend),
        label=device.backend,
        time_budget_s=limit_s,
    )


def _fault(result: EvaluationResult | None, limit_s: float) -> str:
    if result is None:
        return f"no answer within {limit_s:g} s"
    expected = result.status is Status.REJECTED and result.rule.startswith("library_only")
    if expected or result.status is Status.VALID:
        return ""
    return f"{result.status}: {' '.join(result.error.split())[:300]}"


@dataclass(frozen=True)
class Running:
    """A probe that was started."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]  # a file, not a pipe: a process forked meanwhile would keep that open
    started: float


@dataclass(frozen=True)
class Probe:
    """The parent's side. Nothing here raises: a probe that cannot be started is a finding."""

    device: Device
    limit_s: float = LIMIT_S

    def start(self) -> Running | None:
        """Without waiting; None where no process can be started."""
        command = [sys.executable, "-m", "workers.probing", "--device", self.device.name]
        try:
            out = tempfile.TemporaryFile()  # noqa: SIM115  closed by `wait`
            process = subprocess.Popen(
                [*command, "--limit-s", str(self.limit_s)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                start_new_session=True,
            )
        except OSError as exc:
            log.error("probe_not_started", error=str(exc))
            return None
        return Running(process, out, time.monotonic())

    def wait(self, probe: Running | None) -> Finding:
        """Blocking, at most ``limit_s`` and two seconds."""
        if probe is None:
            return Finding(why="no probe can be started")
        with probe.out:
            try:
                probe.process.wait(max(0.1, probe.started + self.limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._abandon(probe.process)
                return Finding(why=f"no answer within {self.limit_s:g} s", seconds=self.limit_s)
            probe.out.seek(0)
            lines = probe.out.read().splitlines()
        try:
            return Finding.model_validate_json(lines[-1])
        except (IndexError, ValidationError):
            seconds = time.monotonic() - probe.started
            return Finding(why=f"the probe ended with {probe.process.returncode}", seconds=round(seconds, 3))

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        """Its cell ends with it. Should the kernel not let go of it, it is left behind unreaped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)


def main() -> None:
    """One probe."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m workers.probing", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", type=parse_device, required=True)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parsed = parser.parse_args()
    try:
        finding = examine(parsed.device, get_settings(), cell_class(), parsed.limit_s)
    except Exception as exc:
        finding = Finding(why=f"{type(exc).__name__}: {exc}")
    close_zygote()
    sys.stdout.write(finding.model_dump_json() + "\n")


if __name__ == "__main__":
    main()
