"""The systems that jobs run on: this machine's real devices, or simulated ones; everything else is the same.

Simulated: a Valkey, the scheduler, the iteration worker and one Celery worker a device as `specgen up` starts them; the
device workers hold `benchmarks.search.cell`. Two model servers: one with the paper's traces, and one whose traces are
short, for questions in which time plays no part (profile ``short``).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.search.cell import SPEED
from specgen.client import Client
from specgen.evaluation.cell import Device
from specgen.runtime.processes import Child, stop_all
from specgen.runtime.stack import START_TIMEOUT_S, Stack, Synthetic, iteration_worker
from specgen.settings import ForkPolicy, ModelProfile, get_settings

SHORT = "short"  # the LLM profile
SHORT_TOKENS, SHORT_SPEED = 1500, 2000.0  # of a trace; times the paper's token rate
CHUNK_MS = 50  # of a stream: half of the server's default chunks, and of their cost
STAGE = 5  # device workers started at a time: each needs seconds of CPU to come up


@dataclass(frozen=True)
class Place:
    """``devices`` 0: this machine's real ones."""

    home: Path
    speed: float  # of the model (and of simulated devices)
    devices: int
    short: bool = True  # start the model server of short traces, too
    seed: int = 1

    @property
    def policy(self) -> dict[str, str | int | float | bool]:
        """Times of the fork policy, on the model's clock."""
        return {"idle_after_s": ForkPolicy().idle_after_s / self.speed} if self.devices else {}


class SimulatedStack(Stack):
    """Nothing is compiled, so no support library for it is built. For many jobs two iteration workers: one is one core
    at most."""

    def _build_support(self) -> None:
        """Nothing."""

    def _start_workers(self, pool: list[Device]) -> None:
        """Device workers in stages."""
        super()._start_workers(pool[:STAGE])
        if len(pool) <= STAGE:
            return
        command = [part.replace("iterations@", "iterations2@") for part in iteration_worker()]
        self._spawn("iterations2", ["-m", *command], secrets=True)
        for first in range(STAGE, len(pool), STAGE):
            stage = pool[first : first + STAGE]
            self._await_devices(pool[:first])
            for device in stage:
                self._spawn(f"device-cpu{device.index}", ["-m", "workers.device", "--device", device.name])


@contextmanager
def system(place: Place) -> Iterator[Client]:
    """Everything up; a client of it. Raises SpecGenError where something is missing."""
    os.environ["SPECGEN_HOME"] = str(place.home.resolve())
    with ExitStack() as stack:
        if place.devices:
            os.environ |= {
                "SPECGEN_CELL": "benchmarks.search.cell:SimulatedCell",
                SPEED: str(place.speed),
                "SPECGEN_EVALUATION__SANDBOX": "none",  # nothing of a candidate is run
                "SPECGEN_CACHE": str(place.home / "cache"),
            }
        if place.devices and place.short:
            url = stack.enter_context(_model_server(place, SHORT, SHORT_SPEED, ["--trace-tokens", str(SHORT_TOKENS)]))
            os.environ |= {"SPECGEN_LLM__SHORT__MODEL": "specgen-synthetic", "SPECGEN_LLM__SHORT__BASE_URL": url}
        get_settings.cache_clear()
        settings = get_settings()
        if place.devices:
            names = [Device(f"cpu{index}", "cpu", index) for index in range(place.devices)]
            url = stack.enter_context(_model_server(place, "long", place.speed, []))
            model = ModelProfile(base_url=url, model="specgen-synthetic")
            stack.enter_context(SimulatedStack(settings, model=model, pool=names))
        else:
            stack.enter_context(Stack(settings, synthetic=Synthetic(place.speed, place.seed)))
        yield stack.enter_context(closing(Client(settings)))


@contextmanager
def _model_server(place: Place, name: str, speed: float, options: list[str]) -> Iterator[str]:
    """Its URL."""
    port_file = place.home / f"{name}.url"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "specgen.llm.server", "--port", "0", "--port-file", str(port_file), *options]
    command += ["--speed", str(speed), "--seed", str(place.seed), "--chunk-ms", str(CHUNK_MS)]
    child = Child(f"model-server-{name}", command, place.home / "logs", dict(os.environ)).start()
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while not port_file.exists() and time.monotonic() < deadline:
            child.check()
            time.sleep(0.05)
        yield port_file.read_text().strip()
    finally:
        stop_all([child], 5.0)
