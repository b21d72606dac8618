"""compute-sanitizer's reports as lines, in the format of its documentation (releases from 2022 to 2025, and older)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgen.errors import EnvironmentLacking
from specgen.evaluation import cell, sandbox, sanitize
from specgen.evaluation.sanitizer import TOOLS, command, complete, failure, lines, parse
from specgen.evaluation.supervisor import CellSpec
from specgen.evaluation.tools import Subject
from specgen.settings import EvaluationPolicy
from specgen.types import Status
from tests.evaluation.conftest import DEVICE, request

MEMCHECK = """========= COMPUTE-SANITIZER
printed by the program
========= Invalid __global__ write of size 4 bytes
=========     at scale_rows(const float *, float *, int)+0x60 in cuda_source.cu:4
=========     by thread (31,0,0) in block (4095,2,0)
=========     Access at 0x7f6d5ce00004 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6d5cc00000 of size 2,097,152 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch(at::Tensor) in cuda_source.cu:9 [0x11e9] in ext.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale_rows(const float *, float *, int)+0x60 in cuda_source.cu:4
=========     by thread (30,0,0) in block (4095,2,0)
=========     Access at 0x7f6d5ce00000 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cudaDeviceSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: main [0x1241] in python
=========
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""  # noqa: E501
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(float *)+0xf0 in cuda_source.cu:12
=========     and Read access at reduce(float *)+0xd0 in cuda_source.cu:14 [32 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
OLD_RACECHECK = """========= WARN: Race reported between Write access at 0x00000148 in ./race.cu:3:test(int*, int*)
=========     and Read access at 0x00000170 in ./race.cu:4:test(int*, int*) [4 hazards]
=========
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at void reduce<float>(T1 *)+0xa0 in cuda_source.cu:5
=========     by thread (63,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
ONLY_API = """========= COMPUTE-SANITIZER
========= Program hit cudaErrorInvalidConfiguration (error 9) due to "invalid configuration argument" on CUDA API call to cudaLaunchKernel.
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 1 error
"""  # noqa: E501
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
SOURCE = '''CUDA = r"""
__global__ void scale_rows(const float* a, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * a[i];
}
"""
OTHER = """
nothing
"""
'''


def test_a_wild_write_is_one_line_with_everything_in_it() -> None:
    (one,) = parse(MEMCHECK)
    assert (one.kernel, one.file, one.line) == ("scale_rows(const float *, float *, int)", "cuda_source.cu", 4)
    assert (one.thread, one.block, one.count) == ("(31,0,0)", "(4095,2,0)", 2)
    assert lines([one], SOURCE) == (
        "Invalid __global__ write of size 4 bytes in scale_rows(const float *, float *, int) at cuda_source.cu:4"
        " [candidate.py line 4: out[i] = 2 * a[i];] by thread (31,0,0) of block (4095,2,0)"
        "; Access at 0x7f6d5ce00004 is out of bounds"
        "; and is 1 bytes after the nearest allocation at 0x7f6d5cc00000 of size 2,097,152 bytes [2 times]"
    )


def test_a_race_names_both_accesses() -> None:
    (one,) = parse(RACECHECK)
    assert one.what == "Race reported between Write access"
    assert (one.kernel, one.line) == ("reduce(float *)", 12)
    assert one.details == ("and Read access at reduce(float *)+0xd0 in cuda_source.cu:14 [32 hazards]",)
    (old,) = parse(OLD_RACECHECK)
    assert (old.kernel, old.file, old.line) == ("test(int*, int*)", "race.cu", 3)


def test_without_line_info_there_is_still_the_kernel() -> None:
    (one,) = parse(INITCHECK)
    assert (one.kernel, one.file, one.thread) == ("vectorAdd(int *)", "", "(31,0,0)")
    assert "Address 0x7f3c7ec000fc" in lines([one])


def test_a_barrier_that_some_threads_miss() -> None:
    (one,) = parse(SYNCCHECK)
    assert one.kernel == "void reduce<float>(T1 *)"
    assert one.what == "Barrier error detected. Divergent thread(s) in block."


def test_errors_of_calls_are_told_where_there_is_nothing_else() -> None:
    (one,) = parse(ONLY_API)
    assert "cudaErrorInvalidConfiguration" in one.what


@pytest.mark.parametrize(("text", "whole"), [(CLEAN, True), ("", False), ("========= COMPUTE-SANITIZER\n", False)])
def test_nothing_found_and_nothing_said_differ(text: str, whole: bool) -> None:
    assert parse(text) == []
    assert complete(text) is whole


def test_what_the_program_says_of_itself_is_no_finding() -> None:
    text = "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. It may have ended.\n"
    assert parse(text) == []
    assert failure(text) == "No attachable process found. It may have ended."
    assert failure(RACECHECK) == failure(CLEAN) == failure(MEMCHECK) == ""


def test_a_hardware_exception_is_a_finding_too() -> None:
    text = MEMCHECK.replace("Invalid __global__ write of size 4 bytes", "Out-of-range Shared or Local Address")
    assert parse(text)[0].what == "Out-of-range Shared or Local Address"


def test_many_findings_are_counted_not_listed() -> None:
    many = "".join(INITCHECK.replace("vectorAdd", f"k{number}") for number in range(30))
    assert lines(parse(many)).endswith("... and 22 more")


def test_every_tool_has_its_command() -> None:
    for tool in TOOLS:
        words = command("compute-sanitizer", tool, ["python"])
        assert words[words.index("--tool") + 1] == tool
        assert words[-1] == "python"


@given(st.text(alphabet="=\n atInvaldRce(){}<>,:0x+ "))
def test_any_text_is_read(text: str) -> None:
    report = "\n".join(f"========= {line}" for line in text.split("\n"))
    assert isinstance(lines(parse(report), SOURCE), str)


CANDIDATE = """
import os
import torch
class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        print("========= Invalid forged by the candidate")
        os.environ["NVCC_APPEND_FLAGS"], os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"]
        return a[:, None] * b
"""
STAND_IN = """#!/bin/sh
while [ "$1" != --tool ]; do shift; done
tool=$2
while [ "$1" != --show-backtrace ]; do shift; done
shift 2
BEFORE
"$@"; code=$?
"""
Look = Callable[..., sanitize.Report]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Runs a stand-in, whose last lines are ``then``, around a real candidate in the real sandbox."""
    try:
        sandbox.probe()
    except EnvironmentLacking as exc:
        if os.environ.get("CI"):
            pytest.fail(str(exc))
        pytest.skip(str(exc))

    def call(
        then: str = "", source: str = CANDIDATE, tool: str = "memcheck", limit_s: float = 90.0, before: str = ""
    ) -> sanitize.Report:
        program = tmp_path / "compute-sanitizer"
        program.write_text(STAND_IN.replace("BEFORE", before) + then)
        program.chmod(0o755)
        tmp_path.chmod(0o755)
        spec = CellSpec("test", "cpu", 0, "bubblewrap", "auto", "", 4 << 30)
        subject = Subject(source, b"", [], [torch.rand(4), torch.rand(4, 4)], 42)
        return sanitize.collect(subject, spec, tool, limit_s, str(program))

    return call


def printing(text: str) -> str:
    return f"cat <<'REPORT'\n{text}REPORT\n"


class TestCollect:
    def test_its_report_is_read_and_the_candidates_words_are_not(self, look: Look) -> None:
        found = look(
            f"[ $code = 0 ] || exit 9\n[ $tool = racecheck ] || exit 8\n{printing(RACECHECK)}", tool="racecheck"
        )
        assert found.unavailable == ""
        assert found.text.startswith(
            "compute-sanitizer racecheck: Race reported between Write access in reduce(float *)"
        )
        assert "forged" not in found.found

    def test_nothing_found(self, look: Look) -> None:
        assert look(printing(CLEAN)).text == "compute-sanitizer memcheck: nothing found"

    def test_a_fault_that_it_names_is_its_finding_though_the_candidate_fails(self, look: Look) -> None:
        found = look(printing(MEMCHECK), CANDIDATE.replace("print(", "raise RuntimeError("))
        assert "Invalid __global__ write" in found.found

    def test_a_candidate_that_fails_of_itself(self, look: Look) -> None:
        found = look(printing(CLEAN), CANDIDATE.replace("print(", "raise ValueError("))
        assert "found nothing before the candidate failed: ValueError: =" in found.unavailable

    def test_a_program_that_says_nothing(self, look: Look) -> None:
        assert "printed no report" in look(before="exit 1").unavailable
        assert look(before="sleep 61.74", limit_s=3.0).unavailable == "compute-sanitizer did not end within its time"

    def test_none_here(self) -> None:
        spec = CellSpec("test", "cpu", 0, "bubblewrap", "auto", "", 4 << 30)
        found = sanitize.collect(Subject("", b"", [], [], 42), spec, "memcheck", program="")
        assert found.text == f"compute-sanitizer memcheck: unavailable: {sanitize.NO_SANITIZER}"


def test_a_fault_is_explained_where_the_policy_asks_for_it(
    tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a whole cell. The policy is for GPUs; a CPU's fault and a stand-in take their place here."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(STAND_IN.replace("BEFORE", "") + printing(MEMCHECK))
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cell, "_sanitize", lambda policy, backend: "fault" if policy.sanitize_on_fault else backend)
    cell.close_zygote()  # the next one is started with this PATH
    try:
        fault = CANDIDATE.replace("print(", "os.abort() if a.dim() else print(")
        policy = EvaluationPolicy(sanitize_on_fault=True)
        result = cell.evaluate(request(fault), DEVICE, policy, cache_root)
    finally:
        cell.close_zygote()
    assert result.status is Status.DEVICE_FAULT, result.error
    assert result.error.startswith("the process died of SIGABRT in forward\ncandidate.py:6 in forward")
    assert "compute-sanitizer memcheck: Invalid __global__ write of size 4 bytes in scale_rows" in result.error
    assert result.environment["sanitizer"] in result.error


def test_the_policy_is_for_gpus() -> None:
    policy = EvaluationPolicy(sanitize_on_fault=True)
    assert (cell._sanitize(policy, "cpu"), cell._sanitize(policy, "cuda")) == ("", "fault")
    assert cell._sanitize(EvaluationPolicy(sanitize="racecheck"), "cuda") == "racecheck"
    assert cell._sanitize(EvaluationPolicy(), "cuda") == ""
