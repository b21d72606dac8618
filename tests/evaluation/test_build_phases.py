"""nvcc's steps side by side: the plan that is followed, those that are left to nvcc, the object that is made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from specgen.evaluation.build import phases
from specgen.evaluation.build.phases import compile_side_by_side
from specgen.evaluation.build.toolchain import Deadline, cuda_home

PLAN = """\
#$ _SPACE_=
#$ PATH={tools}:/usr/bin:/bin
#$ CICC={tools}
#$ gcc -E -x c++ "-I{tools}" "u.cu" -o "$TMPDIR/4.ii"
#$ cudafe++ --gen_module_id_file --module_id_file_name "$TMPDIR/u.module_id" "$TMPDIR/4.ii"
#$ gcc -E -x c++ -D__CUDA_ARCH__=900 "u.cu" -o "$TMPDIR/1.ii"
#$ "$CICC/cicc" --module_id_file_name "$TMPDIR/u.module_id" "$TMPDIR/1.ii"
#$ ptxas -m64 "$TMPDIR/u.ptx"
#$ fatbinary --cicc-cmdline="-ftz=0 -fmad=1 " -64
#$ rm $TMPDIR/u.fatbin
#$ gcc -c -x c++ "$TMPDIR/u.cpp" -o "u.cu.o"
"""
MEET = "touch {mine}; for k in $(seq 100); do [ -e {other} ] && break; sleep 0.05; done; [ -e {other} ]"
NAME = 'while [ "$1" != --module_id_file_name ]; do shift; done; cat "$2"; echo'


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvcc whose steps are shell scripts; its plan is the file ``plan`` beside it."""
    monkeypatch.setattr(phases, "builds_at_once", lambda: 2)
    tools = tmp_path / "tools"
    tools.mkdir()
    scripts = {
        "nvcc": f'while IFS= read -r line; do echo "$line"; done <{tools}/plan | sed "s#[$]TMPDIR#$TMPDIR#g" >&2',
        "gcc": 'case "$*" in *-c*) echo compiled >u.cu.o;; esac; echo gcc $1',
        "cudafe++": f"{NAME}; {MEET.format(mine='front', other='device')}",
        "cicc": f"{NAME}; {MEET.format(mine='device', other='front')}",
        "ptxas": "echo ptxas",
        "fatbinary": "echo fatbinary",
    }
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    (tools / "plan").write_text(PLAN.format(tools=tools))
    (tmp_path / "u.cu").write_text("__global__ void k() {}\n")
    return tools / "nvcc"


def test_the_front_end_and_the_device_compiler_run_at_once_under_one_name(nvcc: Path) -> None:
    folder = nvcc.parent.parent
    done = compile_side_by_side([str(nvcc), "-c", "u.cu", "-o", "u.cu.o"], folder / "u.cu", Deadline.after(60))
    assert done is not None
    assert done.code == 0, done.output  # the two wait for each other: one after the other, they fail
    lines = done.output.split("\n")
    name = lines[1]
    assert re.fullmatch(r"_[0-9a-f]{8}_4_u_cu_[0-9a-f]{8}", name)
    assert lines == ["gcc -E", name, "gcc -E", name, "ptxas", "fatbinary", "gcc -c", ""]  # nvcc's own order
    assert (folder / "u.cu.o").read_text() == "compiled\n"
    assert not list(folder.glob("nvcc-*"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("#$ ptxas", "#$ nvlink"),  # a step that is not known
        ("#$ fatbinary", "fatbinary"),  # a line that is none of the plan
        (" --gen_module_id_file", ""),
        ("#$ cudafe++", "#$ cd / && cudafe++"),
        ('--module_id_file_name "$TMPDIR/u.module_id" "$TMPDIR/1.ii"', '"$TMPDIR/1.ii"'),
        ("$TMPDIR/u.module_id", "/elsewhere/u.module_id"),
        ("$CICC/cicc", "$ELSEWHERE/cicc"),
    ],
)
def test_another_plan_is_nvccs_own(nvcc: Path, before: str, after: str) -> None:
    plan = nvcc.parent / "plan"
    assert before in plan.read_text()
    plan.write_text(plan.read_text().replace(before, after))
    source = nvcc.parent.parent / "u.cu"
    assert compile_side_by_side([str(nvcc), "-c", "u.cu"], source, Deadline.after(60)) is None
    assert not (source.parent / "u.cu.o").exists()


