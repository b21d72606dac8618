"""A pair: one subject by the façade and by stock, each in its own process, and whether they are the same.

Same means: the same route's end (built, or failed with the same errors), and bit for bit the same results, exceptions
and messages of every call, the same end where the process crashes or hangs. Finished pairs are lines of a state file,
so that an interrupted run goes on where it was. Not here: the figures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.build_cases import Value, same
from benchmarks.build_subjects import Corpus, Subject
from benchmarks.build_worker import Job
from specgen.evaluation.build.sampling import audit_hash
from specgen.evaluation.environment import cpu_model

_LIMIT_S = 1800  # of one process: a stock build on a busy machine, and its calls
_ERROR = re.compile(r"\S+?[:(]\d+[:)].*?\berror\b\s*:.*|.*undefined (?:symbol|reference).*|ninja: error.*")
_PATHS = re.compile(r"\S*/(?:building-\w+|pair-\w+)/|specgen_v1::")


@dataclass(frozen=True)
class Pair:
    """Two builds of one source compared. ``first_only``: the first errors agree, the further ones need not."""

    name: str
    key: str
    route: str
    fallback: str
    as_expected: bool
    fast_cpu_s: float
    stock_cpu_s: float
    fast_wall_s: float
    stock_wall_s: float
    calls: int
    differing: tuple[str, ...] = ()
    failed: str = ""  # the first error of a source that does not build
    further_errors_agree: bool = True
    speed_ratio: float | None = None

    @property
    def line(self) -> str:
        """For the reader."""
        speed = "" if self.speed_ratio is None else f"; kernel {self.speed_ratio:.3f} of stock's time"
        verdict = "same" if not self.differing else "DIFFERENT"
        built = "fails" if self.failed else f"{self.calls} calls"
        return (
            f"{self.name:28} {self.route:7} {self.fast_cpu_s:6.2f} s CPU, stock {self.stock_cpu_s:6.2f};"
            f" wall {self.fast_wall_s:6.2f} and {self.stock_wall_s:6.2f}; {built}, {verdict}{speed}"
        )


@dataclass
class Engine:
    """Runs pairs, several at once, and keeps them. ``deadline``: monotonic seconds after which none is started."""

    corpus: Corpus
    support: Path
    state: Path
    at_once: int = 1
    deadline: float = float("inf")
    backend: str = field(init=False)

    def __post_init__(self) -> None:
        self.backend = "cuda" if self.corpus == "gpu" else "cpu"

    def known(self) -> dict[str, Pair]:
        """By key: what the state file holds."""
        found: dict[str, Pair] = {}
        with suppress(FileNotFoundError):
            for line in self.state.read_text().splitlines():
                with suppress(ValueError, TypeError):
                    row = json.loads(line)
                    row["differing"] = tuple(row["differing"])
                    found[row["key"]] = Pair(**row)
        return found

    def key(self, subject: Subject) -> str:
        """Source, torch, façade and kind of machine: a pair counts for these only."""
        return f"{subject.sha256[:16]} {torch.__version__} {audit_hash(self.backend)} {_machine()}"

    def run(self, chosen: Iterable[Subject]) -> Iterator[Pair]:
        """Known pairs first, then new ones as they end; these are appended to the state file."""
        known = self.known()
        todo = []
        for subject in chosen:
            if (pair := known.get(self.key(subject))) is not None:
                yield pair
            else:
                todo.append(subject)
        self.state.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="specgen-pairs-") as scratch, ThreadPoolExecutor(self.at_once) as pool:
            for pair in self._finished(pool, todo, Path(scratch)):
                with self.state.open("a") as file:
                    file.write(json.dumps(asdict(pair)) + "\n")
                yield pair

    def _finished(self, pool: ThreadPoolExecutor, todo: list[Subject], scratch: Path) -> Iterator[Pair]:
        left, running = iter(todo), set[Future[Pair]]()
        while True:
            while len(running) < self.at_once and time.monotonic() < self.deadline:
                subject = next(left, None)
                if subject is None:
                    break
                running.add(pool.submit(self.pair, subject, scratch))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()

    def pair(self, subject: Subject, scratch: Path) -> Pair:
        """Build by both routes, run, compare; where wanted, compare the speeds too."""
        directory = Path(tempfile.mkdtemp(prefix="pair-", dir=scratch))
        try:
            fast, slow = (self._one(subject, route, directory) for route in ("auto", "stock"))
            pair = compare(subject, self.key(subject), fast, slow)
            if subject.speed is not None and pair.route == "facade" and not pair.differing:
                ratio = self._one(subject, "speed", directory)["report"]["speed_ratio"]
                pair = Pair(**{**pair.__dict__, "speed_ratio": ratio})
            return pair
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _one(self, subject: Subject, route: Any, directory: Path) -> dict[str, Any]:
        limit_s = 25 if self.corpus == "gpu" else 120  # two candidates of the GPU's stock run for ever
        job = Job(self.corpus, subject.name, route, str(self.support), str(directory), limit_s)
        with tempfile.TemporaryFile() as log:
            command = [sys.executable, "-m", "benchmarks.build_worker", json.dumps(asdict(job))]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_LIMIT_S)
            size = os.fstat(log.fileno()).st_size
            tail = os.pread(log.fileno(), 3000, max(0, size - 3000)).decode(errors="replace")
        found: dict[str, Any] = {}
        if job.output.exists():
            found = torch.load(job.output, weights_only=False)  # our own file
        if not found or (done.returncode > 0 and not found["report"]["finished"]):
            raise RuntimeError(f"{subject.name} by {route} ended with {done.returncode}:\n{tail}")
        if not found["report"]["finished"]:
            found["outcomes"].append(("ended", signal.Signals(-done.returncode).name))
        return found


@lru_cache(maxsize=1)
def _machine() -> str:
    """Machines of one kind build and run the same."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{cpu_model()}, {gpu}"


