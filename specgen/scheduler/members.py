"""Who is in the pool, so that two versions of SpecGen never share one.

Messages, scripts and keys have no versions of their own: a process that meets a live member of another version refuses
to join, with both versions in one line. A pool without live members takes any version; that is how one upgrades. Not
here: devices and their heartbeats (lua/heartbeat.lua).
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, cast

import redis
import structlog
from pydantic import ValidationError

import specgen
from specgen.errors import EnvironmentLacking
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.process_groups import ProcessRecord, this_process

TTL_S = 15.0  # a member without a heartbeat for that long is gone (by Redis' clock)
BEAT_S = 4.0

log = structlog.get_logger(__name__)


class Membership:
    """One process of a pool. ``name`` is unique in it (a worker's node name, say); ``kind`` is for people."""

    def __init__(
        self, client: redis.Redis, keys: Keys, name: str, kind: str, version: str = specgen.__version__
    ) -> None:
        self._client, self._keys, self._name, self._version = client, keys, name, version
        process = this_process()
        about = {"version": version, "kind": kind, "host": process.host, "pid": process.pid}
        self._info = json.dumps(about | {"process": process.model_dump()})

    def join(self) -> None:
        """Become a member, or stay one. Raises EnvironmentLacking where a live member has another version."""
        self._run(self._name)

    beat = join  # a member that Redis forgot, or that was silent for too long, joins again as if it came anew

    def check(self) -> None:
        """As `join`, without becoming a member: for a command that only submits."""
        self._run("")

    def leave(self) -> None:
        """No longer a member."""
        with self._client.pipeline() as pipe:
            pipe.zrem(self._members, self._name)
            pipe.hdel(f"{self._keys.prefix}:member_info", self._name)
            pipe.execute()

    @property
    def _members(self) -> str:
        return f"{self._keys.prefix}:members"

    def _run(self, name: str) -> None:
        args = self._keys.args(name, self._info, self._version, TTL_S)
        while other := cast("list[str | bytes]", self._client.eval(script("join"), 0, *args)):
            who, about = (part.decode() if isinstance(part, bytes) else part for part in other)
            info: dict[str, Any] = json.loads(about)
            if _dead(info):  # killed a moment ago on this host: it need not be waited for
                self._client.zrem(self._members, who)
                continue
            raise EnvironmentLacking(
                f"this is specgen {self._version}, but {who} (pid {info.get('pid')} on {info.get('host')}) "
                f"in this pool runs {info.get('version')}",
                f"stop every process of {info.get('version')} first (one that died counts for {TTL_S:.0f} s), "
                "or give this system a SPECGEN_PREFIX of its own",
            )


def _dead(info: dict[str, Any]) -> bool:
    try:
        return ProcessRecord.model_validate(info.get("process")).alive is False
    except ValidationError:
        return False


def keep(
    membership: Membership, stop: threading.Event, refused: Callable[[EnvironmentLacking], None] | None = None
) -> threading.Thread:
    """Beat in a thread of its own until ``stop``, then leave. A Redis that is away is tried again.

    A process that was silent for so long that another version joined meanwhile must end: ``refused`` is called, by
    default with a line in the log and SIGTERM to this process.
    """

    def run() -> None:
        while not stop.wait(BEAT_S):
            try:
                membership.beat()
            except EnvironmentLacking as exc:
                (refused or _end)(exc)
                return
            except redis.RedisError as exc:
                log.warning("no_member_heartbeat", error=str(exc))
        try:
            membership.leave()
        except redis.RedisError as exc:
            log.warning("member_not_removed", error=str(exc), lapses_in_s=TTL_S)

    thread = threading.Thread(target=run, name="membership", daemon=True)
    thread.start()
    return thread


def _end(exc: EnvironmentLacking) -> None:
    log.error("another_version_joined", error=exc.message, hint=exc.hint)
    os.kill(os.getpid(), signal.SIGTERM)
