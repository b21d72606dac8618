"""Running candidates through the whole evaluator on this machine, one at a time."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from specgen.evaluation import stored
from specgen.evaluation.build.toolchain import builds_at_once
from specgen.evaluation.cell import Ahead, Cell, Device, close_zygote
from specgen.evaluation.problems import load_problem
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, ProblemSpec, source_id
from workers.builder import targets

Source = tuple[str, str | ProblemSpec]  # a candidate and its problem
_FIRST_INDEX = 1000  # of builds ahead: no device has it
_BUILD_BYTES, _BUILD_LIMIT_S = 4 << 30, 300.0
_CELLS_AHEAD = 2  # one takes 2.4 s to start on a GPU host, and evaluates for 0.7


class Bench:
    """The first core this process may use, or the first GPU.

    A GPU is not kept waiting, as by a device worker with a builder beside it: candidates are built ahead
    (:meth:`build_ahead`), and the next cells start while one evaluates. A core has no room for either.
    """

    def __init__(self, backend: str, cache: Path) -> None:
        core = min(os.sched_getaffinity(0))
        self.kind: Literal["cpu", "cuda"] = "cuda" if backend == "cuda" else "cpu"
        self.cache = cache
        self._gpu = backend == "cuda"
        self._device = Device("honest-gpu0", "cuda", 0) if self._gpu else Device(f"honest-cpu{core}", "cpu", core)
        self._ready: deque[Cell] = deque()
        self._builder: threading.Thread | None = None
        self._pending: set[str] = set()  # sources that the builder has before it
        self._starting, self._ended = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        self._ready.append(self._start(self._device))  # here: the zygote ends with the thread that started it
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._builder is not None:
            self._builder.join()
        for cell in self._ready:
            cell.kill()
        close_zygote()

    def judged(
        self, source: str, problem: str | ProblemSpec, *, phase: Phase = Phase.VALIDATE, warmups: int = 10,
        runs: int = 40, budget_s: float = 240.0,
    ) -> EvaluationResult:  # fmt: skip
        """The evaluator's result, once it was built ahead."""
        while source in self._pending:
            time.sleep(0.05)
        cell = self._ready.popleft() if self._ready else self._start(self._device)
        try:
            cell.submit(self._request(source, problem, phase, budget_s, warmups=warmups, timed_runs=runs))
            while self._gpu and len(self._ready) < _CELLS_AHEAD:
                self._ready.append(self._start(self._device))
            while (result := cell.poll(5.0)) is None:
                pass
            return result
        finally:
            cell.kill()

    def build_ahead(self, sources: Sequence[Source]) -> None:
        """Begin to build what the cache does not hold, several at once and in this order, beside what is judged."""
        waiting = deque(one for one in sources if not stored.entry(self.cache, one[0]).is_file())
        self._pending = {source for source, _ in waiting}
        self._builder = threading.Thread(target=self._build, args=(waiting,), daemon=True)
        self._builder.start()

    def _build(self, waiting: deque[Source]) -> None:
        count, start = len(waiting), time.monotonic()
        running: list[tuple[str, Cell]] = []
        at_once = max(1, builds_at_once() - 3)  # judge, candidate, and a cell that starts
        arch = targets([self._device])[0].arch
        try:
            while (waiting or running) and not self._ended.is_set():
                while waiting and len(running) < at_once:
                    source, problem = waiting.popleft()
                    device = Device("honest-builds", self.kind, _FIRST_INDEX + len(waiting) % 1000)
                    cell = self._start(device, Ahead(_BUILD_BYTES, arch))
                    running.append((source, cell))
                    cell.submit(self._request(source, problem, Phase.VALIDATE, _BUILD_LIMIT_S))
                for source, cell in list(running):
                    if cell.poll(0.01) is not None:
                        running.remove((source, cell))
                        cell.kill(0.5)
                        self._pending.discard(source)
            print(f"{count} candidates went through a build, {at_once} at once, in {time.monotonic() - start:.0f} s")
        finally:
            self._pending.clear()  # what is left is built when it is judged
            for _, cell in running:
                cell.kill(0.5)

    def _start(self, device: Device, ahead: Ahead | None = None) -> Cell:
        with self._starting:  # all cells of a process come from one zygote
            return Cell.start(device, EvaluationPolicy(), self.cache, ahead)

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
