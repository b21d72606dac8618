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

    _held: dict[str, str] = field(default_factory=dict)  # tag -> the ticket's delivery; empty: no ticket
    _owed: set[str] = field(default_factory=set)  # acknowledgements that Redis has not taken yet
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, tag: str, delivery: str) -> None:
        """A message was delivered to this process. ``delivery`` fences a ticket: who was delivered it later owns it."""
        with self._lock:
            self._held[tag] = delivery

    def drop(self, tag: str) -> None:
        """The message is acknowledged, or given back."""
        with self._lock:
            self._held.pop(tag, None)
            self._owed.discard(tag)

    def owe(self, tag: str) -> None:
        """Redis could not be reached for the acknowledgement: keep the lease and try again later."""
        with self._lock:
            self._owed.add(tag)

    def delivery(self, tag: str) -> str:
        """Which delivery of a ticket this process holds; empty for an ordinary message, or one that is not held."""
        with self._lock:
            return self._held.get(tag, "")

    @property
    def held(self) -> list[tuple[str, str]]:
        """Every tag whose lease must be renewed, with its delivery."""
        with self._lock:
            return list(self._held.items())

    @property
    def owed(self) -> list[str]:
        """Acknowledgements to try again."""
        with self._lock:
            return list(self._owed)


HELD = Leases()
