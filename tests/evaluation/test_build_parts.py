"""The parts of a build: the screen, the request and its key, the operators' index, the compilers' runner, the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from specgen.evaluation.build import BuildTimeout, CompilerKilled, facade, toolchain
from specgen.evaluation.build.cache import BuildCache, Entry
from specgen.evaluation.build.facade import translate
from specgen.evaluation.build.operators import read_overloads
from specgen.evaluation.build.request import BuildRequest, from_load_inline
from specgen.evaluation.build.screen import lean, prelude, refusal
from specgen.evaluation.build.toolchain import Completed, Deadline, builds_at_once, ninja_on_path, run, run_all

TORCH_INCLUDE = Path(torch.__file__).parent / "include"


def request(**arguments: Any) -> BuildRequest:
    return from_load_inline({"name": "x", "cpp_sources": "int f() { return 1; }", "functions": ["f"], **arguments})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('m.def("f", &f, py::arg("x"), py::arg("k") = 2);', "keyword arguments"),
        ('m.def("f", &f, "x"_a);', "keyword arguments"),
        ('py::class_<Model>(m, "Model");', "Python objects in C++"),
        ("TORCH_LIBRARY(my, m) {}", "a torch library"),
        ("torch::nn::Linear layer(1, 2);", "torch's C++ front end"),
        ("  #if defined(TORCH_VERSION_MAJOR)", "a condition on torch's macros"),
        ('// py::arg("x")\nm.def("f", &f);', ""),
        ("/* torch::nn:: */ torch::Tensor f(torch::Tensor x);", ""),
        ("#if __CUDA_ARCH__ >= 800", ""),
        ("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { py::module_& n = m; }", ""),
    ],
)
def test_the_screen_refuses_what_the_facade_could_get_wrong(source: str, why: str) -> None:
    assert refusal(source) == why


def test_a_source_gets_the_headers_that_torch_would_have_brought() -> None:
    lines = prelude("std::unordered_map<int, at::Half> m; omp_get_max_threads(); __m256 v;", cuda=False)
    assert "#include <unordered_map>" in lines
    assert "#include <omp.h>" in lines
    assert "#include <immintrin.h>" in lines
    assert "#define SPECGEN_WITH_HALF 1" in lines
    assert "<random>" not in prelude("std::mt19937 g;", cuda=False)  # torch does not bring that one


@pytest.mark.parametrize(
    ("source", "light"),
    [
        ("std::vector<int64_t> s; std::min(a, b); std :: optional<int> o; std::is_same_v<T, float>", True),
        ("torch::Tensor f(torch::Tensor x) { return x; }", True),
        ("std::max({a, b, c});", False),  # of a list: <algorithm>
        ("std::sort(v.begin(), v.end()); std::vector<int> v;", False),
        ("using namespace std; vector<int> v;", False),
        ("std::unique_ptr<float[]> p;", False),
        ("// std::accumulate\nstd::string s;", True),
    ],
)
def test_a_source_of_few_names_gets_few_headers(source: str, light: bool) -> None:
    assert lean(source) is light


def test_few_headers_are_for_cuda_units_alone() -> None:
    # the C++ source holds a definition: two units
    made = request(cpp_sources="int f() { return 1; }", cuda_sources="__global__ void k() {}", functions=["f"])
    texts = {one.language: one.text for one in translate(made, few=True)}
    assert "SPECGEN_LEAN" in texts["cuda"]
    assert "SPECGEN_LEAN" not in texts["cpp"]  # g++ takes the whole prelude precompiled
    assert not any("SPECGEN_LEAN" in one.text for one in translate(made))


def test_what_few_headers_do_not_compile_is_tried_with_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def compiler(_made: object, units: list[Any], *_rest: object) -> list[Completed]:
        tried.append("SPECGEN_LEAN" in units[0].text)
        return [Completed("nvcc", int(tried[-1]), "error" if tried[-1] else "")]

    monkeypatch.setattr(facade, "_run", compiler)
    made = request(cpp_sources="int f();", cuda_sources="__global__ void k() {} int f() { return 1; }", functions=["f"])
    support = SimpleNamespace(overloads=SimpleNamespace(includes=lambda _source: {}))
    assert facade.compile_units(made, tmp_path, support, Deadline.after(60)) == (["unit0.cu.o"], "")  # type: ignore[arg-type]
    assert tried == [True, False]


def test_the_language_standard_is_the_installed_torchs() -> None:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    assert toolchain.standard() == ("-std=c++20" if (major, minor) >= (2, 12) else "-std=c++17")


def test_the_key_holds_everything_the_library_depends_on() -> None:
    here = {"torch": "1"}
    keys = [
        request().key(here),
        request(cpp_sources="int f() { return 2; }").key(here),
        request(extra_cflags=["-O3"]).key(here),
        request(extra_cuda_cflags=["--use_fast_math"]).key(here),
        request(functions={"f": "words"}).key(here),
        request(name="y").key(here),
        request(with_cuda=True).key(here),
        request().key({"torch": "2"}),
    ]
    assert len(set(keys)) == len(keys)
    assert request().key(here) == keys[0]
    assert len(keys[0]) == 64


def test_flags_may_share_a_string() -> None:
    assert request(extra_cflags=["-O3 -march=native", "-DX='a b'"]).cflags == ("-O3", "-march=native", "-DX=a b")


def test_every_overload_of_an_operator_keeps_its_signature() -> None:
    index = read_overloads(TORCH_INCLUDE)
    assert len(index.functions) > 2000
    declared = index.method_declarations["sum"]
    assert any("at::OptionalIntArrayRef dim, bool keepdim=false" in text for text in declared)
    assert any("std::tuple<at::Tensor,at::Tensor> max(" in text for text in index.functions["max"])
    written = index.includes("auto y = x.softmax(-1);")
    assert "softmax" in written["specgen_methods.inc"]
    assert "matmul" not in written["specgen_methods.inc"]


def test_the_deadline_kills_the_compiler_and_what_it_started(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    started = time.monotonic()
    with pytest.raises(BuildTimeout):
        run(["sh", "-c", script], tmp_path, Deadline.after(0.5))
    assert time.monotonic() - started < 10
    grandchild = int((tmp_path / "pid").read_text())
    alive = [process.pid for process in psutil.process_iter() if process.status() != psutil.STATUS_ZOMBIE]  # type: ignore[no-untyped-call]
    assert grandchild not in alive


def test_a_compiler_stays_in_the_callers_process_group(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", "import os; print(os.getpgid(0))"], tmp_path, Deadline.after(None))
    assert int(done.output) == os.getpgid(0)


def test_a_compiler_killed_from_outside_is_tried_once_more_alone(tmp_path: Path) -> None:
    once = ["sh", "-c", "test -e tried && exit 0; touch tried; kill -9 $$"]
    assert [done.code for done in run_all([once, ["true"]], tmp_path, Deadline.after(30))] == [0, 0]
    with pytest.raises(CompilerKilled):
        run_all([["sh", "-c", "kill -9 $$"]], tmp_path, Deadline.after(30))


def test_what_is_beside_a_failed_compiler_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "builds_at_once", lambda: 2)
    fails, lasts = ["sh", "-c", "echo no; exit 3"], ["sh", "-c", "echo $$ > pid; exec sleep 100"]
    start = time.monotonic()
    done = run_all([lasts, fails, lasts], tmp_path, Deadline.after(60))
    assert [(one.code, one.output) for one in done] == [(3, "no\n")]
    assert time.monotonic() - start < 30
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_as_many_compilers_as_cores_memory_and_the_users_limit_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(toolchain, "free_bytes", lambda: 128 * toolchain.JOB_BYTES)
    assert builds_at_once() == 16
    monkeypatch.setenv("MAX_JOBS", "4")
    assert builds_at_once() == 4
    monkeypatch.setattr(toolchain, "free_bytes", lambda: 3 * toolchain.JOB_BYTES + 1)
    assert builds_at_once() == 3
    monkeypatch.setattr(toolchain, "free_bytes", lambda: 0)
    assert builds_at_once() == 1


def test_a_containers_memory_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_CGROUP", tmp_path)
    assert toolchain.free_bytes() > 0  # none set
    for name, text in (("memory.max", "5000"), ("memory.current", "4000"), ("memory.stat", "inactive_file 500\n")):
        (tmp_path / name).write_text(text)
    assert toolchain.free_bytes() == 1500
    (tmp_path / "memory.max").write_text("max\n")
    assert toolchain.free_bytes() > 1500


def together(commands: list[list[str]], where: Path) -> int:
    """How many of them ran at the same time."""
    done = run_all(commands, where, Deadline.after(60))
    assert [one.code for one in done] == [0] * len(commands)
    marks = sorted((float(at), way) for one in done for way, at in (line.split() for line in one.output.splitlines()))
    running = most = 0
    for _, way in marks:
        running += 1 if way == "in" else -1
        most = max(most, running)
    return most


def test_no_more_compilers_run_at_once_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import time; print('in', time.monotonic()); time.sleep(0.3); print('out', time.monotonic())"
    command = [sys.executable, "-c", text]
    monkeypatch.setattr(toolchain, "builds_at_once", lambda: 2)
    assert together([command] * 5, tmp_path) <= 2
    nvcc = tmp_path / "nvcc"
    nvcc.symlink_to(sys.executable)
    monkeypatch.setattr(toolchain, "builds_at_once", lambda: 4)
    assert together([[str(nvcc), "-S", "-c", text, "--threads=4"]] * 3, tmp_path) == 1  # its threads are compilers


@pytest.mark.parametrize(
    ("command", "threads"),
    [
        ("nvcc --threads 8 -c a.cu", 8),
        ("/cuda/bin/nvcc -c a.cu -t=4", 4),
        ("nvcc -t2 -c a.cu", 2),
        ("nvcc -c /tmp/run-t9/a.cu -std=c++17", 1),
        ("g++ --threads 8 -c a.cpp", 1),
    ],
)
def test_nvccs_own_threads_are_seen(command: str, threads: int) -> None:
    assert toolchain.threads_of(command.split()) == threads


def test_ninja_is_found_beside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with ninja_on_path():
        assert subprocess.run(["ninja", "--version"], capture_output=True, check=True).stdout
    assert os.environ["PATH"] == "/nonexistent"


def test_only_a_finished_build_is_found(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    entry = Entry("facade", "x.so", "", "")
    scratch = cache.scratch()
    assert cache.find("key") is None
    (scratch / "x.so").write_bytes(b"library")
    library = cache.keep("key", scratch, entry)
    assert cache.find("key") == (entry, library)
    other = cache.scratch()
    (other / "x.so").write_bytes(b"another")
    assert cache.keep("key", other, entry) == library  # the first finished build stays
    assert library.read_bytes() == b"library"


def test_without_a_compiler_one_line_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specgen.evaluation.build", "--cache", str(tmp_path)]
    done = subprocess.run(command, env={"PATH": "/nonexistent"}, cwd=Path.cwd(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no C++ compiler")
    assert len(done.stderr.splitlines()) == 1
