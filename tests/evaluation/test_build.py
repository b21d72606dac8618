"""Builds: the façade gives what stock gives, and where it cannot, stock decides. Real compilers, real torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from benchmarks.build_cases import SCALE, Case, Raises, outcome, same
from benchmarks.build_extra_cases import EVERY_CASE
from benchmarks.build_more_cuda_cases import MORE_CUDA_CASES
from specgen.evaluation.build import BuildFailed, BuildLog, BuildTimeout, ensure_support, install
from specgen.evaluation.build.facade import compile_units
from specgen.evaluation.build.request import from_load, from_load_inline
from specgen.evaluation.build.support import Support
from specgen.evaluation.build.toolchain import Deadline, cuda_home

pytestmark = pytest.mark.timeout(900)

FAST = [case for case in EVERY_CASE if case.route == "facade"]
# Stock costs half a minute of CPU a source, so only these are compared here; `python -m benchmarks.build` does all.
COMPARED = ("float_pointers", "checks")


@pytest.fixture(scope="session")
def support(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The support directory; kept between runs where SPECGEN_TEST_CACHE names a directory."""
    given = os.environ.get("SPECGEN_TEST_CACHE")
    return ensure_support(Path(given) if given else tmp_path_factory.mktemp("build-cache"))


@pytest.fixture
def original() -> Iterator[None]:
    """torch's own functions are back after a test."""
    before = cpp_extension.load_inline, cpp_extension.load
    yield
    cpp_extension.load_inline, cpp_extension.load = before


def load_inline(**arguments: Any) -> ModuleType:
    """What a candidate calls: whatever is installed."""
    module: ModuleType = cpp_extension.load_inline(**arguments)  # type: ignore[no-untyped-call]
    return module


def build(case: Case, cache: Path, support: Path | None) -> tuple[ModuleType, BuildLog]:
    log = install(cache / "cache", mode="auto", support=support)
    if case.files:
        loaded: ModuleType = cpp_extension.load(**case.file_arguments(cache))
        return loaded, log
    return load_inline(**case.arguments()), log


def check(case: Case, module: ModuleType) -> None:
    for index, call in enumerate(case.calls):
        got = outcome(call, module)
        if isinstance(call.expect, Raises):
            assert isinstance(got, tuple), f"call {index} did not fail: {got}"
            assert got[0] == call.expect.kind
            assert call.expect.words in got[1]
        else:
            assert same(got, call.expect(), exactly=False), f"call {index}: {got}"


@pytest.mark.parametrize("case", FAST, ids=lambda case: case.name)
def test_the_facade_builds_it_and_it_behaves(case: Case, support: Path, tmp_path: Path, original: None) -> None:
    module, log = build(case, tmp_path, support)
    assert [(one.route, one.fallback) for one in log.builds] == [("facade", "")]
    assert module.__name__ == f"case_{case.name}"
    check(case, module)


@pytest.mark.parametrize("name", COMPARED)
def test_stock_gives_the_same_results_and_the_same_words(
    name: str, support: Path, tmp_path: Path, original: None
) -> None:
    case = next(case for case in FAST if case.name == name)
    fast, _ = build(case, tmp_path, support)
    slow, log = build(case, tmp_path, None)
    assert log.route == "stock"
    for call in case.calls:
        got, official = outcome(call, fast), outcome(call, slow)
        assert same(got, official, exactly=True), f"{got} instead of {official}"


def test_keyword_arguments_go_to_stock_without_an_attempt(support: Path, tmp_path: Path, original: None) -> None:
    case = next(case for case in EVERY_CASE if case.name == "keyword_arguments")
    module, log = build(case, tmp_path, support)
    assert (log.builds[0].route, log.builds[0].fallback) == ("stock", "keyword arguments")
    check(case, module)


def test_a_compile_error_is_stocks_with_the_candidates_own_lines(support: Path, tmp_path: Path, original: None) -> None:
    case = next(case for case in EVERY_CASE if case.name == "syntax_error")
    log = install(tmp_path, mode="auto", support=support)
    with pytest.raises(BuildFailed) as caught:
        load_inline(**case.arguments())
    assert isinstance(caught.value, RuntimeError)
    assert case.error in caught.value.message
    assert "    4 |     return y;" in caught.value.message  # the line itself, not its neighbour
    assert "FAILED" in caught.value.message
    assert log.failed
    assert log.builds[0].fallback == "it does not compile with the façade"
    assert list(tmp_path.iterdir()) == []  # nothing that could be taken for a finished build


