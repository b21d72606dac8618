"""Performance counters of another process: what is there counts, and only inside; what is not there is None."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specgen.evaluation.perf_events import EVENTS, NAMES, Event, PerfCounters

PAGES = 256
TOUCH = f"""
import mmap, sys
print(flush=True)
for line in sys.stdin:
    memory = mmap.mmap(-1, {PAGES} * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range({PAGES}):
        memory[page * mmap.PAGESIZE] = 1
    print(flush=True)
"""
FAULTS = {"page_faults": EVENTS["page_faults"]}


class Toucher:
    """A process that touches PAGES new pages when asked."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TOUCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "\n"

    def touch(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._wait()


@pytest.fixture
def toucher() -> Iterator[Toucher]:
    found = Toucher()
    yield found
    found.process.communicate()


def test_a_process_is_counted_inside_and_only_there(toucher: Toucher) -> None:
    counters = PerfCounters(toucher.process.pid, FAULTS)
    if counters.missing:
        pytest.skip(f"the kernel refuses counters here: {counters.missing}")
    toucher.touch()
    outside = counters.per_run(1)["page_faults"]
    for _ in range(2):
        with counters.counting():
            toucher.touch()
        toucher.touch()
    inside = counters.per_run(2)["page_faults"]
    counters.close()
    assert outside is None  # it was never enabled
    assert inside is not None
    assert PAGES <= inside < 2 * PAGES


def test_what_there_is_not_is_none_and_says_why() -> None:
    before = len(os.listdir("/proc/self/fd"))
    counters = PerfCounters(os.getpid(), {"cycles": Event(0, 9999), "instructions": Event(77_777, 0)})
    with counters.counting():
        pass
    assert counters.per_run(1) == dict.fromkeys(NAMES)
    assert set(counters.missing) == {"cycles", "instructions"}
    assert set(counters.missing.values()) <= {"ENOENT", "EINVAL", "EACCES", "EPERM", "ENOSYS"}
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_gone_has_no_counters(toucher: Toucher) -> None:
    toucher.process.communicate()
    counters = PerfCounters(toucher.process.pid)
    assert set(counters.missing) == set(EVENTS)
    assert counters.per_run(40) == dict.fromkeys(NAMES)
    if counters.missing["page_faults"] not in ("EACCES", "EPERM", "ENOSYS"):
        assert counters.missing["page_faults"] == errno.errorcode[errno.ESRCH]


def test_hardware_counters_agree_with_each_other_where_there_are_any() -> None:
    counters = PerfCounters(os.getpid())
    with counters.counting():
        sum(range(1_000_000))
    found = counters.per_run(1)
    counters.close()
    cycles, instructions = found["cycles"], found["instructions"]
    if cycles is None or instructions is None:
        assert found["ipc"] is None
        assert counters.missing or cycles is None  # a counter that others hold counts nothing
    else:
        assert instructions > 1_000_000
        assert found["ipc"] == pytest.approx(instructions / cycles)
