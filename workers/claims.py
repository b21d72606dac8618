"""One worker a device. The second one refuses, and says who has it.

Two layers. A lock file under the temporary folder holds on one host, for as long as the holder lives,
across pools: two pools on one GPU would spoil each other's timings. A key in Redis, renewed with the heartbeat, holds
between containers that share no temporary folder. A holder that is certainly dead is taken over from at once; one that
may be is waited for until its key lapses. CPU devices are cores that anyone may use: theirs is a lock within one pool.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, cast

import redis
import structlog
from pydantic import ValidationError

from specgen.errors import EnvironmentLacking
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.process_groups import ProcessRecord, this_process

TTL_S = 10.0  # of the key in Redis
ENDING_S = 2.0  # the last process of a killed holder may need that long to go
HINT = "stop that worker, or give this one another device"

log = structlog.get_logger(__name__)


class DeviceClaim:
    """``identity`` names the device: a GPU's UUID, or host and core. ``pool`` narrows the lock file to one pool, which
    may have a ``folder`` of its own for it."""

    def __init__(
        self, client: redis.Redis, keys: Keys, identity: str, worker: str, *, pool: str = "", folder: Path | None = None
    ) -> None:
        self._client, self._keys, self._identity, self._worker = client, keys, identity, worker
        self._owner = uuid.uuid4().hex
        about = {"owner": self._owner, "worker": worker, "process": this_process().model_dump()}
        self._about = json.dumps(about)
        digest = hashlib.sha256(f"{identity}\n{pool}".encode()).hexdigest()[:20]
        self.lock_path = (folder or Path(tempfile.gettempdir())) / f"specgen-device-{digest}.lock"
        self._lock: int | None = None

    def take(self) -> None:
        """Hold the device, or raise EnvironmentLacking. Waits for at most 12 s."""
        try:
            self._take_lock()
            self._take_key()
        except BaseException:
            self.release()
            raise

    def renew(self) -> bool:
        """With every heartbeat; False where another holds the device now (this process was stopped for too long)."""
        return self._hold(TTL_S) is None

    def release(self) -> None:
        """Let it go, as far as Redis can be reached: the lock file at once, the key else when it lapses."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self.lock_path.unlink()
            os.close(self._lock)
            self._lock = None
        with contextlib.suppress(redis.RedisError):
            self._hold(0.0)

    def forked(self) -> None:
        """In a child: the lock is the parent's, and must not outlive it here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ------------------------------------------------------------------------------------------ lock file

    def _take_lock(self) -> None:
        deadline = time.monotonic() + ENDING_S
        while self._lock is None:
            lock = _open(self.lock_path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _parsed(os.pread(lock, 4096, 0))
                os.close(lock)
                process = _process(holder)
                if time.monotonic() > deadline or (process is not None and process.alive):
                    raise self._refusal(holder) from None
                time.sleep(0.02)
            else:
                self._lock = self._kept(lock)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, self._about.encode(), 0)

    def _kept(self, lock: int) -> int | None:
        """Who held it before removes the file: the lock counts only if this is still the file of that name."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), self.lock_path.stat()):
                return lock
        os.close(lock)
        return None

    # ------------------------------------------------------------------------------------------ Redis

    def _take_key(self) -> None:
        deadline, told = time.monotonic() + TTL_S + 2.0, False
        while (holder := self._hold(TTL_S)) is not None:
            process = _process(holder)
            if process is not None and process.alive is False:
                log.info("device_taken_over", worker=self._worker, device=self._identity, dead_pid=process.pid)
                if self._hold(TTL_S, dead=str(holder.get("owner"))) is None:
                    return
            if (process is not None and process.alive) or time.monotonic() > deadline:
                raise self._refusal(holder)
            if not told:
                log.warning("device_is_held", device=self._identity, by=_who(holder), waits_s=TTL_S)
                told = True
            time.sleep(0.2)

    def _hold(self, ttl_s: float, dead: str = "") -> dict[str, Any] | None:
        args = self._keys.args(self._identity, self._about, self._owner, int(ttl_s * 1000), dead)
        holder = cast("str | bytes", self._client.eval(script("hold"), 0, *args))
        return _parsed(holder) if holder else None

    def _refusal(self, holder: dict[str, Any]) -> EnvironmentLacking:
        return EnvironmentLacking(f"device {self._identity} is taken: {_who(holder)} has it", HINT)


def _open(path: Path) -> int:
    """For reading and writing by every user. Not created where it exists: in a sticky folder the kernel refuses to
    open another user's file for creation."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    for _ in range(3):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(fd, 0o666)  # whatever the umask
                return fd
        except OSError as exc:
            raise EnvironmentLacking(
                f"the lock file {path} cannot be used: {exc.strerror}", "remove it, or set TMPDIR"
            ) from exc
    raise EnvironmentLacking(f"the lock file {path} comes and goes", "something removes files there: set TMPDIR")


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _process(holder: dict[str, Any]) -> ProcessRecord | None:
    try:
        return ProcessRecord.model_validate(holder.get("process"))
    except ValidationError:
        return None


def _who(holder: dict[str, Any]) -> str:
    process = _process(holder)
    where = f" (pid {process.pid} on {process.host})" if process else ""
    return f"{holder.get('worker') or 'another worker'}{where}"
