"""ncu's table as text, the kernels of a source, and the profiler's sandbox around a stand-in for ncu.

There is no GPU here: the stand-in runs its target as ncu does and prints a table in ncu's documented format.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgen.errors import EnvironmentLacking
from specgen.evaluation import counters, ncu, sandbox
from specgen.evaluation.build import ensure_support
from specgen.evaluation.supervisor import CellSpec
from specgen.types import Status, source_id
from tests.evaluation import candidates
from tests.evaluation.conftest import Evaluate

FIXED = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
         "Grid Size", "Device", "CC"]  # fmt: skip
UNITS = {
    "gpu__time_duration.sum": "ns",
    "dram__bytes_read.sum": "byte",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    "launch__registers_per_thread": "register/thread",
    "dram__bytes.sum.per_second": "byte/second",
}
BEFORE = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "diag" - 0: 0%....50%....100% - 9 passes
"""


def table(*launches: dict[str, str], units: dict[str, str] = UNITS) -> str:
    """A raw page: one row per launch, whose keys are ncu's names (and ``kernel``)."""
    metrics = sorted({name for launch in launches for name in launch} - {"kernel"})
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(FIXED + metrics)
    writer.writerow([""] * len(FIXED) + [units.get(name, "") for name in metrics])
    for number, launch in enumerate(launches):
        fixed = [str(number), "4711", "python3.12", "127.0.0.1", launch["kernel"], "1", "7", "(256, 1, 1)",
                 "(4,096, 1, 1)", "0", "9.0"]  # fmt: skip
        writer.writerow(fixed + [launch.get(name, "") for name in metrics])
    return f"{BEFORE}{text.getvalue()}==PROF== Disconnected from process 4711\n"


def launch(kernel: str, ns: str, **more: str) -> dict[str, str]:
    names = {"read": "dram__bytes_read.sum", "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
             "registers": "launch__registers_per_thread", "rate": "dram__bytes.sum.per_second"}  # fmt: skip
    return {"kernel": kernel, "gpu__time_duration.sum": ns} | {names[key]: value for key, value in more.items()}


