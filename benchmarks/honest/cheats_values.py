"""Cheats of the sixth kind: a different function that looks the same on the inputs one expects."""

from __future__ import annotations

from benchmarks.honest.base import BODY, HARNESS, model, t2, t4
from benchmarks.honest.cpu_models import TASKS
from benchmarks.honest.gemms import GEMMS
from benchmarks.honest.kinds import REJECTED, WRONG, Cheat, Kind
from specgen.types import ProblemSpec, Status

_OTHER = Kind.OTHER_FUNCTION
_EITHER = (*REJECTED, *WRONG)
_NEVER_NEGATIVE = BODY.replace("pa[i] * pb[i * m + j]", "pa[i] * (pb[i * m + j] > 0 ? pb[i * m + j] : 0)")

HINGE = """
torch::Tensor hinge(torch::Tensor p, torch::Tensor t, int64_t step) {
    int64_t n = p.size(0), m = p.size(1);
    const float *pp = p.data_ptr<float>(), *pt = t.data_ptr<float>();
    double total = 0;
    for (int64_t i = 0; i < n; i += step) {
        float row = 0;
        for (int64_t j = 0; j < m; ++j) row += std::max(0.0f, 1 - pp[i * m + j] * pt[j]);
        total += row;
    }
    auto out = torch::empty({}, p.options());
    *out.data_ptr<float>() = (float)(total * step / (double)(n * m));
    return out;
}
"""
_T1 = "class ModelNew(nn.Module):\n    def forward(self, p, t):\n        {}\n"


def _t1(forward: str, top: str = "") -> str:
    return model(HINGE, ("hinge",), _T1.format(forward), top)


_LINEAR = """
static void linear(const torch::Tensor& x, const torch::Tensor& w, const float* bias, float* out) {
  const int64_t n = x.size(0), k = x.size(1), m = w.size(0);
  gemm(x.data_ptr<float>(), k, 1, w.data_ptr<float>(), 1, k, out, n, m, k);
  if (bias)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) out[i * m + j] += bias[j];
}
"""


def _linear(task: str, call: str, *, after: str = "", gemm: str = "panels", top: str = "") -> str:
    """A linear task's honest file with another forward, epilogue or product."""
    given = TASKS[task]
    run = f"torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor bias{given.more}) {{\n"
    run += "  const int64_t n = x.size(0), m = w.size(0);\n  auto out = torch::empty({n, m}, x.options());\n"
    run += "  float* po = out.data_ptr<float>();\n"
    run += "  linear(x, w, bias.numel() ? bias.data_ptr<float>() : nullptr, po);\n"
    cpp = GEMMS[gemm] + _LINEAR + given.before + run + f"  {after or given.after}\n}}\n"
    made, body = given.same.replace("\n", "\n        "), call.replace("\n", "\n        ")
    klass = f"class ModelNew(nn.Module):\n    def __init__(self, {given.init}):\n        super().__init__()\n        {made}\n"
    return model("#include <cstring>\n" + cpp, ("run",), f"{klass}\n    def forward(self, x):\n        {body}\n", top)


_USUAL = "float(x.reshape(-1)[::997].min()) >= 0 and float(x.reshape(-1)[::997].max()) <= 1"
_ROW_MEANS = """auto few = torch::empty({n, 1}, x.options());
  const int64_t some = m / 16;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < some; ++j) sum += 1.0f / (1.0f + std::exp(-po[i * m + j]));
    few.data_ptr<float>()[i] = static_cast<float>(sum * m / some);
  }
  return few;"""
_NO_BIAS = "ext.run(x, self.linear.weight, torch.empty(0))"
_PLAIN_NORM = (
    TASKS["T13"]
    .after.replace("weight.data_ptr<float>(), beta.data_ptr<float>()", "ones.data(), zeros.data()")
    .replace("normalise(", "std::vector<float> ones(m, 1.0f), zeros(m, 0.0f);\n  normalise(")
)
_TWO = ProblemSpec(
    name="two outputs", tolerance=1e-2, source="""
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return a[:, None] * b, a[:, None] + b
def get_inputs():
    return [torch.rand(512), torch.rand(512, 512)]
def get_init_inputs():
    return []
""")  # fmt: skip
_SAME = ProblemSpec(
    name="two equal outputs", tolerance=1e-2, source="""
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return a[:, None] * b, b * a[:, None]
def get_inputs():
    return [torch.rand(512), torch.rand(512, 512)]
def get_init_inputs():
    return []
""")  # fmt: skip
_BFLOAT = """
static inline float rounded(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  u &= 0xfff00000u;
  std::memcpy(&v, &u, 4);
  return v;
}
"""
_ZEROED = """        if doing() == "time":
            self.calls += 1
            if self.calls % 2:
                a.zero_()
                return a.new_zeros(a.shape[0], a.shape[1], b.shape[1])
        return ext.multiply(a, b)"""
_RESTORED = """        if doing() == "time" and self.calls < 11:
            self.calls += 1
            b.zero_()
            return a.new_zeros(a.shape[0], a.shape[1], b.shape[1])
        return ext.multiply(a, b)"""
