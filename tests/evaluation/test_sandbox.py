"""What foreign code can reach from inside the sandbox: each attack reports what it got, and gets nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specgen.errors import EnvironmentLacking
from specgen.evaluation import sandbox, seccomp
from specgen.evaluation.wire import memory_file_of

PRELUDE = """
import ctypes, json, os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from specgen.evaluation.candidate import restrict
restrict(json.loads(sys.argv[2]))
libc = ctypes.CDLL(None, use_errno=True)
def attack():
"""
LIMITS = {"processes": 40, "file_bytes": 1 << 26, "data_bytes": 1 << 31, "uid": sandbox.fresh_uid()}

ATTACKS = {
    "network": "    socket.create_connection(('127.0.0.1', PORT), 1)\n    return 'connected'",
    "abstract socket": "    socket.socket(socket.AF_UNIX).connect('\\0specgen-test-PORT')\n    return 'connected'",
    "secret in an environment": (
        "    found = [p for p in os.listdir('/proc') if p.isdigit()\n"
        "             and b'CANARY' in open(f'/proc/{p}/environ', 'rb').read()]\n"
        "    return found or fail()"),
    "secret in own environment": "    return os.environ.get('SPECGEN_CANARY') or fail()",
    "the host's processes": "    return [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 50] or fail()",
    "kill a process of the host": "    os.kill(HOST_PID, 0)\n    return 'could signal'",
    "read a file of the host": "    return open('SECRET_FILE').read()",
    "read the password file": "    return open('/etc/passwd').read()",
    "home of root": "    return os.listdir('/root/.ssh') + os.listdir('/home')",
    "write into the interpreter": "    open(os.path.join(sys.prefix, 'x.pth'), 'w').write('x')\n    return 'written'",
    "write into the package": "    open(sys.argv[1] + '/specgen/x.py', 'w').write('x')\n    return 'written'",
    "write into the system": "    open('/usr/x', 'w').write('x')\n    return 'written'",
    "write into the root": "    open('/x', 'w').write('x')\n    return 'written'",
    "remount": "    r = libc.mount(b'none', b'/usr', None, 32, None)\n    return 'mounted' if r == 0 else fail()",
    "ptrace": "    r = libc.ptrace(16, os.getppid(), 0, 0)\n    return 'attached' if r == 0 else fail()",
    "memory of another process": "    return len(open(f'/proc/{os.getppid()}/mem', 'rb').read(1)) + 1",
    "new user namespace": "    r = libc.unshare(0x10000000)\n    return 'unshared' if r == 0 else fail()",
    "become root": "    os.setuid(0) if os.getuid() else fail()\n    return 'root'",
    "leave the core": (
        "    mask = ctypes.create_string_buffer(b'\\xff' * 128)\n"
        "    r = libc.sched_setaffinity(0, 128, mask)\n    return 'moved' if r == 0 else fail()"),
    "devices": "    return [d for d in os.listdir('/dev') if d.startswith(('vd', 'nvme', 'mem', 'kmsg'))] or fail()",
    "kernel parameters": "    open('/proc/sys/kernel/hostname', 'w').write('x')\n    return 'written'",
    "shared memory of the host": "    return [f for f in os.listdir('/dev/shm') if 'canary' in f] or fail()",
}  # fmt: skip


@pytest.fixture(scope="module")
def walls() -> None:
    try:
        sandbox.probe()
    except EnvironmentLacking as exc:
        if os.environ.get("CI"):
            pytest.fail(str(exc))
        pytest.skip(str(exc))


def inside(code: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    rules = seccomp.program()
    assert rules is not None
    fd = memory_file_of(rules)
    os.lseek(fd, 0, os.SEEK_SET)
    place = str(Path(sandbox.__file__).resolve().parents[2])
    inner = [sys.executable, "-I", "-c", code, place, json.dumps(LIMITS)]
    command = sandbox.command(sandbox.Walls(device_index=0, seccomp_fd=fd), inner)
    try:
        return subprocess.run(
            command, env={}, pass_fds=[fd], capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing(walls: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("CANARY")
    monkeypatch.setenv("SPECGEN_CANARY", "CANARY")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0specgen-test-{port}")
    abstract.listen()
    shared = Path("/dev/shm") / f"canary-{port}"
    shared.write_text("CANARY")
    body = ATTACKS[name].replace("PORT", str(port)).replace("HOST_PID", str(os.getpid()))
    body = body.replace("SECRET_FILE", str(secret))
    tail = (
        "\ndef fail():\n    raise OSError('nothing')\n"
        "try:\n    print('GOT', attack())\nexcept BaseException as e:\n    print('REFUSED', type(e).__name__, e)\n"
    )
    try:
        done = inside(PRELUDE + body + tail)
    finally:
        shared.unlink()
        listener.close()
        abstract.close()
    assert done.stdout.startswith("REFUSED"), (done.stdout, done.stderr)


def test_the_same_attacks_succeed_without_walls(tmp_path: Path) -> None:
    """The attacks are real: outside the sandbox these get what they want."""
    secret = tmp_path / "secret.txt"
    secret.write_text("CANARY")
    listener = socket.create_server(("127.0.0.1", 0))
    for name, value in (("network", str(listener.getsockname()[1])), ("read a file of the host", str(secret))):
        body = ATTACKS[name].replace("PORT", value).replace("SECRET_FILE", value)
        code = "import socket\ndef attack():\n" + body + "\nprint('GOT', attack())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout.startswith("GOT"), done.stderr
    listener.close()


def test_a_fork_bomb_is_bounded(walls: None) -> None:
    body = (
        "    count = 0\n    while True:\n        try:\n            pid = os.fork()\n        except OSError:\n"
        "            return count\n        if pid == 0:\n            import time; time.sleep(20); os._exit(0)\n"
        "        count += 1\n"
    )
    done = inside(PRELUDE + body + "\nprint('COUNT', attack(), flush=True)\nos._exit(0)\n")
    assert done.stdout.startswith("COUNT"), done.stderr
    assert 0 < int(done.stdout.split()[1]) < 60


def test_a_disk_full_of_rubbish_is_bounded(walls: None) -> None:
    body = (
        "    total = 0\n    for n in range(10000):\n        try:\n"
        "            with open(f'/tmp/{n}', 'wb') as f: total += f.write(b'x' * (1 << 25))\n"
        "        except OSError:\n            return total\n"
    )
    done = inside(PRELUDE + body + "\nprint('BYTES', attack())\n")
    assert done.stdout.startswith("BYTES"), done.stderr
    assert int(done.stdout.split()[1]) <= 1 << 30


def test_the_sandbox_costs_milliseconds(walls: None) -> None:
    done = inside(PRELUDE + "    return os.getuid()\nprint('UID', attack())\n")
    assert done.stdout.startswith("UID")
    assert int(done.stdout.split()[1]) != 0


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
