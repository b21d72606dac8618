"""T12, Gemm-Div-Sum-Scale: out[b] = scale · Σ_h (x[b]·W[h]) / 2 (Table 3)."""

from __future__ import annotations

import re

from specgen.llm.synthetic import cxx
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option
from specgen.llm.synthetic.tasks.base import ACC, Edit, Task, order_axis, segments

_ALGO = Axis(
    "algo",
    "algorithm",
    (
        Option("gemm_then_sum", "the full product in a buffer and the row sums afterwards", 0.1),
        Option("fused_rows", "dot products that are added up at once without a buffer", 0.4),
        Option("column_sum", "the sum over the weight rows first and one dot product for every sample", 1.0),
    ),
)
_ORDER = order_axis(
    ("batch", "samples of the batch in the outer loop", 0.4), ("hidden", "weight rows in the outer loop", 0.8)
)
_SPACE = DesignSpace("T12", (_ALGO, _ORDER, cxx.TILE, cxx.SIMD, cxx.UNROLL, ACC, cxx.FLAGS))


def _nest(design: Design, body: str) -> str:
    batch, hidden = "for (int64_t b = 0; b < nb; ++b)", "for (int64_t h = 0; h < nh; ++h)"
    outer, inner = (batch, hidden) if design["order"] == "batch" else (hidden, batch)
    return f"{outer}\n    {inner} {{\n    {body}\n    }}"


def _dot(design: Design, left: str, right: str, into: str) -> str:
    loop = cxx.sum_loop(design, f"load<T>({left} + k) * load<T>({right} + k)")
    return segments("0", "ni", f"{loop}\n    {into} += part;")


def _column_sum(design: Design) -> str:
    add = cxx.map_loop(design, "load<T>(v + k) + load<T>(row + k)", out="v")
    rows = "for (int64_t h = 0; h < nh; ++h) {\n    const float* row = w + h * ni;\n    "
    if design["order"] == "hidden":
        walk = f"{rows}{segments('0', 'ni', add)}\n  }}"
    else:
        walk = segments("0", "ni", f"{rows}{add}\n    }}")
    return f"""std::vector<float> column(ni, 0.0f);
  float* v = column.data();
  {walk}
  for (int64_t b = 0; b < nb; ++b) {{
    {_dot(design, "(x + b * ni)", "v", "sums[b]")}
  }}"""


def _loops(design: Design) -> str:
    if design["algo"] == "column_sum":
        return _column_sum(design)
    dot = _dot(design, "(x + b * ni)", "(w + h * ni)", "y")
    if design["algo"] == "fused_rows":
        return _nest(design, f"{design['acc']} y = 0;\n    {dot}\n    sums[b] += y;")
    product = _nest(design, f"float y = 0.0f;\n    {dot}\n    full[b * nh + h] = y;")
    return f"""std::vector<float> full(nb * nh);
  {product}
  for (int64_t b = 0; b < nb; ++b)
    for (int64_t h = 0; h < nh; ++h) sums[b] += full[b * nh + h];"""


def _cpp(design: Design) -> str:
    return f"""{cxx.prelude(design)}
static void gemm_sum(const float* x, const float* w, float* out, int64_t nb, int64_t ni, int64_t nh, double scale) {{
  std::vector<{design["acc"]}> sums(nb, 0);
  {_loops(design)}
  for (int64_t b = 0; b < nb; ++b) out[b] = static_cast<float>(sums[b] * (0.5 * scale));
}}

torch::Tensor run(torch::Tensor X, torch::Tensor W, double scale) {{
  TORCH_CHECK(X.dim() == 2 && W.dim() == 2, "expected two matrices");
  TORCH_CHECK(X.size(1) == W.size(1), "the inner sizes disagree");
  const int64_t nb = X.size(0);
  const int64_t ni = X.size(1);
  auto out = torch::empty({{nb, 1}}, X.options());
  gemm_sum(X.data_ptr<float>(), W.data_ptr<float>(), out.data_ptr<float>(), nb, ni, W.size(0), scale);
  return out;
}}
"""


_MODEL = """
class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, scaling_factor):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scaling_factor = scaling_factor

    def forward(self, x):
        return ext.run(x.contiguous(), self.weight.contiguous(), float(self.scaling_factor))
"""

TASK = Task(
    name="T12",
    title="gemm, divide, sum, scale",
    stem="gemm_sum",
    easy=False,
    marks=(re.compile(r"/\s*2\b"), re.compile(r"\.?sum\("), re.compile(r"matmul\(|@|linear\("), re.compile(r"scal")),
    space=_SPACE,
    cpp=_cpp,
    entry="static void gemm_sum(",
    model=_MODEL,
    wrong=(
        Edit("(0.5 * scale)", "(scale)"),
        Edit("const int64_t ni = X.size(1);", "const int64_t ni = X.size(1) / 2;"),
    ),
    operands=("x and W", "one number for every sample"),
    remarks=(
        "the division by two and the scaling are constants and belong outside every loop",
        "the sum runs over the hidden dimension, so no element of the product is needed by itself",
        "a product that is only summed afterwards never has to be written to memory",
        "the weight is read in full once per forward pass, whatever else happens",
        "sums of products commute, so the order in which h and i are walked is free",
    ),
)