def test_a_second_process_reuses_the_library(support: Path, tmp_path: Path, original: None) -> None:
    case = FAST[0]
    _, first = build(case, tmp_path, support)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o555)
    try:
        module, second = build(case, tmp_path, support)
    finally:
        for path in [tmp_path, *tmp_path.rglob("*")]:
            path.chmod(0o755)
    assert (second.route, second.builds[0].made_by) == ("cached", "facade")
    assert second.builds[0].library == first.builds[0].library
    check(case, module)


def test_one_name_for_two_sources_gives_two_modules(support: Path, tmp_path: Path, original: None) -> None:
    install(tmp_path, mode="auto", support=support)
    made = [load_inline(name="same", cpp_sources=f"int f() {{ return {n}; }}", functions="f") for n in (1, 2)]
    assert [module.f() for module in made] == [1, 2]
    assert [module.__name__ for module in made] == ["same", "same"]


def test_a_file_is_built_like_a_string(support: Path, tmp_path: Path, original: None) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    source = tmp_path / "kernel.cpp"
    source.write_text(
        '#include <torch/extension.h>\n#include "factor.h"\n'
        "torch::Tensor f(torch::Tensor x) { return x * FACTOR; }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'
    )
    log = install(tmp_path / "cache", mode="auto", support=support)
    module = cpp_extension.load(name="from_file", sources=[str(source)])
    assert log.route == "facade"
    assert torch.equal(module.f(torch.ones(2)), torch.full((2,), 3.0))


def test_a_build_that_takes_too_long_is_stopped(support: Path, tmp_path: Path, original: None) -> None:
    install(tmp_path, mode="auto", support=support, timeout_s=0.05)
    with pytest.raises(BuildTimeout, match=r"longer than 0\.05 s"):
        load_inline(name="slow", cpp_sources=SCALE, functions="scale")
    assert list(tmp_path.iterdir()) == []


def test_stock_leaves_torch_as_it_was(support: Path, tmp_path: Path, original: None) -> None:
    before = cpp_extension._run_ninja_build, cpp_extension._import_module_from_library
    log = install(tmp_path, mode="stock", support=support, timeout_s=0.2)
    with pytest.raises(BuildTimeout):
        load_inline(name="slow", cpp_sources=SCALE, functions="scale")
    assert (cpp_extension._run_ninja_build, cpp_extension._import_module_from_library) == before
    assert log.builds[0].made_by == "stock"


CUDA_SOURCE = """
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
template <typename T>
__global__ void doubled(const at::PackedTensorAccessor32<T, 2, at::RestrictPtrTraits> a, T* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i / a.size(1)][i % a.size(1)] * T(2);
}
torch::Tensor run(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda() && x.dtype() == torch::kFloat32, "bad input of type ", x.dtype());
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    auto out = torch::empty_like(x);
    const int n = x.numel();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", ([&] {
        doubled<scalar_t><<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.packed_accessor32<scalar_t, 2, at::RestrictPtrTraits>(), out.data_ptr<scalar_t>(), n);
    }));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""


cuda = pytest.mark.skipif(cuda_home() is None, reason="no CUDA toolkit")


@cuda
def test_a_cuda_source_compiles_with_the_facade(support: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    prototype = "torch::Tensor run(torch::Tensor x);"
    request = from_load_inline(
        {"name": "k", "cpp_sources": prototype, "cuda_sources": CUDA_SOURCE, "functions": ["run"]}
    )
    objects, _ = compile_units(request, tmp_path, Support(support), Deadline.after(120))
    assert objects == ["unit0.cu.o"]  # the prototype and the bindings joined the CUDA unit
    assert (tmp_path / "unit0.cu.o").stat().st_size > 0


@cuda
def test_device_code_and_bindings_apart_where_nvcc_has_a_function_of_that_name(
    support: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    source = "torch::Tensor norm(torch::Tensor x) { return x * x; }"
    prototype = "torch::Tensor norm(torch::Tensor x);"
    request = from_load_inline({"name": "k", "cpp_sources": prototype, "cuda_sources": source, "functions": ["norm"]})
    objects, _ = compile_units(request, tmp_path, Support(support), Deadline.after(120))
    assert objects == ["unit0.cpp.o", "unit1.cu.o"]


@cuda
def test_cuda_files_find_their_neighbours_and_cudas_headers(
    support: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    case = next(case for case in MORE_CUDA_CASES if case.name == "cuda_from_files")
    request = from_load(case.file_arguments(tmp_path))
    objects, _ = compile_units(request, tmp_path, Support(support), Deadline.after(120))
    assert sorted(objects) == ["unit0.cpp.o", "unit1.cu.o"]
