"""Whole evaluations under attack, and honest candidates whose infrastructure breaks: a few of each.

``python -m benchmarks.hostile`` has all of them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from benchmarks.hostile import breakage, evaluations
from benchmarks.hostile.candidates import CANDIDATES, HONEST
from specgen.evaluation import processes, sandbox
from specgen.evaluation.alibi import Alibi
from specgen.evaluation.archive import pack, unpack
from specgen.evaluation.build.toolchain import Deadline, cxx, run
from specgen.evaluation.cell import Cell, _Zygote, close_zygote
from specgen.evaluation.verdict import Verdict
from specgen.evaluation.wire import ProtocolError, decode, memory_file, memory_file_of
from specgen.settings import EvaluationPolicy
from specgen.types import Status

from .test_cells import wait_for

QUICK = (
    "closes its connection and goes on",
    "kills itself",
    "memory in sockets",
    "an answer with numbers that are none",
    "an error text that no database holds",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_candidate_does_no_harm(cache_root: Path, name: str) -> None:
    (hostile,) = [one for one in CANDIDATES if one.name == name]
    outcome = evaluations.run(hostile, cache_root)
    assert not outcome.escape, outcome.escape


def test_a_sandbox_killed_from_outside_is_infrastructure(cache_root: Path) -> None:
    cell = Cell.start(evaluations.DEVICE, EvaluationPolicy(), cache_root)
    try:
        assert cell.wait_ready(120)
        cell.submit(evaluations.request(HONEST))
        strike = breakage.Strike(breakage._send(breakage._outer), at_s=0.0)
        strike.look(cell, 0.0)
        assert strike.struck
        while (result := cell.poll(5.0)) is None:
            pass
    finally:
        cell.kill()
    assert result.status is Status.INFRA_ERROR
    assert "killed from outside" in result.error


def test_a_support_that_changes_is_an_alibi(tmp_path: Path) -> None:
    support = tmp_path / "support"
    (support / "include").mkdir(parents=True)
    header = support / "include" / "facade.h"
    header.write_text("one")
    (support / "in-use").touch()
    alibi = Alibi(str(support))
    blamed = Verdict(Status.RUNTIME_ERROR, "exit")
    os.utime(support / "in-use", (1, 1))  # somebody uses it: no change
    assert alibi.checked(blamed) is blamed
    header.write_text("other")
    assert alibi.checked(blamed).status is Status.INFRA_ERROR
    wrong = Verdict(Status.WRONG_VALUE, "no machine makes a wrong value")
    assert alibi.checked(wrong) is wrong


def test_a_compiler_that_does_not_compile_is_an_alibi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blamed = Verdict(Status.COMPILE_ERROR, "error: expected ';'")
    assert Alibi("").checked(blamed) is blamed
    broken = tmp_path / "c++"
    broken.write_text(breakage._NO_BACKEND)
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert Alibi("").checked(blamed).status is Status.INFRA_ERROR
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert Alibi("").checked(blamed).status is Status.INFRA_ERROR


@pytest.mark.parametrize("text", [b'{"n": 1e999}', b'{"n": NaN}', b'{"n": 1%s}' % (b"0" * 100), b"[" * 9000, b"[]"])
def test_messages_that_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(text)


def test_text_is_made_storable() -> None:
    text = decode(b'{"text": "a\\u0000b\\ud800c", "list": ["\\u0000"]}')
    assert text == {"text": "a\ufffdb?c", "list": ["\ufffd"]}


def test_build_products_are_whole_or_refused(tmp_path: Path) -> None:
    (tmp_path / "there" / "key").mkdir(parents=True)
    (tmp_path / "there" / "key" / "x.so").write_bytes(b"library" * 1000)
    fd = memory_file(1 << 20)
    data = os.pread(fd, pack(tmp_path / "there", fd, 1 << 20), 0)
    unpack(memory_file_of(data), tmp_path / "back")
    assert (tmp_path / "back" / "key" / "x.so").read_bytes() == b"library" * 1000
    for spoiled in (data[:-1], data[:5000] + b"X" + data[5001:], b"", data[:31]):
        with pytest.raises(ValueError, match="damaged"):
            unpack(memory_file_of(spoiled), tmp_path / "again")


def test_the_judges_memory_cannot_be_sealed() -> None:
    import fcntl

    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number says which
        fcntl.fcntl(memory_file(4096), fcntl.F_ADD_SEALS, 0x10)
    assert caught.value.errno == errno.EPERM


def test_a_compiler_in_a_home_shows_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder's folder was once bound: of ~/bin/g++ that is the whole home."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    compiler = home / "bin" / "g++"
    compiler.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CXX", str(compiler))
    assert sandbox._compiler() == ([str(compiler)], {})
    (home / "lib" / "gcc").mkdir(parents=True)  # not even if the home looks like a toolchain
    assert sandbox._compiler() == ([str(compiler)], {})
    link = home / "bin" / "c++"
    link.symlink_to("/usr/bin/c++")
    monkeypatch.setenv("CXX", str(link))
    assert sandbox._compiler() == ([], {str(link): os.path.realpath("/usr/bin/c++")})


def test_a_project_that_is_its_own_environment_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m venv .`` makes a prefix of a folder that also holds .env and the like."""
    for name in ("bin", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / ".env").write_text("SECRET")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    trees = sandbox.python_trees()
    assert str(tmp_path / "lib") in trees
    assert str(tmp_path) not in trees


def test_a_zygote_ends_with_its_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it makes the build support, it once left them running for a minute."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ncase "$1" in --version) exec /usr/bin/c++ --version;; esac\nexec sleep 300\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    close_zygote()
    cell = Cell.start(evaluations.DEVICE, EvaluationPolicy(), tmp_path / "cache")
    assert _Zygote._current is not None
    zygote = _Zygote._current.process
    try:
        assert wait_for(lambda: processes.descendants(zygote.pid), 60)
        compilers = processes.descendants(zygote.pid)
        zygote.terminate()
        assert wait_for(lambda: not any(map(processes.running, compilers)), 30)
    finally:
        cell.kill()
        close_zygote()


@pytest.mark.parametrize("part", ["as", "ld"])
def test_a_killed_part_of_the_compiler_is_no_error_of_the_source(tmp_path: Path, part: str) -> None:
    """gcc's driver and collect2 exit with 1 and say it each in their own words."""
    (tmp_path / part).write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / part).chmod(0o755)
    (tmp_path / "x.cpp").write_text("int main() {}\n")
    done = run([cxx(), f"-B{tmp_path}", "x.cpp", "-o", "x"], tmp_path, Deadline.after(60))
    assert done.code == 1
    assert done.killed, done.output