def compare(subject: Subject, key: str, fast: dict[str, Any], slow: dict[str, Any]) -> Pair:
    """The pair of two results."""
    ours, theirs = fast["report"], slow["report"]
    first, second = _errors(ours["error"]), _errors(theirs["error"])
    differing: list[str] = []
    if first[:1] != second[:1]:
        differing.append(f"{first[:1] or 'built'} instead of {second[:1] or 'built'}")
    elif not first:
        differing += _behaviour(subject, fast["outcomes"], slow["outcomes"])
    return Pair(
        subject.name, key, ours["route"], ours["fallback"], ours["route"] == subject.route,
        ours["cpu_s"], theirs["cpu_s"], ours["wall_s"], theirs["wall_s"], len(slow["outcomes"]),
        tuple(differing), second[0] if second else "", first == second,
    )  # fmt: skip


def _behaviour(subject: Subject, fast: list[Value], slow: list[Value]) -> Iterator[str]:
    if len(fast) != len(slow):
        yield f"{len(fast)} outcomes instead of {len(slow)}: {fast[-1:]!r:.300} instead of {slow[-1:]!r:.300}"
    for index, (got, official) in enumerate(zip(fast, slow, strict=False)):
        if not _agree(got, official, exact=subject.exact):
            yield f"call {index}: {got!r:.500} instead of {official!r:.500}"


def _agree(got: Value, official: Value, *, exact: bool) -> bool:
    if not exact and isinstance(got, list) and got[:1] == official[:1] == ["large"]:
        got, official = got[:-1], official[:-1]  # the sum of bits
    return same(got, official, exactly=exact)


def _errors(error: tuple[str, str] | None) -> list[str]:
    """The lines that name errors, without what differs from build to build; the exception where there are none."""
    if error is None:
        return []
    found = [_PATHS.sub("", match) for match in _ERROR.findall(error[1])]
    return found or [f"{error[0]}: {_PATHS.sub('', error[1])}"]
