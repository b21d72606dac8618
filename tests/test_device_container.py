"""What docker-compose.yml lets a device container do is enough for a sandboxed candidate, and no more than that.

Without an engine: the capabilities become this process's bounding set, docker/seccomp.json a filter made of the
kernel's own numbers, as runc would; then a real candidate is built, run and judged under both.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.compose_file import DEVICE, GIVEN, MAIN, ROOT, read
from tests.conftest import lacking
from tests.evaluation.candidates import t4

SERVICE = read(MAIN, GIVEN)["services"]["device-cpu"]
PROFILE = json.loads((ROOT / "docker/seccomp.json").read_text())
HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h")

PROGRAM = textwrap.dedent("""
    import ctypes, os, sys
    from pathlib import Path

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    code = Path(sys.argv[1]).read_bytes()
    libc = ctypes.CDLL(None, use_errno=True)
    if code:
        assert libc.prctl(22, 2, ctypes.byref(Filter(len(code) // 8, code)), 0, 0) == 0  # PR_SET_SECCOMP, filter
        # the filter holds: anyone may compare a process with itself otherwise (kcmp)
        assert libc.syscall(312, os.getpid(), os.getpid(), 1, 0, 0) == -1 and ctypes.get_errno() == 1
    from specgen.evaluation.cell import Device, close_zygote, evaluate
    from specgen.evaluation.problems import load_problem
    from specgen.evaluation.sandbox import probe
    from specgen.settings import EvaluationPolicy
    from specgen.types import EvaluationRequest, Origin, Phase

    probe()
    request = EvaluationRequest(request_id="r", job_id="j", iteration=1, candidate_id="c", phase=Phase.PROFILE,
                                origin=Origin.MAIN, source=Path(sys.argv[2]).read_text(), problem=load_problem("T4"))
    result = evaluate(request, Device("cpu0", "cpu", int(sys.argv[3])), EvaluationPolicy(), Path(sys.argv[4]))
    close_zygote()
    print(result.status, result.error)
""")


def numbers() -> dict[str, int]:
    """System calls of this kernel's x86-64 headers (a part of what g++ needs)."""
    header = next((Path(place) for place in HEADERS if Path(place).is_file()), None)
    if header is None or platform.machine() != "x86_64":
        lacking("the kernel's headers for x86-64", HEADERS)
    assert header is not None
    return {name: int(number) for name, number in re.findall(r"__NR_(\w+) (\d+)", header.read_text())}


def program() -> bytes:
    """The profile as BPF: EPERM for what it names, everything else allowed."""
    known = numbers()
    code = struct.pack("HBBI", 0x20, 0, 0, 0)  # the call's number
    for rule in PROFILE["syscalls"]:
        for name in rule["names"]:
            code += struct.pack("HBBI", 0x15, 0, 1, known[name])
            code += struct.pack("HBBI", 0x06, 0, 0, 0x50000 | rule["errnoRet"])
    return code + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)


def confined(tmp_path: Path, capabilities: list[str], filtered: bool = True) -> subprocess.CompletedProcess[str]:
    """A candidate judged by a process with these capabilities, under the profile."""
    if os.geteuid() != 0:
        pytest.skip("a device container runs as root; only root can try that")
    if shutil.which("setpriv") is None:
        lacking("setpriv (util-linux)", "not on PATH")
    (tmp_path / "filter").write_bytes(program() if filtered else b"")
    (tmp_path / "kernel.py").write_text(t4())
    cache = os.environ.get("SPECGEN_TEST_CACHE") or str(tmp_path / "cache")
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    restricted = ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all"]
    core = str(min(os.sched_getaffinity(0)))
    return subprocess.run(
        [
            *restricted,
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path / "filter"),
            str(tmp_path / "kernel.py"),
            core,
            cache,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_a_candidate_is_judged_under_what_the_container_gives(tmp_path: Path) -> None:
    done = confined(tmp_path, SERVICE["cap_add"])
    assert done.stdout.startswith("valid"), done.stdout + done.stderr


@pytest.mark.parametrize("without", ["SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID"])
def test_each_capability_is_needed(tmp_path: Path, without: str) -> None:
    done = confined(tmp_path, [name for name in SERVICE["cap_add"] if name != without], filtered=False)
    assert "the sandbox cannot run" in done.stderr or done.stdout.startswith("infra_error"), done.stdout + done.stderr


def test_the_profile_denies_what_nobody_here_needs_and_nothing_else() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ALLOW"
    (rule,) = PROFILE["syscalls"]
    assert rule["names"] == sorted(set(rule["names"]))
    assert not {"mount", "umount2", "pivot_root", "unshare", "clone", "clone3", "sethostname", "setns"} & set(
        rule["names"]
    )
    assert {"bpf", "init_module", "kexec_load", "open_by_handle_at", "keyctl", "io_uring_setup"} <= set(rule["names"])


@pytest.mark.parametrize("name", [MAIN, DEVICE])
def test_what_every_device_container_gets(name: str) -> None:
    for service in (read(name, GIVEN)["services"][one] for one in ("device-cpu", "gpu0", "gpu1")):
        assert service["cap_drop"] == ["ALL"]
        assert service["cap_add"] == ["SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID", "KILL"]
        assert "seccomp=unconfined" not in service["security_opt"]
