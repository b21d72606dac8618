"""T4, diagonal matmul: C = diag(A) · B, which is a scaling of B's rows (Table 1)."""

from __future__ import annotations

import re

from specgen.llm.synthetic import cxx
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option
from specgen.llm.synthetic.tasks.base import ALLOC, Edit, Task, order_axis, segments

_ALGO = Axis(
    "algo",
    "algorithm",
    (
        Option("blocks", "a block-diagonal product with dense blocks", 0.02),
        Option("skip_zeros", "a dense walk that skips the zeros of the diagonal matrix", 0.2),
        Option("row_scale", "a direct row scaling without any matrix product", 1.0),
    ),
)
_ORDER = order_axis(("columns", "column blocks in the outer loop", 0.3), ("rows", "matrix rows in the outer loop", 0.9))
_STORE = Axis(
    "store",
    "stores",
    (Option("stream", "non-temporal stores", 0.5), Option("plain", "ordinary cached stores", 0.6)),
)
_SPACE = DesignSpace("T4", (_ALGO, _ORDER, cxx.TILE, cxx.SIMD, cxx.UNROLL, _STORE, ALLOC, cxx.FLAGS))


def _loops(design: Design) -> str:
    store = "stream" if design["store"] == "stream" else "store"
    if design["algo"] == "row_scale":
        body = "const float s = a[i];\n    const float* row = b + i * m;\n    float* dst = c + i * m;\n    "
        body += cxx.map_loop(design, "load<T>(row + k) * T(s)", out="dst", store=store)
    else:
        blocks = design["algo"] == "blocks"
        skip = "" if blocks else "if (s == 0.0f) continue;\n      "
        span = ("i / BLOCK * BLOCK", "std::min(n, i / BLOCK * BLOCK + BLOCK)") if blocks else ("0", "n")
        update = cxx.map_loop(design, "load<T>(dst + k) + load<T>(row + k) * T(s)", out="dst")
        body = f"""float* dst = c + i * m;
    const int64_t first = {span[0]};
    const int64_t last = {span[1]};
    for (int64_t q = first; q < last; ++q) {{
      const float s = d[i * n + q];
      {skip}const float* row = b + q * m;
    {update}
    }}"""
    if design["order"] == "rows":
        return f"for (int64_t i = 0; i < n; ++i) {{\n  {segments('0', 'm', body)}\n  }}"
    rows = f"for (int64_t i = 0; i < n; ++i) {{\n    {body}\n    }}"
    return segments("0", "m", rows)


def _cpp(design: Design) -> str:
    dense = design["algo"] != "row_scale"
    diagonal = ""
    argument = "a"
    if dense:
        argument = "d"
        diagonal = """std::vector<float> diag(n * n, 0.0f);
  for (int64_t i = 0; i < n; ++i) diag[i * n + i] = A.data_ptr<float>()[i];
  """
    source = "diag.data()" if dense else "A.data_ptr<float>()"
    maker = "zeros" if dense or design["alloc"] == "zeros" else "empty"
    return f"""{cxx.prelude(design)}
constexpr int64_t BLOCK = TILE < 128 ? TILE : 128;

static void diag_scale(const float* {argument}, const float* b, float* c, int64_t n, int64_t m) {{
  {_loops(design)}
}}

torch::Tensor run(torch::Tensor A, torch::Tensor B) {{
  TORCH_CHECK(A.dim() == 1 && B.dim() == 2, "expected a vector and a matrix");
  TORCH_CHECK(A.size(0) == B.size(0), "the diagonal and the matrix disagree");
  const int64_t n = B.size(0);
  const int64_t m = B.size(1);
  auto out = torch::{maker}({{n, m}}, B.options());
  {diagonal}diag_scale({source}, B.data_ptr<float>(), out.data_ptr<float>(), n, m);
  return out;
}}
"""


_MODEL = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, A, B):
        return ext.run(A.contiguous(), B.contiguous())
"""

TASK = Task(
    name="T4",
    title="diagonal matmul",
    stem="diag_scale",
    easy=True,
    marks=(re.compile(r"\bdiag\("),),
    space=_SPACE,
    cpp=_cpp,
    entry="static void diag_scale(",
    model=_MODEL,
    wrong=(
        Edit("const int64_t m = B.size(1);", "const int64_t m = B.size(1) - 1;"),
        Edit("* T(s)", "* T(s * s)"),
    ),
    operands=("B", "C"),
    remarks=(
        "diag(A) is almost entirely zeros, so a full product multiplies by zero n - 1 times out of n",
        "each output element is one multiplication, so this is bound by memory and not by arithmetic",
        "B is read once and C is written once, nothing else has to move",
        "A has only n entries and stays in L1 for the whole run",
        "row i of C depends on row i of B and on the single number A[i]",
    ),
)
