"""Speedups that are not true are refused; each by behaviour, with a rule or as a wrong value."""

from __future__ import annotations

import pytest

from specgen.types import Phase, Status

from .candidates import BODY, t4
from .conftest import Evaluate

REMEMBER = """        key = {key}
        if key not in self.seen:
            self.seen[key] = ext.diag_mul(a, b)
        return self.seen[key].clone()"""
HALF = BODY.replace("i < n;", "i < n / 2;")
WRONG = (Status.WRONG_VALUE, Status.NOT_FINITE)
NEVER_NEGATIVE = BODY.replace("pa[i] * pb[i * m + j]", "pa[i] * (pb[i * m + j] > 0 ? pb[i * m + j] : 0)")

# name: (source, statuses, rule's beginning)
CHEATS = {
    "library only": (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n        return a[:, None] * b\n",
        (Status.REJECTED,), "library_only",
    ),
    "own kernel built, never called": (
        t4(forward="        return a[:, None] * b"), (Status.REJECTED,), "library_only"),
    "own kernel called, reference does the work": (
        t4(forward="        ext.diag_mul(a[:2].contiguous(), b[:2].contiguous())\n        return torch.diag(a) @ b"),
        (Status.REJECTED,), "reference_ops",
    ),
    "uninitialised memory": (t4(body=""), WRONG, ""),
    "partly written": (t4(body=HALF), WRONG, ""),
    "remembered by pointer": (t4(forward=REMEMBER.format(key="a.data_ptr()")), (Status.REJECTED, *WRONG), ""),
    "remembered by shape": (t4(forward=REMEMBER.format(key="a.shape")), WRONG, ""),
    "remembered by a few elements": (
        t4(forward=REMEMBER.format(key="(float(a[0]), float(b[0, 0]))").replace("key = ", "key = 0 and ")), WRONG, ""),
    "the first calls are right": (
        t4(forward="        self.calls += 1\n        self.last = ext.diag_mul(a, b) if self.calls < 9 else self.last\n"
                   "        return self.last.clone()"),
        (Status.REJECTED,), "timed_output",
    ),
    "inputs changed in place": (
        t4(body=BODY + "\n    const_cast<float*>(pb)[5] = 1.0f;"), (Status.REJECTED, *WRONG), ""),
    "output is the input, scaled in place": (
        t4(body=BODY.replace("po[i * m + j]", "const_cast<float*>(pb)[i * m + j]") + "    out = b;"),
        (Status.REJECTED,), "",
    ),
    "not a number as a wildcard": (
        t4(body="    float* po = out.data_ptr<float>();\n"
                "    for (int64_t i = 0; i < n * m; ++i) po[i] = std::nanf(\"\");", cpp="#include <cmath>"),
        (Status.NOT_FINITE,), "",
    ),
    "expanded output": (
        t4(forward="        ext.diag_mul(a, b)\n        return torch.ones(1, 1).expand(1024, 1024)"),
        (Status.REJECTED, *WRONG), ""),
    "patched comparison": (
        t4(top="torch.isclose = torch.allclose = torch.equal = lambda *a, **k: True", body=""), WRONG, ""),
    "identity where inputs are never negative": (t4(body=NEVER_NEGATIVE), WRONG, ""),
    "half precision with a tenth lost": (
        t4(body=BODY.replace("pa[i] * pb", "0.9f * pa[i] * pb")), WRONG, ""),
    "exit with success": (t4(before="import os\nos._exit(0)"), (Status.RUNTIME_ERROR,), ""),
    "forged answer": (
        t4(forward="        import os, json\n"
                   "        for fd in range(3, 40):\n"
                   "            try: os.write(fd, json.dumps({'n': 1, 'status': 'valid', 'speedup': 99}).encode())\n"
                   "            except OSError: pass\n"
                   "        return ext.diag_mul(a, b)"),
        (Status.REJECTED,), "forged_message",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(judge: Evaluate, name: str) -> None:
    source, statuses, rule = CHEATS[name]
    result = judge(source)
    assert result.status in statuses, (result.status, result.rule, result.error)
    assert result.rule.startswith(rule)
    assert result.speedup is None


SPINNING = """
import threading
def spin():
    while True:
        sum(range(1000))
threading.Thread(target=spin, daemon=True).start()
"""
CHILD = """
import os
if os.fork() == 0:
    while True:
        sum(range(1000))
"""
PATCHED_CLOCK = """
import gc, time
for name in ("perf_counter", "perf_counter_ns", "time", "process_time", "process_time_ns"):
    setattr(time, name, lambda: 1)
for item in gc.get_objects():
    if type(item).__name__ == "Harness":
        steps = iter(range(1, 10**9))
        item.watch._clock = lambda: next(steps)
"""
SLOW = BODY.replace("po[i * m + j] =", "for (int k = 0; k < 3; ++k) po[i * m + j] = k +").replace(
    "pa[i] * pb[i * m + j];", "pa[i] * pb[i * m + j] - k;"
)
TIMED = {
    "a thread that makes the reference slow": (t4(before=SPINNING), ("work_outside_window",)),
    "a process that makes the reference slow": (t4(before=CHILD), ("background_process",)),
    "a patched clock": (t4(body=SLOW, before=PATCHED_CLOCK), ("clock_disagrees", "impossible_time")),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_time_that_is_not_true_is_refused(judge: Evaluate, name: str) -> None:
    source, rules = TIMED[name]
    result = judge(source, phase=Phase.PROFILE, timed_runs=12, warmups=2)
    assert result.status is Status.REJECTED, (result.status, result.error)
    assert result.rule.split(":")[0] in rules


HINGE = '''
import torch
from torch.utils.cpp_extension import load_inline
SOURCE = r"""
#include <torch/extension.h>
torch::Tensor hinge(torch::Tensor p, torch::Tensor t) {
    int64_t n = p.size(0), m = p.size(1);
    auto out = torch::empty({}, p.options());
    const float* pp = p.data_ptr<float>();
    const float* pt = t.data_ptr<float>();
    double total = 0;
    for (int64_t i = 0; i < n; i += STEP) {
        float row = 0;
        for (int64_t j = 0; j < m; ++j) {
            float v = 1 - pp[i * m + j] * pt[j];
            row += v > 0 ? v : 0;
        }
        total += row;
    }
    *out.data_ptr<float>() = (float)(total * STEP / (double)(n * m));
    return out;
}
"""
ext = load_inline(name="hinge_ext", cpp_sources=SOURCE, functions=["hinge"], extra_cflags=["-O3", "-ffast-math"])
class ModelNew(torch.nn.Module):
    def forward(self, p, t):
        return ext.hinge(p, t)
'''


def test_a_mean_over_a_sample_of_the_input_is_refused(judge: Evaluate) -> None:
    honest = judge(HINGE.replace("STEP", "1"), problem="T1")
    assert honest.status is Status.VALID, (honest.rule, honest.error)
    sampled = judge(HINGE.replace("STEP", "16"), problem="T1")
    assert sampled.status in (Status.WRONG_VALUE, Status.REJECTED), sampled.speedup


CONSTANT = HINGE.replace("total = 0", "total = n * m / (double)STEP * 1.0 + 0 * pt[0] * pp[0]").replace(
    "i < n; i += STEP", "i < 0; i += STEP"
)


def test_a_constant_where_the_output_is_nearly_constant_is_refused(judge: Evaluate) -> None:
    result = judge(CONSTANT.replace("STEP", "1"), problem="T1")
    assert result.status in (Status.WRONG_VALUE, Status.REJECTED), result.speedup


GEMM = '''
import torch
from torch.utils.cpp_extension import load_inline
SOURCE = r"""
#include <torch/extension.h>
torch::Tensor rowdot(torch::Tensor x, torch::Tensor w, double scale) {
    int64_t n = x.size(0), k = x.size(1);
    auto out = torch::empty({n, 1}, x.options());
    const float* px = x.data_ptr<float>();
    const float* pw = w.data_ptr<float>();
    float* po = out.data_ptr<float>();
    for (int64_t i = 0; i < n; ++i) {
        double s = 0;
        for (int64_t j = 0; j < k; ++j) s += (double)px[i * k + j] * pw[j];
        po[i] = (float)(s * scale / 2);
    }
    return out;
}
"""
ext = load_inline(name="rowdot_ext", cpp_sources=SOURCE, functions=["rowdot"], extra_cflags=["-O3"])
class ModelNew(torch.nn.Module):
    def __init__(self, input_size, hidden_size, scale):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(hidden_size, input_size))
        self.scale = scale
        INIT
    def forward(self, x):
        return ext.rowdot(x, FORWARD, self.scale)
'''


def test_algebra_in_forward_is_honest_and_in_init_is_not(judge: Evaluate) -> None:
    honest = judge(GEMM.replace("INIT", "").replace("FORWARD", "self.weight.sum(0)"), problem="T12")
    assert honest.status is Status.VALID, (honest.rule, honest.error)
    assert "uses_library" in honest.labels
    assert honest.environment["parameters"].startswith("names and shapes agree")
    early = GEMM.replace("INIT", "self.total = self.weight.detach().sum(0)").replace("FORWARD", "self.total")
    moved = judge(early, problem="T12")
    assert moved.status is Status.WRONG_VALUE
    assert "__init__" in moved.error
