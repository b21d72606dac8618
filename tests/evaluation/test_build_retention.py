"""Support directories are over a gigabyte each: old ones go, and none that a living process uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specgen.evaluation.build import retention, support

HOLDER = """
import sys
from pathlib import Path
from specgen.evaluation.build import retention
print(retention.hold(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def directory(root: Path, name: str, used: float) -> Path:
    made = root / f"support-{name}"
    made.mkdir()
    (made / "manifest.json").write_text("{}")
    (made / retention.IN_USE).touch()
    os.utime(made / retention.IN_USE, (used, used))
    return made


def names(root: Path) -> set[str]:
    return {path.name.removeprefix("support-") for path in root.iterdir()}


def test_the_current_one_and_the_last_used_other_stay(tmp_path: Path) -> None:
    current, *_ = (directory(tmp_path, name, used) for name, used in (("new", 1), ("a", 30), ("b", 20), ("c", 40)))
    directory(tmp_path, "building-left", 50)  # by a builder that was killed
    removed = retention.collect(tmp_path, current)
    assert sorted(removed) == ["support-a", "support-b"]
    assert names(tmp_path) == {"new", "c"}


def test_one_without_a_mark_of_use_counts_by_its_own_age(tmp_path: Path) -> None:
    old, young = directory(tmp_path, "old", 1), directory(tmp_path, "young", 1)
    for path, used in ((old, 10), (young, 20)):
        (path / retention.IN_USE).unlink()
        os.utime(path, (used, used))
    retention.collect(tmp_path, tmp_path / "support-none-yet")
    assert names(tmp_path) == {"young"}


def test_one_in_use_is_never_removed(tmp_path: Path) -> None:
    used, _ = directory(tmp_path, "used", 1), directory(tmp_path, "recent", 10**10)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(used)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        os.utime(used / retention.IN_USE, (1, 1))
        retention.collect(tmp_path, tmp_path / "support-new")
        assert names(tmp_path) == {"used", "recent"}
        holder.communicate("")
    retention.collect(tmp_path, tmp_path / "support-new")
    assert names(tmp_path) == {"recent"}


def test_a_directory_that_vanished_is_not_held(tmp_path: Path) -> None:
    assert not retention.hold(tmp_path / "support-gone")


def test_a_new_support_directory_collects_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "_make", lambda scratch, *_: (scratch / "manifest.json").write_text("{}"))
    for number in range(3):
        directory(tmp_path, f"old{number}", number)
    made = support.ensure_support(tmp_path)
    assert support.ensure_support(tmp_path) == made
    assert {path.name for path in tmp_path.glob("support-*")} == {made.name, "support-old2"}
    assert (made / retention.IN_USE).exists()
