"""Names of the Redis keys and the text of the scripts, shared by transport, pool, workers and scheduler.

Not here: any connection. Keys that only scripts touch are named in ``lua/lib.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from specgen.errors import SpecGenError
from specgen.types import Phase

VALIDATE, PROFILE = Phase.VALIDATE.value, Phase.PROFILE.value
DEVICE_QUEUES = (PROFILE, VALIDATE)  # by precedence for a device that serves both
UNACKED_INDEX = "unacked_index"  # kombu's own: leases of ordinary and device messages alike
ORIGIN_HEADER, SCOPE_HEADER = "specgen_origin", "specgen_scope"
DELIVERIES_HEADER = "specgen_deliveries"


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
    order: str = "mains_first"

    def args(self, *rest: str | bytes | int | float) -> list[str | bytes | int | float]:
        """Arguments of a script."""
        return [self.prefix, self.order, *rest]

    def bell(self, queue: str) -> str:
        """List that wakes one worker waiting for this queue."""
        return f"{self.prefix}:bell:{queue}"

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
    def groups(self) -> str:
        """Hash worker -> the process group of its evaluation."""
        return f"{self.prefix}:groups"