@pytest.mark.parametrize("flags", [["-DX=a b"], ["-DX=$(id)"], ["--threads", "4"], ["-Xcompiler", "-DX='y'"]])
def test_unusual_arguments_are_left_to_nvcc(nvcc: Path, flags: list[str]) -> None:
    command = [str(nvcc), *flags, "-c", "u.cu"]
    assert compile_side_by_side(command, nvcc.parent.parent / "u.cu", Deadline.after(60)) is None


def test_one_core_is_left_to_nvcc(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "builds_at_once", lambda: 1)
    assert compile_side_by_side([str(nvcc), "-c", "u.cu"], nvcc.parent.parent / "u.cu", Deadline.after(60)) is None


@pytest.mark.parametrize(
    ("words", "believed"),
    [
        ('cuda_source.cu(3): error: identifier "y" is undefined', True),
        ("cuda_source.cu:3:1: fatal error: z.h: No such file", True),
        ("cudafe++: error: unknown option", False),
        ("Killed", False),
    ],
)
@pytest.mark.parametrize("step", ["cudafe++", "ptxas"])
def test_an_error_at_a_line_is_the_sources(nvcc: Path, step: str, words: str, *, believed: bool) -> None:
    (nvcc.parent / step).write_text(f"#!/bin/sh\ntouch front device\necho '{words}' >&2\nexit 2\n")
    done = compile_side_by_side([str(nvcc), "-c", "u.cu"], nvcc.parent.parent / "u.cu", Deadline.after(60))
    assert (done is not None) is believed
    if done is not None:
        assert done.code == 2
        assert words in done.output
        assert ("ptxas" in done.output) is False


SOURCE = """\
namespace { __device__ int hidden = 3; __global__ void own(float* p) { p[0] = hidden; } }
static __global__ void fixed(float* p) { p[0] = 2; }
template <class F> __global__ void any(F f, float* p) { p[0] = f(p[1]); }
void go(float* p) {
  own<<<1, 1>>>(p);
  fixed<<<1, 1>>>(p);
  any<<<1, 1>>>([=] __device__(float x) { return 2 * x; }, p);
  int three = 3;
  cudaMemcpyToSymbol(hidden, &three, sizeof three);
}
"""


@pytest.mark.skipif(cuda_home() is None, reason="no CUDA toolkit")
def test_the_object_is_nvccs_but_for_the_units_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "builds_at_once", lambda: 2)
    (tmp_path / "u.cu").write_text(SOURCE)
    flags = ["-std=c++17", "--extended-lambda", "-gencode=arch=compute_80,code=sm_80"]
    flags += ["-gencode=arch=compute_90,code=[compute_90,sm_90]"]
    nvcc = [str((cuda_home() or Path()) / "bin" / "nvcc"), *flags, "-c", "u.cu", "-o"]
    assert compile_side_by_side([*nvcc, "ours.o"], tmp_path / "u.cu", Deadline.after(120)) is None  # brackets
    nvcc.remove(flags.pop())
    done = compile_side_by_side([*nvcc, "ours.o"], tmp_path / "u.cu", Deadline.after(120))
    assert done is not None
    assert done.code == 0, done.output
    subprocess.run([*nvcc, "theirs.o"], cwd=tmp_path, check=True)
    assert _names(tmp_path / "ours.o") == _names(tmp_path / "theirs.o")


def _names(library: Path) -> list[str]:
    """Symbols and the kernels' names in the device's code, without the unit's name and the lengths that count it."""
    symbols = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout
    device = "\n".join(sorted(set(re.findall(r"_Z\w+", library.read_bytes().decode("latin-1")))))
    text = re.sub(r"^[0-9a-f]+", "", symbols, flags=re.MULTILINE) + device
    return sorted(re.sub(r"_[0-9a-f]{8}_\d+_u_cu_(?:[0-9a-f]{8}|_Z2goPf)|\d+", "", line) for line in text.splitlines())
