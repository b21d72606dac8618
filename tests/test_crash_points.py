"""Crash points kill where, when and as often as they were told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from specgen.crash_points import crash_point
for turn in range(3):
    crash_point("here")
    crash_point("elsewhere")
    print(turn, flush=True)
"""


def run(**variables: str) -> tuple[int, list[str]]:
    """Exit code and the turns that were finished."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPECGEN_")} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split()


def test_a_process_without_the_variable_passes_every_point() -> None:
    assert run() == (0, ["0", "1", "2"])


def test_the_first_pass_kills() -> None:
    assert run(SPECGEN_CRASH_POINT="here") == (-signal.SIGKILL, [])


def test_the_nth_pass_kills() -> None:
    assert run(SPECGEN_CRASH_POINT="elsewhere:3") == (-signal.SIGKILL, ["0", "1"])


def test_other_points_are_passed() -> None:
    assert run(SPECGEN_CRASH_POINT="nowhere") == (0, ["0", "1", "2"])


def test_with_a_marker_only_one_process_dies(tmp_path: Path) -> None:
    once = {"SPECGEN_CRASH_POINT": "here:2", "SPECGEN_CRASH_ONCE": str(tmp_path / "once")}
    assert run(**once) == (-signal.SIGKILL, ["0"])
    assert (tmp_path / "once").read_text().startswith("here ")
    assert run(**once) == (0, ["0", "1", "2"])
