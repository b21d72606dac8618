"""Every status is reached by a real candidate, and infrastructure is never blamed on one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from specgen.evaluation.cell import Cell
from specgen.settings import EvaluationPolicy
from specgen.types import Phase, ProblemSpec, Status

from .candidates import BODY, FORWARD, plain, t4
from .conftest import DEVICE, Evaluate, request

SEGFAULT = "    *(volatile float*)8 = a.data_ptr<float>()[0];"
FAULTS = {
    "no_modelnew": (Status.NO_MODELNEW, "x = 1\n"),
    "compile_error": (Status.COMPILE_ERROR, t4(body=BODY.replace("pa[i] *", "pq[i] *"))),
    "caught_compile_error": (
        Status.COMPILE_ERROR,
        t4(body="    nonsense;").replace("ext = load", "try:\n    ext = load").replace(
            'extra_cflags=["-O3"])', 'extra_cflags=["-O3"])\nexcept BaseException:\n    ext = None')
        .replace(FORWARD, "        return torch.diag(a) @ b"),
    ),
    "syntax_error": (Status.LOAD_ERROR, "import torch\nclass ModelNew(\n"),
    "import_error": (Status.LOAD_ERROR, "import not_a_module_at_all\n"),
    "init_error": (Status.LOAD_ERROR, plain("        return a", top="").replace(
        "    def forward", "    def __init__(self):\n        raise ValueError('no')\n    def forward")),
    "runtime_error": (Status.RUNTIME_ERROR, plain("        return a.missing")),
    "early_exit": (Status.RUNTIME_ERROR, plain("        import os; os._exit(0)")),
    "system_exit": (Status.RUNTIME_ERROR, plain("        raise SystemExit(0)")),
    "device_fault": (Status.DEVICE_FAULT, t4(body=SEGFAULT)),
    "out_of_memory": (Status.OUT_OF_MEMORY, plain("        return torch.ones(1 << 40)")),
    "wrong_shape": (Status.WRONG_SHAPE, plain("        return (a * b)[:1].clone()")),
    "larger_shape": (Status.WRONG_SHAPE, plain("        return torch.zeros(3000, 3000)")),
    "no_tensor": (Status.WRONG_SHAPE, plain("        return None")),
    "wrong_dtype": (Status.WRONG_DTYPE, plain("        return (torch.diag(a) @ b).half()")),
    "wrong_value": (Status.WRONG_VALUE, t4(body=BODY.replace("pa[i] *", "2 * pa[i] *"))),
    "not_finite": (Status.NOT_FINITE, plain("        return torch.full_like(b, float('nan'))")),
}  # fmt: skip


SAID = {  # what the LLM must be able to read, beside the status
    "compile_error": "[candidate.py line 17]\n",
    "caught_compile_error": "[candidate.py line 11]\n",
    "device_fault": "died of SIGSEGV in forward\ncandidate.py:25 in forward\n    return ext.diag_mul(a, b)",
    "early_exit": "exited with code 0 in forward",
    "wrong_value": "pattern: wrong elements are the expected ones times a constant factor of 2",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_becomes_its_status(judge: Evaluate, name: str) -> None:
    status, source = FAULTS[name]
    result = judge(source)
    assert result.status is status, result.error
    assert result.error
    assert SAID.get(name, "") in result.error
    assert "/cache/" not in result.error  # no machine's paths
    assert result.speedup is None


def test_a_hang_is_ended_by_the_budget(judge: Evaluate) -> None:
    result = judge(plain("        while True: pass"), budget_s=8.0)
    assert result.status is Status.HANG
    assert "forward did not end" in result.error
    assert "candidate.py:5 in forward" in result.error
    assert result.device_s < 20


def test_a_build_without_end_is_a_compile_timeout(judge: Evaluate) -> None:
    slow = "template<int N> struct S { static const long v = S<N-1>::v + S<N-2>::v * (N % 3); };\n"
    slow += (
        "template<> struct S<0> { static const long v = 0; };\ntemplate<> struct S<1> { static const long v = 1; };\n"
    )
    slow += "constexpr long spin(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i % 7; return s; }\n"
    slow += "constexpr long forever = spin(30000000);\n"
    source = t4(cpp=slow).replace('["-O3"]', '["-O3", "-fconstexpr-ops-limit=100000000000", '
                                  '"-fconstexpr-loop-limit=2147483647"]')  # fmt: skip
    result = judge(source, budget_s=6.0)
    assert result.status is Status.COMPILE_TIMEOUT, result.error


def test_an_honest_kernel_is_valid_and_profiled(judge: Evaluate) -> None:
    validated = judge(t4())
    assert validated.status is Status.VALID, validated.error
    assert validated.speedup is not None
    assert validated.speedup > 2
    assert validated.build_route in ("facade", "cached", "stock")
    profiled = judge(t4(), phase=Phase.PROFILE)
    assert profiled.status is Status.VALID, profiled.error
    assert profiled.build_route == "cached"
    assert profiled.profile is not None
    assert profiled.profile.candidate.runs == profiled.profile.reference.runs == 40
    assert profiled.profile.ceiling_gb_s
    assert profiled.environment["tolerance"].startswith("0.01")


def test_compiler_feedback_names_line_and_column(judge: Evaluate) -> None:
    result = judge(FAULTS["compile_error"][1])
    assert "error" in result.error
    assert "pq" in result.error
    assert len(result.error) <= 4200


def test_a_traceback_shows_the_candidates_own_line(judge: Evaluate) -> None:
    result = judge(plain("        return a.missing"))
    assert "candidate.py:5 in forward" in result.error
    assert "return a.missing" in result.error


def test_a_reference_that_raises_is_the_problems_fault(judge: Evaluate) -> None:
    broken = ProblemSpec(
        name="broken",
        source="import torch\nclass Model(torch.nn.Module):\n    def forward(self, a):\n        raise KeyError('x')\n"
        "def get_inputs():\n    return [torch.rand(4)]\ndef get_init_inputs():\n    return []\n",
    )
    result = judge(plain("        return a"), problem=broken)
    assert result.status is Status.REFERENCE_ERROR
    assert "forward()" in result.error


def test_a_killed_judge_is_infrastructure(cache_root: Path) -> None:
    cell = Cell.start(DEVICE, EvaluationPolicy(), cache_root)
    try:
        assert cell.wait_ready(120)
        cell.submit(request(plain("        while True: pass")))
        children = Path(f"/proc/{cell.pgid}/task/{cell.pgid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)  # the judge is forked first
        result = cell.poll(30)
    finally:
        cell.kill()
    assert result is not None
    assert result.status is Status.INFRA_ERROR
