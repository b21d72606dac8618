"""How long the server itself needed for each script, from its own slow log: no queueing, no client, no network."""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict

import redis

from specgen.scheduler.keys import script

ENTRIES = 100_000


class ServerTime:
    """Between `start` and `stop`. Costs the server memory and some time: not while these are measured."""

    def __init__(self, client: redis.Redis, names: tuple[str, ...]) -> None:
        self._client = client
        self._names = {hashlib.sha1(script(n).encode(), usedforsecurity=False).hexdigest(): n for n in names}

    def start(self) -> None:
        """Log every command."""
        self._client.config_set("slowlog-max-len", ENTRIES)
        self._client.slowlog_reset()
        self._client.config_set("slowlog-log-slower-than", 0)

    def stop(self) -> dict[str, list[float]]:
        """Milliseconds of each call, by script."""
        self._client.config_set("slowlog-log-slower-than", -1)
        found: dict[str, list[float]] = defaultdict(list)
        for entry in self._client.slowlog_get(ENTRIES):
            words = _text(entry["command"]).split(" ", 2)
            if len(words) > 1 and (name := self._names.get(words[1])):
                found[name].append(entry["duration"] / 1000)
        self._client.slowlog_reset()
        return found


def median(values: list[float]) -> float:
    """0 for none."""
    return statistics.median(values) if values else 0.0


def served(found: dict[str, list[float]]) -> list[float]:
    """Of the grabs, those that found something: each is followed by one start, and they are the longest ones."""
    return sorted(found.get("grab", []), reverse=True)[: len(found.get("start", []))]


def _text(command: str | bytes) -> str:
    return command.decode(errors="replace") if isinstance(command, bytes) else command
