"""Cells leave nothing behind: not when killed, not when their worker dies, not when the candidate hides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specgen.errors import EnvironmentLacking
from specgen.evaluation import processes
from specgen.evaluation.cell import Cell, devices
from specgen.settings import EvaluationPolicy, Settings
from specgen.types import Status

from .candidates import plain, t4
from .conftest import DEVICE, request

HIDING = plain(
    "        while True: pass",
    top="import os, subprocess\n"
    "for _ in range(2):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0:\n"
    "            import signal, time\n"
    "            signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "            time.sleep(600)\n"
    "        os._exit(0)\n",
)


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state not in ("Z", "X"):
            found.append(pid)
    return found


def wait_for(condition, seconds: float = 15.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("walls", ["bubblewrap", "none"])
def test_kill_leaves_no_process(cache_root: Path, walls: str) -> None:
    cell = Cell.start(DEVICE, EvaluationPolicy(sandbox=walls), cache_root)
    assert cell.wait_ready(120)
    before = len(processes.descendants(cell.pgid))
    cell.submit(request(HIDING))
    assert wait_for(lambda: len(processes.descendants(cell.pgid)) >= before + 2)
    pids = [cell.pgid, *processes.descendants(cell.pgid)]
    assert cell.poll(1.0) is None
    start = time.monotonic()
    cell.kill()
    took = time.monotonic() - start
    assert alive(pids) == []
    assert took < 2.0
    cell.kill()  # idempotent


def test_a_cell_killed_at_once_leaves_nothing(cache_root: Path) -> None:
    cell = Cell.start(DEVICE, EvaluationPolicy(), cache_root)
    cell.kill()
    if cell.pgid:
        assert wait_for(lambda: alive([cell.pgid]) == [])


WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from specgen.evaluation.cell import Cell, Device, _Zygote
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest
cell = Cell.start(Device(name="d", backend="cpu", index=int(sys.argv[3])), EvaluationPolicy(), Path(sys.argv[2]))
assert cell.wait_ready(120)
cell.submit(EvaluationRequest.model_validate_json(sys.stdin.read()))
time.sleep(2)
print(cell.pgid, _Zygote._current.process.pid, flush=True)
time.sleep(600)
"""


def test_a_dying_worker_leaves_no_process(cache_root: Path) -> None:
    place = str(Path(__file__).resolve().parents[2])
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, place, str(cache_root), str(DEVICE.index)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(request(HIDING).model_dump_json())
    worker.stdin.close()
    pgid, zygote = map(int, worker.stdout.readline().split())
    pids = [pgid, zygote, *processes.descendants(pgid)]
    assert len(pids) >= 5
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    assert wait_for(lambda: alive(pids) == [])


def test_a_dead_zygote_is_replaced(cache_root: Path) -> None:
    from specgen.evaluation.cell import _Zygote

    first = Cell.start(DEVICE, EvaluationPolicy(), cache_root)
    assert first.wait_ready(120)
    first.kill()
    assert _Zygote._current is not None
    _Zygote._current.process.kill()
    _Zygote._current.process.wait()
    second = Cell.start(DEVICE, EvaluationPolicy(), cache_root)
    try:
        assert second.wait_ready(120)
    finally:
        second.kill()


def test_without_walls_an_honest_kernel_is_judged_the_same(cache_root: Path) -> None:
    from specgen.evaluation.cell import evaluate

    result = evaluate(request(t4()), DEVICE, EvaluationPolicy(sandbox="none"), cache_root)
    assert result.status is Status.VALID, result.error
    assert result.environment["sandbox"] == "none"


def test_devices_are_cores() -> None:
    found = devices(Settings())
    assert len(found) == len(os.sched_getaffinity(0))
    assert len({device.index for device in found}) == len(found)
    with pytest.raises(EnvironmentLacking):
        devices(Settings(evaluation=EvaluationPolicy(cpu_devices=10_000)))
