"""Processes remembered for a later one: the group of an evaluation, which a worker's successor ends, and the holder of
a device, whose death a successor can be sure of.

Both go by a pid, and pids come again: a record also holds when the process started (in clock ticks since boot), which
boot that was, and whose pids are meant (containers that share a host's name do not share its pids). Linux only. Not
here: starting groups (specgen.evaluation.cell).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

from pydantic import ValidationError

from specgen.types import Frozen


class GroupRecord(Frozen):
    """Which group, on which host, in which boot and pid namespace."""

    pgid: int
    started_ticks: int
    boot_id: str
    host: str
    pids: str = ""


class ProcessRecord(Frozen):
    """Which process, likewise."""

    pid: int
    started_ticks: int
    boot_id: str
    host: str
    pids: str

    @property
    def alive(self) -> bool | None:
        """None where that is not known: on another host, or in another pid namespace."""
        if self.host != socket.gethostname():
            return None
        if self.boot_id != _boot_id():
            return False
        if self.pids != _pid_namespace():
            return None
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.started_ticks


def this_process() -> ProcessRecord:
    """The caller."""
    stat = _stat(os.getpid())
    assert stat is not None
    return ProcessRecord(
        pid=os.getpid(), started_ticks=stat[1], boot_id=_boot_id(), host=socket.gethostname(), pids=_pid_namespace()
    )


def record(pgid: int) -> GroupRecord | None:
    """What to remember of a running group; None where its leader has ended already."""
    stat = _stat(pgid)
    if stat is None:
        return None
    return GroupRecord(
        pgid=pgid, started_ticks=stat[1], boot_id=_boot_id(), host=socket.gethostname(), pids=_pid_namespace()
    )


def parse(text: str | None) -> GroupRecord | None:
    """A record from its JSON; None for nothing, or for what another version wrote."""
    try:
        return GroupRecord.model_validate_json(text) if text else None
    except ValidationError:
        return None


def end(group: GroupRecord, grace_s: float = 0.5) -> bool:
    """SIGTERM, then SIGKILL, if the group is still the one recorded. True if there was something to end."""
    if not _is_same(group):
        return False
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group.pgid, number)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not members(group.pgid):
                return True
            time.sleep(0.01)
    return True


def members(pgid: int) -> list[int]:
    """Pids of the group that run (a zombie does not)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and stat[0] == pgid:
            found.append(int(entry.name))
    return found


def _is_same(group: GroupRecord) -> bool:
    """A group keeps its number busy until its last member is gone, so one without its leader is still the one."""
    if group.host != socket.gethostname() or group.boot_id != _boot_id() or group.pgid == os.getpgrp():
        return False
    if group.pids != _pid_namespace():
        return False
    leader = _stat(group.pgid)
    if leader is not None and leader[1] != group.started_ticks:
        return False
    mine = os.geteuid()
    pids = members(group.pgid)
    with contextlib.suppress(FileNotFoundError):
        return bool(pids) and all(Path(f"/proc/{pid}").stat().st_uid == mine for pid in pids)
    return _is_same(group)  # one ended while we looked


def _stat(pid: int) -> tuple[int, int] | None:
    """(process group, start in ticks since boot) of a process that runs; fields 5 and 22 of proc(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[2]), int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
