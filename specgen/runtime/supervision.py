"""Starting again what died: the restart policy of `specgen up`. Time is an argument, so that it can be tested.

Not here: how a process is started (`specgen.runtime.processes`, `specgen.runtime.valkey`), and what a worker's death
means for its work (leases, redelivery: docs/queue.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specgen.errors import InfrastructureError
from specgen.runtime.logs import last_line


class Restartable(Protocol):
    """A process with a name and a log."""

    name: str

    @property
    def log(self) -> Path:
        """Where its output goes."""

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""

    def start(self) -> Any:
        """Start it (again); InfrastructureError if it does not come up."""


@dataclass(frozen=True)
class RestartPolicy:
    """Waits of 1, 2, 4 … 60 s; ten short lives in a row are given up."""

    first_s: float = 1.0
    most_s: float = 60.0
    steady_s: float = 60.0  # a life of that length is no short one
    deaths: int = 10

    def wait_s(self, deaths: int) -> float:
        """Seconds before the start after that many short lives in a row."""
        return min(self.most_s, self.first_s * 2.0 ** min(deaths - 1, 32))


@dataclass
class _Record:
    started: float
    deaths: int = 0
    due: float | None = None  # when it is started again


@dataclass
class Supervisor:
    """Looks at every process when `step` is called; ``tell`` gets one line a death."""

    policy: RestartPolicy
    tell: Callable[[str], None]
    _records: dict[str, _Record] = field(default_factory=dict)

    def step(self, processes: Sequence[Restartable], now: float) -> None:
        """Note deaths and start what is due; ``now`` in monotonic seconds.

        Raises InfrastructureError for a process that does not stay up.
        """
        for process in processes:
            record = self._records.setdefault(process.name, _Record(now))
            if record.due is None:
                code = process.poll()
                if code is not None:
                    self._died(process, record, f"ended with {code}: {last_line(process.log)}", now)
            elif now >= record.due:
                record.due, record.started = None, now
                try:
                    process.start()
                except InfrastructureError as exc:
                    self._died(process, record, f"did not start: {exc.message}", now, exc.hint)

    def _died(self, process: Restartable, record: _Record, how: str, now: float, hint: str = "") -> None:
        record.deaths = 1 if now - record.started >= self.policy.steady_s else record.deaths + 1
        if record.deaths >= self.policy.deaths:
            raise InfrastructureError(
                f"{process.name} died {record.deaths} times in a row; the last time it {how}",
                hint or f"its log is {process.log}",
            )
        wait_s = self.policy.wait_s(record.deaths)
        record.due = now + wait_s
        self.tell(f"{process.name} {how}; again in {wait_s:g} s")