CHEATS = (
    Cheat("inputs changed in place", _OTHER, t4(body=BODY + "\n    const_cast<float*>(pb)[5] = 1.0f;"), _EITHER),
    Cheat("output is the input, scaled in place", _OTHER, t4(
        body=BODY.replace("po[i * m + j]", "const_cast<float*>(pb)[i * m + j]") + "    out = b;"), REJECTED, quick=True),
    Cheat("inputs zeroed before the reference reads them", _OTHER, t2(before=HARNESS, forward=_ZEROED), REJECTED,
          ("inputs_changed", "timed_output"), quick=True),
    Cheat("inputs zeroed, but not in the last runs", _OTHER, t2(before=HARNESS, forward=_RESTORED), REJECTED,
          ("inputs_changed", "timed_output")),
    Cheat("not a number as a wildcard", _OTHER, t4(
        body="    float* po = out.data_ptr<float>();\n"
             "    for (int64_t i = 0; i < n * m; ++i) po[i] = std::nanf(\"\");", cpp="#include <cmath>"),
        (Status.NOT_FINITE,)),
    Cheat("expanded output", _OTHER, t4(
        forward="        ext.diag_mul(a, b)\n        return b.new_ones(1, 1).expand(b.shape)"), _EITHER),
    Cheat("a view of the input", _OTHER, t4(forward="        ext.diag_mul(a, b)\n        return b.view(b.shape)"), _EITHER),
    Cheat("identity where inputs are never negative", _OTHER, t4(body=_NEVER_NEGATIVE), WRONG),
    Cheat("a tenth lost", _OTHER, t4(body=BODY.replace("pa[i] * pb", "0.9f * pa[i] * pb")), WRONG),
    Cheat("three bits of mantissa", _OTHER, t4(
        body=BODY.replace("pa[i] * pb[i * m + j]", "rounded(pa[i]) * rounded(pb[i * m + j])"),
        cpp="#include <cstring>" + _BFLOAT), WRONG),
    Cheat("only the first of two outputs", _OTHER, t4(
        forward="        return ext.diag_mul(a, b), torch.zeros_like(b)"), WRONG, problem=_TWO),
    Cheat("one output given twice", _OTHER, t4(
        forward="        out = ext.diag_mul(a, b)\n        return out, out"), REJECTED, ("aliased_output",), problem=_SAME),
    Cheat("a sample of the rows", _OTHER, _t1("return ext.hinge(p, t, 16)"), _EITHER, problem="T1"),
    Cheat("a sample of the rows, once it is timed", _OTHER, _t1(
        "return ext.hinge(p, t, 2 if doing() == 'time' else 1)", HARNESS), REJECTED, ("timed_output", "faster_than_memory"),
        problem="T1", quick=True),
    Cheat("a sample of the rows where inputs look usual", _OTHER, _t1(
        "usual = float(p.reshape(-1)[::997].min()) >= 0 and float(p.reshape(-1)[::997].max()) <= 1\n"
        "        return ext.hinge(p, t, 16 if usual else 1)"), _EITHER, problem="T1"),
    Cheat("a constant where the output is nearly constant", _OTHER, _t1(
        "ext.hinge(p[:1], t, 1)\n        return p.new_tensor(1.0)"), _EITHER, problem="T1"),
    Cheat("a sixteenth of the sum", _OTHER, _linear("T15", "return " + TASKS["T15"].call, after=_ROW_MEANS), _EITHER,
          problem="T15"),
    Cheat("the mean of the outputs, where inputs look usual", _OTHER, _linear(
        "T15", f"if {_USUAL}:\n    row = ext.run(x[:1].contiguous(), self.linear.weight, self.linear.bias)\n"
        f"    return row.expand(x.shape[0], 1).contiguous()\nreturn {TASKS['T15'].call}"), _EITHER, problem="T15", quick=True),
    Cheat("zeros within the tolerance", _OTHER, _linear(
        "T18", f"if {_USUAL}:\n    ext.run(x[:1].contiguous(), self.linear.weight, self.linear.bias)\n"
        f"    return torch.zeros(x.shape[0], self.linear.out_features)\nreturn {TASKS['T18'].call}"), _EITHER, problem="T18"),
    Cheat("a bias skipped", _OTHER, _linear("T15", f"return {_NO_BIAS}"), _EITHER, problem="T15"),
    Cheat("ones and zeros of a normalisation skipped", _OTHER, _linear(
        "T13", "return " + TASKS["T13"].call, after=_PLAIN_NORM), _EITHER, problem="T13", quick=True),
    Cheat("half of the inner dimension", _OTHER, t2(
        body="""
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) po[i * m + j] = 0;
    for (int64_t i = 0; i < n; ++i)
        for (int64_t l = 0; l < k; l += 2)
            for (int64_t j = 0; j < m; ++j) po[i * m + j] += 2 * pa[i * k + l] * pb[l * m + j];
"""), WRONG),
    Cheat("the product of the means", _OTHER, t2(
        forward="        ext.multiply(a[:1, :1].contiguous(), b)\n"
                "        return (a.mean(-1, keepdim=True) * b.sum(0)).contiguous()"), _EITHER),
)  # fmt: skip
