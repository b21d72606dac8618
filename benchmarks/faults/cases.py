"""A case: a seeded schedule of faults that can be run again alone, and its result as one JSON line."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self


@dataclass(frozen=True)
class Case:
    """``--only <line> --seed <seed> --case <index>`` runs it again."""

    line: str
    index: int
    seed: int
    kind: str  # what fails
    faults: int  # how often

    @property
    def key(self) -> str:
        """Names it in the state file."""
        return f"{self.line}/{self.index}/{self.kind}/{self.faults}/seed {self.seed}"

    @property
    def rng(self) -> Random:
        """Its randomness: the same for the same case."""
        return Random(self.key)


@dataclass
class Result:
    """What a case gave."""

    key: str
    line: str
    kind: str
    faults: int = 0
    schedule: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, name: str) -> int:
        """A count, 0 where the case has none of that name."""
        return self.counts.get(name, 0)


class Finished:
    """Results of earlier runs, from a file of JSON lines; new ones are appended at once."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Result] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # cut short by a kill of the benchmark: a case not finished
                    result = Result(**json.loads(line))
                    self._known[result.key] = result

    def get(self, case: Case) -> Result | None:
        """The case's result, if it was run before."""
        return self._known.get(case.key)

    def add(self, result: Result) -> Self:
        """Keep it."""
        self._known[result.key] = result
        if self._path is not None:
            with self._path.open("a") as out:
                out.write("\n" + json.dumps(asdict(result)) + "\n")  # first ends a line that was cut short
        return self


def merged(results: list[Result]) -> dict[str, Any]:
    """Sums of the counts, all samples."""
    names = {name for result in results for name in result.counts}
    return {name: sum(result.count(name) for result in results) for name in names}
