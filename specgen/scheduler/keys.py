"""Names of the Redis keys and the text of the scripts, shared by transport, pool, workers and scheduler.

Not here: any connection. Keys that only scripts touch are named in ``lua/lib.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import redis

from specgen.errors import SpecGenError
from specgen.types import Phase

VALIDATE, PROFILE = Phase.VALIDATE.value, Phase.PROFILE.value
ITERATIONS = "iterations"
DEVICE_QUEUES = (PROFILE, VALIDATE)  # by precedence for a device that serves both
TICKET_QUEUES = (*DEVICE_QUEUES, ITERATIONS)
UNACKED_INDEX = "unacked_index"  # kombu's own: leases of tickets and of ordinary messages alike
ORIGIN_HEADER, SCOPE_HEADER = "specgen_origin", "specgen_scope"  # on enqueueing
LABEL_HEADER, PRIORITY_HEADER = "specgen_label", "specgen_priority"
DELIVERIES_HEADER, WAIT_HEADER = "specgen_deliveries", "specgen_wait"  # on delivery: how many, seconds in the queue
ANY_DEVICE = "*"  # in place of a label, where the pool is read
WAIT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # of the histograms of waits


# what a Redis says that is there and does not take writes: full disk, full memory, loading, a replica
REFUSALS = ("MISCONF", "OOM ", "LOADING", "READONLY", "NOREPLICAS", "MASTERDOWN")


def is_away(error: BaseException) -> bool:
    """True for an error of a Redis that cannot be reached or refuses writes: wait, and ask again."""
    if isinstance(error, redis.ResponseError):
        return any(word in str(error) for word in REFUSALS) or isinstance(
            error, redis.exceptions.OutOfMemoryError | redis.exceptions.ReadOnlyError
        )
    return isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)


class ScopeClosed(SpecGenError):
    """A request came after its scope's boundary; nothing was enqueued. Not an error of anyone's."""


@cache
def script(name: str) -> str:
    """The text of ``lua/<name>.lua`` behind the shared functions of ``lua/lib.lua``."""
    folder = resources.files("specgen.scheduler") / "lua"
    return (folder / "lib.lua").read_text() + (folder / f"{name}.lua").read_text()


@dataclass(frozen=True)
class Keys:
    """Redis keys under a prefix. ``order`` goes with it as the second argument of every script."""

    prefix: str = "specgen"
    order: str = "fair_laf"

    def args(self, *rest: str | bytes | int | float) -> list[str | bytes | int | float]:
        """Arguments of a script."""
        return [self.prefix, self.order, *rest]

    def bell(self, queue: str, label: str) -> str:
        """List that wakes one worker waiting for this queue's requests with this label."""
        return f"{self.prefix}:bell:{queue}:{label}"

    def closed(self, scope: str) -> str:
        """Exists once the scope's boundary has passed."""
        return f"{self.prefix}:closed:{scope}"

    def results(self, scope: str) -> str:
        """Stream of the scope's results."""
        return f"{self.prefix}:results:{scope}"

    def start(self, request_id: str) -> str:
        """Start claim: who is evaluating this request."""
        return f"{self.prefix}:start:{request_id}"

    @property
    def boundaries(self) -> str:
        """List of boundaries the scheduler has not seen yet, newest first."""
        return f"{self.prefix}:boundaries"

    @property
    def decisions(self) -> str:
        """Stream of the scheduler's decisions."""
        return f"{self.prefix}:decisions"

    @property
    def roles(self) -> str:
        """Hash worker -> role."""
        return f"{self.prefix}:roles"

    @property
    def epoch(self) -> str:
        """Counts the changes of roles."""
        return f"{self.prefix}:epoch"

    @property
    def leader(self) -> str:
        """Lease of the scheduler that decides."""
        return f"{self.prefix}:leader"

    @property
    def devices(self) -> str:
        """Sorted set worker -> heartbeat (unix s, the server's clock)."""
        return f"{self.prefix}:devices"

    @property
    def busy(self) -> str:
        """Hash worker -> tag of the message it holds."""
        return f"{self.prefix}:busy"

    @property
    def open(self) -> str:
        """Sorted set of the scopes whose boundary has not come."""
        return f"{self.prefix}:open"

    @property
    def counters(self) -> str:
        """Hash counter -> how often since the pool began."""
        return f"{self.prefix}:counters"

    def waits(self, queue: str) -> str:
        """Hash bucket -> how many waited so long; ``sum`` in seconds."""
        return f"{self.prefix}:wait:{queue}"

    @property
    def groups(self) -> str:
        """Hash worker -> the process group of its evaluation."""
        return f"{self.prefix}:groups"
