"""T1, hinge loss: mean(max(0, 1 - p·t)) over all predictions, the targets broadcast over the rows (Table 1)."""

from __future__ import annotations

import re

from specgen.llm.synthetic import cxx
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option
from specgen.llm.synthetic.tasks.base import ACC, Edit, Task, order_axis, segments

_ALGO = Axis(
    "algo",
    "algorithm",
    (
        Option("materialise", "a separate loss buffer that is summed afterwards", 0.2),
        Option("row_sums", "one partial sum for every row and a second pass", 0.7),
        Option("fused", "a fused single pass that keeps only the running total", 0.9),
    ),
)
_ORDER = order_axis(("columns", "column blocks in the outer loop", 0.2), ("rows", "matrix rows in the outer loop", 0.9))
_SPACE = DesignSpace("T1", (_ALGO, _ORDER, cxx.TILE, cxx.SIMD, cxx.UNROLL, ACC, cxx.FLAGS))

_LOSS = "max_of(T(0.0f), T(1.0f) - load<T>(x + k) * load<T>(y + k))"


def _walk(design: Design, body: str) -> str:
    """All rows, in segments of TILE, in the design's order."""
    head = "const float* x = p + i * m;\n    const float* y = t + (i * m) % period;\n    "
    rows = "for (int64_t i = 0; i < n; ++i) {"
    if design["order"] == "rows":
        return f"{rows}\n  {segments('0', 'm', head + body)}\n  }}"
    return segments("0", "m", f"{rows}\n    {head}{body}\n    }}")


def _loops(design: Design) -> str:
    acc = design["acc"]
    if design["algo"] == "fused":
        body = cxx.sum_loop(design, _LOSS) + "\n    total += part;"
        return f"{acc} total = 0;\n  {_walk(design, body)}"
    if design["algo"] == "row_sums":
        body = cxx.sum_loop(design, _LOSS) + "\n    sums[i] += part;"
        return f"""std::vector<{acc}> sums(n, 0);
  {_walk(design, body)}
  {acc} total = 0;
  for (int64_t i = 0; i < n; ++i) total += sums[i];"""
    fill = "float* dst = losses.data() + i * m;\n    " + cxx.map_loop(design, _LOSS, out="dst")
    second = _walk(design, cxx.sum_loop(design, "load<T>(losses.data() + i * m + k)") + "\n    total += part;")
    return f"""std::vector<float> losses(n * m);
  {_walk(design, fill)}
  {acc} total = 0;
  {second}"""


def _cpp(design: Design) -> str:
    return f"""{cxx.prelude(design)}
static float hinge(const float* p, const float* t, int64_t n, int64_t m, int64_t period) {{
  {_loops(design)}
  return static_cast<float>(total / static_cast<double>(n * m));
}}

torch::Tensor run(torch::Tensor P, torch::Tensor Y) {{
  TORCH_CHECK(P.dim() >= 1, "expected at least one dimension");
  const int64_t m = P.size(P.dim() - 1);
  const int64_t n = P.numel() / m;
  TORCH_CHECK(Y.numel() == m || Y.numel() == n * m, "the targets do not fit the predictions");
  auto out = torch::empty({{}}, P.options());
  *out.data_ptr<float>() = hinge(P.data_ptr<float>(), Y.data_ptr<float>(), n, m, Y.numel());
  return out;
}}
"""


_MODEL = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, predictions, targets):
        return ext.run(predictions.contiguous(), targets.contiguous())
"""

TASK = Task(
    name="T1",
    title="hinge loss",
    stem="hinge_loss",
    easy=True,
    marks=(re.compile(r"clamp\(\s*1\s*-|1\.?0?\s*-\s*predictions"), re.compile(r"mean\(")),
    space=_SPACE,
    cpp=_cpp,
    entry="static float hinge(",
    model=_MODEL,
    wrong=(
        Edit("static_cast<double>(n * m)", "static_cast<double>(m)"),
        Edit(" * load<T>(y + k)", ""),
    ),
    operands=("the predictions", "one scalar"),
    remarks=(
        "every prediction is read exactly once and the result is a single number",
        "the targets repeat for every row, so they should come from cache after the first row",
        "PyTorch writes the product, the difference and the clamped value to memory before it takes the mean",
        "the reduction is the only dependence between elements",
        "summing millions of floats in one accumulator loses digits, several partial sums do not",
    ),
)
