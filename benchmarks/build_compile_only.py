"""``--gpu --compile-only``: where there is no GPU, whether CUDA sources compile, and what that costs. Nothing is run.

Each is compiled for sm_90 by nvcc as the façade compiles it; the first few also as stock does, without the link (a
torch without CUDA has nothing to link to). Behaviour is not compared here.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch.utils import cpp_extension

from benchmarks.build_subjects import Subject
from benchmarks.figures import figure
from specgen.evaluation.build import stock
from specgen.evaluation.build.errors import BuildFailed, FacadeRefused
from specgen.evaluation.build.facade import compile_units
from specgen.evaluation.build.request import BuildRequest, from_load, from_load_inline
from specgen.evaluation.build.screen import refusal
from specgen.evaluation.build.support import Support
from specgen.evaluation.build.toolchain import Deadline, cuda_home, ninja_on_path, run_all

_LIMIT_S = 1200.0
_ARCHITECTURE = "9.0"


class _Asked(Exception):
    """The candidate asked for a build: this is what it asked for."""

    def __init__(self, request: BuildRequest) -> None:
        super().__init__(request.name)
        self.request = request


@dataclass(frozen=True)
class _Compiled:
    cpu_s: float
    wall_s: float
    error: str


def compile_only(chosen: Sequence[Subject], support_directory: Path, stock_pairs: int) -> bool:
    """Compile them all, print a line each and the figures; True if every source went the expected way."""
    if cuda_home() is None:
        print("no CUDA toolkit here: nothing can be compiled")
        return False
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", _ARCHITECTURE)
    support = Support(support_directory)
    print(f"compiled for {os.environ['TORCH_CUDA_ARCH_LIST']}; NOTHING IS RUN: no behaviour is compared", flush=True)
    seconds: list[float] = []
    ratios: list[float] = []
    unexpected: list[str] = []
    compiled = 0
    for subject in chosen:
        request = _request(subject)
        ours = _by_facade(request, support)
        expected = subject.route == "facade" or "missing" in subject.name  # that one fails when it is loaded
        compiled += not ours.error
        if "cublas_v2.h: No such file" in ours.error:
            line = f"{subject.name:28} not tried: this CUDA toolkit has no cuBLAS headers"
            print(line, flush=True)
            continue
        if bool(ours.error) == expected:
            unexpected.append(f"{subject.name}: {ours.error or 'compiles'}")
        end = "refused" if ours.error else "compiles"
        line = f"{subject.name:28} {end} {ours.cpu_s:6.2f} s CPU, {ours.wall_s:6.2f} s wall"
        if not ours.error:
            seconds.append(ours.cpu_s)
            if len(ratios) < stock_pairs and subject.name.startswith("cuda_") and "ATen/cuda" not in request.source:
                theirs = _by_stock(request)
                line += f"; stock {theirs.cpu_s:6.2f} s CPU, {theirs.wall_s:6.2f} s wall {theirs.error}"
                if not theirs.error:
                    ratios.append(theirs.cpu_s / ours.cpu_s)
        print(line, flush=True)
    for line in unexpected:
        print(line)
    figure("build_gpu_compile_only_sources", len(chosen), "sources, none run", ">= 30", len(chosen) >= 30)
    figure("build_gpu_compile_only_compiled", compiled, "sources", "", None)
    figure("build_gpu_compile_only_unexpected", len(unexpected), "sources", "= 0", not unexpected)
    if seconds:
        figure("build_gpu_compile_only_facade_cpu_median", statistics.median(seconds), "s", "", None)
    if ratios:
        figure(
            "build_gpu_compile_only_cpu_ratio_median", statistics.median(ratios), f"x, {len(ratios)} pairs", "", None
        )
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
    figure("build_gpu_compile_only_largest_compiler", largest, "GiB", "", None)
    return not unexpected


def _request(subject: Subject) -> BuildRequest:
    def asks(read: Any) -> Any:
        def asked(**arguments: Any) -> None:
            raise _Asked(read(arguments))

        return asked

    directory = Path(tempfile.mkdtemp(prefix="specgen-compile-"))
    inline, files = asks(from_load_inline), asks(from_load)
    with patch.object(cpp_extension, "load_inline", inline), patch.object(cpp_extension, "load", files):
        try:
            subject.build(directory)
        except _Asked as asked:
            return asked.request
    raise RuntimeError(f"{subject.name} asks for no build")


def _by_facade(request: BuildRequest, support: Support) -> _Compiled:
    def compile_it(directory: Path) -> None:
        if why := refusal(request.source):
            raise FacadeRefused(why)
        compile_units(request, directory, support, Deadline.after(_LIMIT_S))

    return _measured(compile_it)


def _by_stock(request: BuildRequest) -> _Compiled:
    """torch writes the build file; its compile commands are run, its link is not."""

    def compile_it(directory: Path) -> None:
        def run_build(build_directory: str, verbose: bool, error_prefix: str) -> None:
            del verbose
            commands = stock._commands(Path(build_directory))
            for done in run_all(commands[:-1], Path(build_directory), Deadline.after(_LIMIT_S)):
                if done.code != 0:
                    raise BuildFailed(f"{error_prefix}: {done.output}")

        original: Any = getattr(cpp_extension, request.kind)
        arguments: Mapping[str, Any] = stock._arguments(request, directory)
        with (
            ninja_on_path(),
            patch.object(cpp_extension, "CUDA_HOME", str(cuda_home())),
            patch.object(cpp_extension, "_run_ninja_build", run_build),
            patch.object(cpp_extension, "_import_module_from_library", lambda *_: None),
        ):
            original(**arguments)

    return _measured(compile_it)


def _measured(compile_it: Any) -> _Compiled:
    directory = Path(tempfile.mkdtemp(prefix="specgen-compile-"))
    before, started, error = _compilers_s(), time.monotonic(), ""
    try:
        compile_it(directory)
    except FacadeRefused as refused:
        error = f"{refused.reason} {_first_error(refused.output)}".strip()
    except BuildFailed as failed:
        error = _first_error(failed.message)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return _Compiled(_compilers_s() - before, time.monotonic() - started, error)


def _first_error(output: str) -> str:
    return next((line for line in output.splitlines() if "error" in line), "")


def _compilers_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
