"""What this process holds of the queues: delivered and not yet acknowledged. Outlives every reconnect.

A connection, and with it kombu's channel and QoS, may die while a task runs on. The lease of its message must still be
renewed, and its acknowledgement must still arrive, so neither may hang on that channel.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Leases:
    """Thread-safe: with Celery's threads pool tags come and go from many threads."""

    _held: dict[str, bool] = field(default_factory=dict)  # tag -> is a ticket of a device queue
    _owed: set[str] = field(default_factory=set)  # acknowledgements that Redis has not taken yet
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, tag: str, *, ticket: bool) -> None:
        """A message was delivered to this process."""
        with self._lock:
            self._held[tag] = ticket

    def drop(self, tag: str) -> None:
        """The message is acknowledged, or given back."""
        with self._lock:
            self._held.pop(tag, None)
            self._owed.discard(tag)

    def owe(self, tag: str) -> None:
        """Redis could not be reached for the acknowledgement: keep the lease and try again later."""
        with self._lock:
            self._owed.add(tag)

    def is_ticket(self, tag: str) -> bool:
        """True for a message of a device queue."""
        with self._lock:
            return self._held.get(tag, False)

    @property
    def tags(self) -> list[str]:
        """Every tag whose lease must be renewed."""
        with self._lock:
            return list(self._held)

    @property
    def owed(self) -> list[str]:
        """Acknowledgements to try again."""
        with self._lock:
            return list(self._owed)


HELD = Leases()