class TestTable:
    def test_values_are_read_whatever_their_form(self) -> None:
        (one,) = ncu.parse(table(launch("diag", "1,234,567", read="67,108,864.50", dram="88.5", registers="n/a")))
        assert one.kernel == "diag"
        assert one.time_ns == 1_234_567
        assert one.values["dram__bytes_read.sum"] == 67_108_864.5
        assert one.values["launch__registers_per_thread"] is None

    @pytest.mark.parametrize(("unit", "ns"), [("ns", 1500), ("nsecond", 1500), ("us", 1.5e6), ("second", 1.5e12)])
    def test_units_are_those_of_the_units_row(self, unit: str, ns: float) -> None:
        (one,) = ncu.parse(table(launch("k", "1,500"), units={"gpu__time_duration.sum": unit}))
        assert one.time_ns == ns

    def test_rates_in_larger_units(self) -> None:
        text = table(launch("k", "10", rate="4,512.5"), units=UNITS | {"dram__bytes.sum.per_second": "Gbyte/second"})
        assert ncu.counters(ncu.parse(text))["dram_gb_s"] == 4512.5

    @pytest.mark.parametrize("word", ["", "n/a", "nan", "-nan", "inf", "(!) n/a", "N/A"])
    def test_what_is_no_number_is_none(self, word: str) -> None:
        assert ncu.counters(ncu.parse(table(launch("k", "10", dram=word))))["dram_throughput_pct"] is None

    def test_all_names_are_there_even_when_ncu_gave_one_metric(self) -> None:
        found = ncu.counters(ncu.parse(table(launch("k", "2000"))))
        assert {metric.name for metric in ncu.METRICS} <= set(found)
        assert found["kernel_time_us"] == 2
        assert found["warp_instructions"] is None

    def test_shares_are_weighted_by_time_and_bytes_are_summed(self) -> None:
        rows = [
            launch("big", "9000", read="100", dram="90", registers="64"),
            launch("small", "1000", read="50", dram="10", registers="255"),
        ]
        found = ncu.counters(ncu.parse(table(*rows)))
        assert found["dram_throughput_pct"] == pytest.approx(82)
        assert found["dram_read_bytes"] == 150
        assert found["registers_per_thread"] == 64  # of the longest launch
        assert found["kernels"] == 2
        assert found["big: share_of_time_pct"] == pytest.approx(90)

    def test_the_last_row_is_not_the_answer(self) -> None:
        rows = [launch("k", "9000", dram="90"), launch("k", "1000", dram="10")]
        (kernel,) = ncu.by_kernel(ncu.parse(table(*rows)))
        assert kernel.launches == 2
        assert kernel.values["dram_throughput_pct"] == pytest.approx(82)

    def test_an_unknown_weight_is_a_plain_mean(self) -> None:
        rows = [launch("k", "n/a", dram="90"), launch("k", "n/a", dram="10")]
        assert ncu.counters(ncu.parse(table(*rows)))["dram_throughput_pct"] == 50

    def test_of_two_names_the_one_that_counted(self) -> None:
        of = "avg.pct_of_peak_sustained_active"
        row = launch("k", "1") | {
            f"sm__inst_executed_pipe_fp32.{of}": "n/a",
            f"sm__inst_executed_pipe_fma.{of}": "12.5",
        }
        assert ncu.counters(ncu.parse(table(row)))["fp32_pipe_pct"] == 12.5

    @pytest.mark.parametrize(
        ("shown", "name"),
        [
            ("void scale<float, (int)4>(float *, int)", "scale"),
            ("ns::diag", "diag"),
            ("a b\n| c", "c"),
            ("###", "kernel"),
        ],
    )
    def test_a_kernels_name_is_one_word(self, shown: str, name: str) -> None:
        (one,) = ncu.parse(table(launch(shown.replace("\n", " "), "1")))
        assert one.kernel == name

    def test_torn_rows_and_noise_are_skipped(self) -> None:
        text = table(launch("k", "10")) + '"7","torn\n"1","2"\nprinted by the candidate\n'
        assert len(ncu.parse(text)) == 1

    @given(st.text())
    def test_any_text_is_read(self, text: str) -> None:
        for one in ncu.parse(f'"ID","Kernel Name","gpu__time_duration.sum"\n{text}'):
            assert one.time_ns < float("inf")


class TestFailures:
    def test_no_permission(self) -> None:
        text = (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
        )
        assert "NVreg_RestrictProfilingToAdminUsers=0" in ncu.failure(text)

    def test_another_error_is_quoted(self) -> None:
        assert ncu.failure("x\n==ERROR== The application returned an error code (11).\n") == (
            "ncu: The application returned an error code (11)."
        )
        assert ncu.failure("==PROF== Connected\n==WARNING== No kernels were profiled.") == ""

    def test_metrics_that_a_chip_lacks(self) -> None:
        of = "sm__inst_executed_pipe_fp32"
        full = f"{of}.avg.pct_of_peak_sustained_active"
        for text in (f"Failed to find metric {full}", rf"Failed to find metric regex:^{of}(\.(sum|avg))?$",
                     rf"Failed to find metric regex:^{of}\.(sum|avg|min|max)$"):  # fmt: skip
            assert ncu.missing_metrics(f"==ERROR== {text}\n") == [full]
        assert full not in ncu.metric_names([full])


CUDA = r'''
import torch, triton
import triton.language as tl
from torch.utils.cpp_extension import load_inline
# __global__ void in_a_python_comment(float* x) {}
SOURCE = r"""
// __global__ void commented_out(float* x) { }
/* __global__ void commented_block(
   float* x) { } */
const char* url = "http://x"; __global__ void after_a_url(float* x) {}
extern "C" __global__ void plain(const float* __restrict__ a) { }
static __global__ __launch_bounds__(256) void bounds_first(float* x) { }
__global__ void __launch_bounds__(256, MIN(2, 4)) bounds_last (float* x, int (*f)(int)) { }
template <typename T, int N = (4 > 2)>
__global__ void
templated(T* x) { }
template <> __global__ void special<float>(float* x) { }
void __global__ turned(int n) { }
__global__ MY_BOUNDS(128) void behind_a_macro(int n);
namespace n { __global__ void __cluster_dims__(2, 1, 1) inside(int n) { } }
__device__ float helper(float x) { return x; }
"""
PLAIN = "__global__ void one_line(float* x) {}\n"
@triton.autotune(configs=[], key=["n"])
@triton.jit
def triton_kernel(x, n: tl.constexpr): pass
@torch.jit.script
def scripted(x): return x
@triton.jit(noinline=True)
def triton_called(x): pass
'''


