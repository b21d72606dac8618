"""E1, an elementwise chain with a residual: clamp(gelu(x·scale + bias), ±limit) + residual. Not one of the paper's
tasks: the project's own small one, bound by memory once the chain is fused."""

from __future__ import annotations

import re

from specgen.llm.synthetic import cxx
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option
from specgen.llm.synthetic.tasks.base import ALLOC, Edit, Task, order_axis, segments

_ALGO = Axis(
    "algo",
    "algorithm",
    (
        Option("three_passes", "one pass over memory for each operation of the chain", 0.2),
        Option("two_passes", "an activation pass and a second pass for clamp and residual", 0.5),
        Option("fused", "a single fused pass over the whole chain", 0.9),
    ),
)
_ERF = Axis(
    "erf",
    "error function",
    (
        Option("libm", "the math library's erf for every element", 0.2),
        Option("rational", "a rational approximation of erf that vectorises", 0.9),
    ),
)
_ORDER = order_axis(("columns", "column blocks in the outer loop", 0.4), ("rows", "matrix rows in the outer loop", 0.8))
_SPACE = DesignSpace("E1", (_ALGO, _ERF, _ORDER, cxx.TILE, cxx.SIMD, cxx.UNROLL, ALLOC, cxx.FLAGS))

# erf(x) = x P(x²) / Q(x²) on [-4, 4], fitted by reweighted least squares; the largest error is 5.2e-6.
_RATIONAL = """
template <class T> static inline T erf_of(T a) {
  const T x = max_of(T(-4.0f), min_of(T(4.0f), a));
  const T z = x * x;
  T p = T(-2.80366643e-05f);
  p = p * z + T(-0.000638903512f);
  p = p * z + T(0.0393125081f);
  p = p * z + T(0.117515214f);
  p = p * z + T(1.12838941f);
  T q = T(-0.000325758118f);
  q = q * z + T(0.0066482225f);
  q = q * z + T(0.0804293327f);
  q = q * z + T(0.437571024f);
  q = q * z + T(1.0f);
  return x * p / q;
}
"""
_LIBM = """
static inline float erf_of(float a) { return std::erf(a); }
"""
_LIBM_LANES = """
static inline V erf_of(V a) {
  alignas(64) float lane[V::W];
  store(lane, a);
  for (int64_t i = 0; i < V::W; ++i) lane[i] = std::erf(lane[i]);
  return load<V>(lane);
}
"""
_GELU = """
template <class T> static inline T gelu(T a) {
  return T(0.5f) * a * (T(1.0f) + erf_of(a * T(0.70710678f)));
}
template <class T> static inline T clip(T a, float limit) {
  return max_of(T(-limit), min_of(T(limit), a));
}
"""


def _functions(design: Design) -> str:
    if design["erf"] == "rational":
        return _RATIONAL + _GELU
    lanes = _LIBM_LANES if design["simd"] in ("avx2", "avx512") else ""
    return _LIBM + lanes + _GELU


def _walk(design: Design, body: str) -> str:
    head = "const float* px = x + i * m;\n    const float* pr = r + i * m;\n    float* dst = out + i * m;\n    "
    rows = "for (int64_t i = 0; i < n; ++i) {"
    if design["order"] == "rows":
        return f"{rows}\n  {segments('0', 'm', head + body)}\n  }}"
    return segments("0", "m", f"{rows}\n    {head}{body}\n    }}")


_LINEAR = "load<T>(px + k) * load<T>(s + k) + load<T>(b + k)"
_STEPS = {
    "fused": (f"clip(gelu(T({_LINEAR})), limit) + load<T>(pr + k)",),
    "two_passes": (f"gelu(T({_LINEAR}))", "clip(load<T>(dst + k), limit) + load<T>(pr + k)"),
    "three_passes": (_LINEAR, "gelu(load<T>(dst + k))", "clip(load<T>(dst + k), limit) + load<T>(pr + k)"),
}


def _cpp(design: Design) -> str:
    passes = [_walk(design, cxx.map_loop(design, step, out="dst")) for step in _STEPS[design["algo"]]]
    loops = "\n  ".join(passes)
    head = cxx.prelude(design).replace("#include <cstdint>", "#include <cmath>\n#include <cstdint>")
    return f"""{head}{_functions(design)}
static void chain(const float* x, const float* s, const float* b, const float* r, float* out,
                  int64_t n, int64_t m, float limit) {{
  {loops}
}}

torch::Tensor run(torch::Tensor X, torch::Tensor S, torch::Tensor B, torch::Tensor R, double limit) {{
  TORCH_CHECK(X.dim() == 2 && R.dim() == 2, "expected two matrices");
  TORCH_CHECK(S.numel() == X.size(1) && B.numel() == X.size(1), "scale and bias do not fit");
  const int64_t n = X.size(0);
  const int64_t m = X.size(1);
  auto out = torch::{design["alloc"]}({{n, m}}, X.options());
  chain(X.data_ptr<float>(), S.data_ptr<float>(), B.data_ptr<float>(), R.data_ptr<float>(),
        out.data_ptr<float>(), n, m, static_cast<float>(limit));
  return out;
}}
"""


_MODEL = """
class ModelNew(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x, scale, bias, residual):
        return ext.run(
            x.contiguous(), scale.contiguous(), bias.contiguous(), residual.contiguous(), float(self.limit)
        )
"""

TASK = Task(
    name="E1",
    title="elementwise chain with a residual",
    stem="gelu_chain",
    easy=True,
    marks=(re.compile(r"gelu\("), re.compile(r"clamp\("), re.compile(r"residual")),
    space=_SPACE,
    cpp=_cpp,
    entry="static void chain(",
    model=_MODEL,
    wrong=(
        Edit("T(0.5f) * a", "T(0.25f) * a"),
        Edit("+ load<T>(pr + k)", "- load<T>(pr + k)"),
        Edit("+ load<T>(b + k)", "* load<T>(b + k)"),
    ),
    operands=("x and the residual", "the output"),
    remarks=(
        "four operations over the same elements mean four trips to memory in eager mode and one when fused",
        "scale and bias repeat for every row and fit in cache",
        "gelu is the only expensive function of the chain, the rest is a handful of instructions",
        "the clamp comes after the activation and before the residual, that order matters",
        "every output element depends on the same position of the inputs only",
    ),
)
