"""``python -m benchmarks.build_ahead``: how long a validation holds its device, with a builder beside it and without.

A host of GPUs with cores to spare, simulated on this machine's first two cores: one is a device, one the builder's.
Real workers, sandboxes and kernels; N distinct sources at once, built by the fast route: once as they are (a second of
compiler), once with a large standard header (several, as nvcc takes). With and without take turns, each with an empty
cache. About five minutes on an idle machine; a busy one has no core to spare, and the figures say nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from benchmarks.figures import figure, machine
from benchmarks.queue.system import Ours, server, wait
from specgen.evaluation.build import ensure_support
from specgen.evaluation.problems import load_problem
from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import LABEL_HEADER, ORIGIN_HEADER, PRIORITY_HEADER, SCOPE_HEADER
from specgen.scheduler.pool import TASKS
from specgen.settings import Settings
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, source_id

KERNEL = '''\
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
{header}
// {unique}
torch::Tensor diag_mul(torch::Tensor a, torch::Tensor b) {{
    int64_t n = b.size(0), m = b.size(1);
    auto out = torch::empty_like(b);
    const float* pa = a.data_ptr<float>();
    const float* pb = b.data_ptr<float>();
    float* po = out.data_ptr<float>();
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j)
            po[i * m + j] = pa[i] * pb[i * m + j];
    return out;
}}
"""
ext = load_inline(name="diag_ext", cpp_sources=SOURCE, functions=["diag_mul"], extra_cflags=["-O3"])


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return ext.diag_mul(a, b)
'''
HEADERS = {"light": "", "heavy": '#include <regex>\nstatic const std::regex word("[a-z]+(x|y)*");'}
LIMIT_S = 600.0


@dataclass
class Held:
    """Results of one side, all rounds. ``whole_s``: from the first request to the last result, each round."""

    validations: list[EvaluationResult] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    @property
    def device_s(self) -> float:
        """Median that a device is held by a validation."""
        return statistics.median(result.device_s for result in self.validations)

    @property
    def ahead(self) -> float:
        """Share of validations whose build was there when they began, or was waited for."""
        return statistics.fmean("build_ahead" in result.environment for result in self.validations)


def source(kind: str) -> str:
    """A kernel that no cache knows."""
    return KERNEL.format(header=HEADERS[kind], unique=uuid.uuid4())


@contextmanager
def workers(commands: list[list[str]], cache: Path, log: Path) -> Iterator[None]:
    """Real ones, and a cache without builds for them."""
    env = os.environ | {"SPECGEN_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    with log.open("ab") as out:
        started = [
            subprocess.Popen([sys.executable, "-m", *command], env=env, stdout=out, stderr=out) for command in commands
        ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def send(ours: Ours, scope: str, text: str) -> None:
    """Enqueue one validation."""
    phase = Phase.VALIDATE
    job, _, iteration = scope.rpartition("/")
    request = EvaluationRequest(
        request_id=uuid.uuid4().hex, job_id=job, iteration=int(iteration), candidate_id=source_id(text), phase=phase,
        origin=Origin.FORK, source=text, problem=load_problem("T4"), enqueued_at=time.time(),
    )  # fmt: skip
    sent = {SCOPE_HEADER: scope, ORIGIN_HEADER: "fork", LABEL_HEADER: "cpu", PRIORITY_HEADER: "0"}
    ours.send(TASKS[phase], {"request": request.model_dump(mode="json")}, phase.value, sent, request.request_id)


def results(ours: Ours, scope: str) -> list[EvaluationResult]:
    """All that are there."""
    found = cast("list[tuple[str, dict[str, str]]]", ours.client.xrange(ours.keys.results(scope)))
    return [EvaluationResult.model_validate_json(fields["result"]) for _, fields in found]


@dataclass(frozen=True)
class Setting:
    """``core`` is the device."""

    core: int
    sources: int
    kind: str


def run(setting: Setting, valkey: Valkey, folder: Path, support: Path, held: Held, *, builder: bool) -> None:
    """One round of one side."""
    ours, scope = Ours(valkey.url), f"{uuid.uuid4().hex[:8]}/1"
    ours.client.flushdb()
    device = ["--device", f"cpu{setting.core}"]
    commands = [["workers.device", *device], *([["workers.builder", *device]] if builder else [])]
    with tempfile.TemporaryDirectory(prefix="sgb-cache-") as place:
        cache = Path(place)
        (cache / support.name).symlink_to(support)
        with workers(commands, cache, folder / "workers.log"):
            _ready(ours, f"device-cpu{setting.core}@{socket.gethostname()}", scope)
            began = time.time()
            for _ in range(setting.sources):
                send(ours, scope, source(setting.kind))
            wait(lambda: len(results(ours, scope)) == setting.sources, "the results", LIMIT_S)
            found = results(ours, scope)
    held.whole_s.append(max(result.finished_at for result in found) - began)
    held.validations += found


def _ready(ours: Ours, name: str, scope: str) -> None:
    """The device has passed its probe and evaluated once; the builder, if there is one, is warm by then."""
    wait(lambda: name in ours.client.zrange(ours.keys.devices, 0, -1), "the device", 120)
    send(ours, f"{scope}0", source("light"))
    wait(lambda: len(results(ours, f"{scope}0")) == 1, "the first evaluation", LIMIT_S)
    time.sleep(5)


def compare(
    name: str, setting: Setting, place: tuple[Valkey, Path, Path], rounds: int, bar: float | None, least: float
) -> None:
    """Both sides in turns, and their figures."""
    sides = {False: Held(), True: Held()}
    for number in range(rounds):
        for builder, held in sides.items():
            run(setting, *place, held, builder=builder)
            told = f"{name}: round {number + 1}, {'with' if builder else 'without'}"
            print(f"{told}: {held.device_s:.2f} s held, {held.whole_s[-1]:.1f} s in all", flush=True)
    without, with_ = sides[False], sides[True]
    ratio = with_.device_s / without.device_s
    figure(f"{name}: device held by a validation, without", without.device_s, "s", "", None)
    figure(f"{name}: device held by a validation, with", with_.device_s, "s", "", None)
    holds = None if bar is None else ratio <= bar
    figure(f"{name}: with over without", ratio, "ratio", "" if bar is None else f"<= {bar:g}", holds)
    figure(f"{name}: built ahead", with_.ahead, "share", f">= {least:g}", with_.ahead >= least)
    whole = statistics.median(with_.whole_s) / statistics.median(without.whole_s)
    figure(f"{name}: all requests, with over without", whole, "ratio", "<= 1.05", whole <= 1.05)


def main() -> None:
    """All of it, or ``--only`` a part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.build_ahead", description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("light", "heavy"), action="append")
    parsed = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    print(f"{machine()}; load {os.getloadavg()[0]:.1f} at the start", flush=True)
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the workers end with it
    wanted = parsed.only or ["light", "heavy"]
    support = ensure_support(Settings().cache_path)
    with server(SPECGEN_CELL="specgen.evaluation.cell:Cell") as (valkey, folder):
        place = valkey, folder, support
        for kind in ("light", "heavy"):
            if kind in wanted:
                spare = Setting(cores[0], parsed.sources, kind)
                compare(
                    f"spare core, {kind} source", spare, place, parsed.rounds, 0.85 if kind == "light" else 0.6, 0.8
                )


if __name__ == "__main__":
    main()