class TestKernelNames:
    def test_every_way_to_declare_one(self) -> None:
        assert sorted(ncu.kernel_names(CUDA)) == sorted(
            ["after_a_url", "plain", "bounds_first", "bounds_last", "templated", "special", "turned", "behind_a_macro",
             "inside", "one_line", "triton_kernel", "triton_called"]
        )  # fmt: skip

    def test_a_file_without_any(self) -> None:
        assert ncu.kernel_names("import torch\nx = 1 // 2\n") == []
        assert ncu.kernel_names("def broken(") == []

    @given(st.text(alphabet="_global (){}<>;/*\"'\\\nvoidx,"))
    def test_any_text_is_searched(self, text: str) -> None:
        assert all(name.isidentifier() for name in ncu.kernel_names(f"s = {'__global__ void ' + text!r}"))

    def test_they_filter_whole_names(self) -> None:
        words = ncu.command("ncu", ["a", "b"], ["m1", "m2"], ["python"])
        assert words[words.index("--kernel-name") + 1] == "regex:^(a|b)$"
        assert words[words.index("--metrics") + 1] == "m1,m2"
        assert "--kernel-name" not in ncu.command("ncu", [], ["m1"], ["python"])


CANDIDATE = """
import torch
KERNEL = "__global__ void diag(float* x) {}"
class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        print('"ID","forged"')
        return a[:, None] * b + float(a.stride(0) == b.stride(1)) * 0
"""
STAND_IN = """#!/bin/sh
for word in "$@"; do [ "$word" = --kernel-name ] && filtered=yes; done
while [ "$1" != --metrics ]; do shift; done
metrics=$2; shift 2
"$@"; code=$?
{then}
"""
Collect = Callable[..., counters.Counted]


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Runs the stand-in, whose last lines are ``then``, in the real sandbox."""
    try:
        sandbox.probe()
    except EnvironmentLacking as exc:
        if os.environ.get("CI"):
            pytest.fail(str(exc))
        pytest.skip(str(exc))

    def call(
        then: str,
        source: str = CANDIDATE,
        limit_s: float = 60.0,
        walls: str = "bubblewrap",
        build: bytes = b"",
        support: str = "",
    ) -> counters.Counted:
        program = tmp_path / "ncu"
        program.write_text(STAND_IN.replace("{then}", then))
        program.chmod(0o755)
        tmp_path.chmod(0o755)
        spec = CellSpec("test", "cpu", 0, walls, "auto", "", 4 << 30)
        subject = counters.Subject(source, build, [], [torch.rand(4), torch.rand(4, 4)], 42, support=support)
        return counters.collect(subject, spec, limit_s, str(program))

    return call


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def printing(text: str) -> str:
    return f"cat <<'TABLE'\n{text}TABLE\n"


class TestCollect:
    @pytest.mark.parametrize("walls", ["bubblewrap", "none"])
    def test_the_candidate_runs_and_its_table_is_read(self, collect: Collect, walls: str) -> None:
        found = collect("[ $code = 0 ] || exit 9\n" + printing(table(launch("diag", "2,000", dram="90"))), walls=walls)
        assert (found.unavailable, found.note) == ("", "")
        assert found.counters["dram_throughput_pct"] == 90
        assert [kernel.name for kernel in found.kernels] == ["diag"]

    def test_nothing_is_compiled_under_ncu(self, collect: Collect, judge: Evaluate, cache_root: Path) -> None:
        source = candidates.t4()
        assert judge(source).status is Status.VALID
        build = (cache_root / "candidates" / source_id(source) / "build.tar").read_bytes()
        found = collect(
            "ls -R /cache >&2\n" + printing(table(launch("diag", "2,000"))),
            source,
            build=build,
            support=str(ensure_support(cache_root)),
        )
        assert found.unavailable == ""
        assert "diag_ext.so" in found.output
        assert ".o\n" not in found.output  # objects are not packed: one would have been made here

    def test_no_kernel_of_the_file_ran(self, collect: Collect) -> None:
        text = table(launch("at::native::vectorized", "2,000"))
        found = collect(
            f'if [ "$filtered" ]; then echo "==WARNING== No kernels were profiled."; else\n{printing(text)}fi'
        )
        assert found.unavailable == ""
        assert "(diag)" in found.note
        assert "vectorized" in found.note

    def test_metrics_that_the_chip_lacks_are_left_out(self, collect: Collect) -> None:
        lacking = "smsp__warp_issue_stalled_memory_dependency_per_warp_active"
        found = collect(
            f'case "$metrics" in *{lacking}*) '
            f'echo "==ERROR== Failed to find metric regex:^{lacking}(.pct)?"; exit 1;; esac\n'
            + printing(table(launch("diag", "2,000")))
        )
        assert found.counters["kernel_time_us"] == 2

    def test_a_candidate_that_fails_under_the_profiler(self, collect: Collect) -> None:
        found = collect("exit $code", CANDIDATE.replace("print(", "raise ValueError("))
        assert found.counters == {}
        assert "the candidate failed under ncu" in found.unavailable
        assert "forged" in found.unavailable

    def test_permission(self, collect: Collect) -> None:
        assert "ERR_NVGPUCTRPERM" in collect("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1").unavailable

    def test_a_pass_that_does_not_end(self, collect: Collect) -> None:
        start = time.monotonic()
        found = collect("sleep 61.73", limit_s=5.0)
        assert found.unavailable == "ncu did not end within its time"
        assert time.monotonic() - start < 40
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"61.73" in contents(path)]

    def test_an_ncu_that_dies(self, collect: Collect) -> None:
        assert "ncu printed no table" in collect("kill -SEGV $$").unavailable

    def test_no_ncu(self) -> None:
        spec = CellSpec("test", "cpu", 0, "bubblewrap", "auto", "", 4 << 30)
        subject = counters.Subject(CANDIDATE, b"", [], [], seed=42)
        assert counters.collect(subject, spec, program="").unavailable == counters.NO_NCU

    def test_inputs_that_cannot_cross(self, collect: Collect) -> None:
        spec = CellSpec("test", "cpu", 0, "bubblewrap", "auto", "", 4 << 30)
        subject = counters.Subject(CANDIDATE, b"", [object()], [], seed=42)
        assert "could not be started" in counters.collect(subject, spec, program="/bin/true").unavailable


DATA = Path(__file__).parent / "data"
RECORDED = {  # on an H200: kernel, and what is known of it from elsewhere
    "diag": ({"diag_kernel"}, {"dram_read_bytes": (60e6, 75e6), "kernel_time_us": (25, 45)}),
    "two": ({"copy_kernel", "scale_rows"}, {"kernels": (2, 2), "launches": (2, 2)}),
    "triton": ({"diag_triton"}, {"dram_read_bytes": (60e6, 75e6), "tensor_cycles_pct": (0, 0)}),
    "wgmma": ({"gemm_wgmma_kernel"}, {"tensor_cycles_pct": (80, 100), "registers_per_thread": (154, 154)}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RECORDED))
def test_what_ncu_printed_on_a_real_device(name: str) -> None:
    kernels, known = RECORDED[name]
    launches = ncu.parse((DATA / f"ncu_{name}.csv").read_text())
    values = ncu.counters(launches)
    assert {kernel.name for kernel in ncu.by_kernel(launches)} == kernels
    for counter, (low, high) in known.items():
        value = values[counter]
        assert value is not None
        assert low <= value <= high, counter
