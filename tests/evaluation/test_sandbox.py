"""What foreign code can reach from inside the sandbox: each attack reports what it got, and gets nothing.

The attacks are those of ``python -m benchmarks.hostile``, which runs them more often, alone and inside evaluations.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hostile.ground import ATTACKS, Finding, Ground
from specgen.errors import EnvironmentLacking
from specgen.evaluation import sandbox, seccomp

from .conftest import support_of


@pytest.fixture(scope="module")
def ground(cache_root: Path) -> Iterator[Ground]:
    try:
        sandbox.probe()
    except EnvironmentLacking as exc:
        if os.environ.get("CI"):
            pytest.fail(str(exc))
        pytest.skip(str(exc))
    with Ground(support_of(cache_root)) as prepared:
        yield prepared


@pytest.fixture(scope="module")
def walled(ground: Ground) -> dict[str, Finding]:
    """All of them in one sandbox, a process each."""
    return {finding.name: finding for finding in ground.walled(list(ATTACKS))}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing(walled: dict[str, Finding], name: str) -> None:
    assert not walled[name].got, walled[name].said


def test_the_same_attacks_succeed_without_walls(ground: Ground) -> None:
    """The attacks are real: outside the sandbox they get what they want. Root's are more; services are not here, and
    some machines have no GPU or no magic system request."""
    found = ground.unwalled(list(ATTACKS))
    failed = [finding for finding in found if not finding.got]
    assert len(failed) <= (10 if os.geteuid() == 0 else 40), failed


def test_the_filter_is_a_program() -> None:
    for machine in ("x86_64", "aarch64"):
        rules = seccomp.program(machine)
        assert rules is not None
        assert len(rules) % 8 == 0
    assert seccomp.program("unknown") is None


def test_a_missing_bubblewrap_is_one_line_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bwrap", lambda: "/nonexistent/bwrap")
    with pytest.raises(EnvironmentLacking) as caught:
        sandbox.probe()
    assert "\n" not in caught.value.message
    assert "SANDBOX=none" in caught.value.hint


def test_what_lies_under_tmp_outside_is_seen_inside(tmp_path: Path) -> None:
    """A cache folder there once hid its build support behind the sandbox's own /tmp."""
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "manifest.json").write_text("{}")
    tmp_path.chmod(0o755)
    program = f"import os; os.stat({str(tmp_path / 'support' / 'manifest.json')!r}); open('/tmp/x', 'w').write('y')"
    walls = sandbox.Walls(device_index=0, support=tmp_path / "support")
    done = subprocess.run(sandbox.command(walls, [sys.executable, "-I", "-c", program]), env={}, capture_output=True)
    assert done.returncode == 0, done.stderr
