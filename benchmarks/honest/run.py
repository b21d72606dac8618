"""Running candidates through the whole evaluator on this machine, one at a time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Self

from specgen.evaluation import stored
from specgen.evaluation.build.toolchain import builds_at_once
from specgen.evaluation.cell import Ahead, Cell, Device, close_zygote
from specgen.evaluation.problems import load_problem
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, source_id

Source = tuple[str, str | ProblemSpec]  # a candidate and its problem
_FIRST_INDEX = 1000  # of builds ahead: no device has it
_BUILD_BYTES = 4 << 30


class Bench:
    """The first core this process may use, or the first GPU.

    A GPU is not kept waiting, as by a device worker with a builder beside it: candidates are built ahead
    (:meth:`build_ahead`), and the next cell starts while one evaluates. A core has no room for either.
    """

    def __init__(self, backend: str, cache: Path) -> None:
        core = min(os.sched_getaffinity(0))
        self.kind: Literal["cpu", "cuda"] = "cuda" if backend == "cuda" else "cpu"
        self.cache = cache
        self._gpu = backend == "cuda"
        self._device = Device("honest-gpu0", "cuda", 0) if self._gpu else Device(f"honest-cpu{core}", "cpu", core)
        self._next: Cell | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.kill()
        close_zygote()

    def judged(
        self, source: str, problem: str | ProblemSpec, *, phase: Phase = Phase.VALIDATE, warmups: int = 10,
        runs: int = 40, budget_s: float = 240.0,
    ) -> EvaluationResult:  # fmt: skip
        """The evaluator's result."""
        cell, self._next = self._next or self._start(), None
        try:
            cell.submit(self._request(source, problem, phase, budget_s, warmups=warmups, timed_runs=runs))
            if self._gpu:
                self._next = self._start()
            while (result := cell.poll(5.0)) is None:
                pass
            return result
        finally:
            cell.kill()

    def build_ahead(self, sources: Iterable[Source], limit_s: float, *, say: Callable[[str], object] = print) -> None:
        """Build what the cache does not hold, several at once. What does not end in time is built when it is judged."""
        waiting = deque(one for one in sources if not stored.entry(self.cache, one[0]).is_file())
        count, start = len(waiting), time.monotonic()
        running: list[Cell] = []
        at_once = max(1, builds_at_once() - 1)
        arch = _arch() if self._gpu else ""
        try:
            while (waiting or running) and time.monotonic() - start < limit_s:
                while waiting and len(running) < at_once:
                    source, problem = waiting.popleft()
                    device = Device("honest-builds", self.kind, _FIRST_INDEX + len(waiting) % 1000)
                    cell = Cell.start(device, EvaluationPolicy(), self.cache, Ahead(_BUILD_BYTES, arch))
                    running.append(cell)
                    cell.submit(self._request(source, problem, Phase.VALIDATE, limit_s))
                for cell in list(running):
                    if cell.poll(0.02) is not None:
                        running.remove(cell)
                        cell.kill(0.5)
        finally:
            for cell in running:
                cell.kill(0.5)
        if count:
            left = len(waiting) + len(running)
            say(f"{count - left} of {count} candidates went through a build, {at_once} at once, in"
                f" {time.monotonic() - start:.0f} s")  # fmt: skip

    def _start(self) -> Cell:
        return Cell.start(self._device, EvaluationPolicy(), self.cache)

    def _request(
        self, source: str, problem: str | ProblemSpec, phase: Phase, budget_s: float, **more: int
    ) -> EvaluationRequest:
        if isinstance(problem, str):
            spec = load_problem(problem, self.kind)
        else:
            spec = problem.model_copy(update={"backend": self.kind})
        return EvaluationRequest.model_validate(
            {
                "request_id": "honest", "job_id": "honest", "iteration": 0, "candidate_id": source_id(source),
                "phase": phase, "origin": Origin.MAIN, "source": source, "problem": spec, "label": self.kind,
                "time_budget_s": budget_s, **more,
            }
        )  # fmt: skip


def _arch() -> str:
    """Of the first GPU, asked in the driver's library: this process must stay free of CUDA."""
    from workers.labels import arch_list, ask_gpu

    gpu = ask_gpu(0)
    return os.environ.get("TORCH_CUDA_ARCH_LIST") or (arch_list(gpu.facts.compute_capability) if gpu else "")
