"""The evaluator's own timed window on any pair of files, as often as wanted: harness, judge's clock and stopwatch.

What is left out of an evaluation is what does not take part in timing: the sandbox, the trials and the integrity
rules (so that a candidate may be the reference itself). Either half runs in a process of its own, made for the
occasion, as in a cell.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from specgen.evaluation import sandbox
from specgen.evaluation.peer import Peer
from specgen.evaluation.reference import Reference
from specgen.evaluation.supervisor import Bench, CellSpec
from specgen.evaluation.tensors import Parcel
from specgen.evaluation.timing import TimedRuns, Window, message_cost_ms
from specgen.evaluation.trials import own
from specgen.evaluation.wire import Channel, close_all, memory_file_of
from specgen.types import ProblemSpec

_LIMIT_S = 60.0


@dataclass(frozen=True)
class Pair:
    """A problem and a candidate for it. ``support``: the façade's library where the candidate builds something."""

    name: str
    problem: ProblemSpec
    source: str
    support: str = ""

    @classmethod
    def identical(cls, problem: ProblemSpec) -> Pair:
        """The reference as its own candidate."""
        return cls(problem.name, problem, re.sub(r"\bModel\b", "ModelNew", problem.source))


def windows(pair: Pair, core: int, count: int, warmups: int = 10, runs: int = 40) -> list[Window]:
    """``count`` timed windows in one fresh pair of processes. Raises Verdict for a pair that does not agree."""
    how = "spawn" if pair.problem.backend == "cuda" else "fork"  # no fork can use a GPU that its parent has asked for
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as pool:
        return pool.submit(_windows, pair, core, count, warmups, runs).result()


def _windows(pair: Pair, core: int, count: int, warmups: int, runs: int) -> list[Window]:
    torch.set_num_threads(1)
    if pair.problem.backend == "cpu":
        os.sched_setaffinity(0, {core})
    with _harness(pair) as peer:
        cost_ms = message_cost_ms(peer) if pair.problem.backend == "cpu" else 0.0
        fd = memory_file_of(pair.source.encode())
        mode = "auto" if pair.support else "stock"
        peer.post("load", [fd], mode=mode, support=pair.support, timeout_s=_LIMIT_S)
        peer.answer(_LIMIT_S)
        reference = Reference(pair.problem)
        init, state = Parcel.of(reference.init_inputs), Parcel.of(reference.state())
        peer.ask("construct", _LIMIT_S, [init.fd], seed=pair.problem.seed, **init.fields)
        if reference.state():
            peer.ask("state", _LIMIT_S, [state.fd], **state.fields)
        close_all([fd, init.fd, state.fd])
        trials = [own(reference) for _ in range(3)]
        found = []
        for _ in range(count):
            timed = TimedRuns(peer, reference, trials, pair.problem.tolerance, cost_ms, _LIMIT_S)
            found.append(timed.run(warmups, runs))
        return found


@contextmanager
def _harness(pair: Pair) -> Iterator[Peer]:
    backend = pair.problem.backend
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log_fd = os.memfd_create("timing-log")
    with tempfile.TemporaryDirectory(prefix="specgen-timing-") as tmp:
        cache = Path(tmp, "cache")
        cache.mkdir()
        config = {
            "fd": theirs.fileno(), "cache": str(cache), "backend": backend, "processes": 10_000,
            "file_bytes": 1 << 30, "data_bytes": 0, "uid": 0,
        }  # fmt: skip
        environment = sandbox.inner_environment(backend, str(cache), tmp)
        environment |= {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
        process = subprocess.Popen(
            sandbox.inner_command(json.dumps(config)), env=environment, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=log_fd, stderr=log_fd,
        )  # fmt: skip
        theirs.close()
        spec = CellSpec("timing", backend, 0, "none", "auto", tmp, 1 << 40)
        never, _open = os.pipe()
        bench = Bench(spec, ours, Channel(ours, credentials=True), never, log_fd, pair.support, "")
        peer = Peer(bench)
        try:
            peer.hello(_LIMIT_S)
            if backend == "cuda":
                peer.take_device(_LIMIT_S)
            yield peer
        finally:
            ours.close()
            process.kill()
            process.wait()
            close_all([never, _open, log_fd])


@contextmanager
def busy(core: int, work: Callable[[], object]) -> Iterator[None]:
    """A neighbour that does ``work`` on that core without end."""
    ready_r, ready_w = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.sched_setaffinity(0, {core})
            os.write(ready_w, b"1")
            while True:
                work()
        finally:
            os._exit(1)
    try:
        select.select([ready_r], [], [], 10)
        time.sleep(0.05)  # into its stride
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        close_all([ready_r, ready_w])
