"""What is validated both ways: CPU candidates for a dozen of the paper's tasks and three that fail; on a GPU the stock.

Each CPU file is written as a model writes it: one ``load_inline`` over torch's header, a plain loop nest that the
compiler vectorises, and a ``ModelNew`` of the reference's parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from specgen.types import Status


@dataclass(frozen=True)
class Source:
    """A candidate file, the built-in problem it answers, and the status it must get."""

    name: str
    task: str
    text: str
    status: Status = Status.VALID


_FILE = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = r"""
#include <torch/extension.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

static void product(const float* a, const float* b, float* c, int64_t n, int64_t k, int64_t m) {{
  std::fill(c, c + n * m, 0.0f);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t l = 0; l < k; ++l) {{
      const float x = a[i * k + l];
      for (int64_t j = 0; j < m; ++j) c[i * m + j] += x * b[l * m + j];
    }}
}}
{cpp}
"""

ext = load_inline(
    name="{name}", cpp_sources=cpp_source, functions=["run"], extra_cflags=["-O3", "-march=native", "-ffast-math"]
)


class ModelNew(nn.Module):
{model}
'''

_PLAIN = """    def forward(self, a, b):
        return ext.run({arguments})
"""
_MATMUL = """
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  const int64_t k = a.size(-1), m = b.size(1), n = a.numel() / k;
  auto shape = a.sizes().vec();
  shape.back() = m;
  auto out = torch::empty(shape, a.options());
  product(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n, k, m);
  return out;
}
"""
_LINEAR = """
torch::Tensor run(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  const int64_t n = x.size(0), k = x.size(1), m = weight.size(1);
  auto full = torch::empty({n, m}, x.options());
  float* y = full.data_ptr<float>();
  const float* o = bias.data_ptr<float>();
  product(x.data_ptr<float>(), weight.data_ptr<float>(), y, n, k, m);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) y[i * m + j] += o[j];
  %s
}
"""
_MODEL_LINEAR = """    def __init__(self, inputs, outputs{more}):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return ext.run(x, self.linear.weight.t().contiguous(), self.linear.bias)
"""
_HINGE = """
torch::Tensor run(torch::Tensor p, torch::Tensor t) {
  const int64_t n = p.size(0), m = p.size(1);
  const float *x = p.data_ptr<float>(), *y = t.data_ptr<float>();
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    float row = 0;
    for (int64_t j = 0; j < m; ++j) row += std::max(0.0f, 1.0f - x[i * m + j] * y[j]);
    total += row;
  }
  return torch::full({}, total / (static_cast<double>(n) * m), p.options());
}
"""
_DIAGONAL = """
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  auto out = torch::empty_like(b);
  const int64_t n = b.size(0), m = b.size(1);
  const float *x = a.data_ptr<float>(), *y = b.data_ptr<float>();
  float* z = out.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) z[i * m + j] = x[i] * y[i * m + j];
  return out;
}
"""
_SUM_SCALE = """
torch::Tensor run(torch::Tensor x, torch::Tensor weight, double scale) {
  const int64_t n = x.size(0), k = x.size(1), m = weight.size(0);
  auto column = torch::zeros({k, 1}, x.options());
  float* v = column.data_ptr<float>();
  const float* w = weight.data_ptr<float>();
  for (int64_t h = 0; h < m; ++h)
    for (int64_t i = 0; i < k; ++i) v[i] += w[h * k + i];
  auto out = torch::empty({n, 1}, x.options());
  float* z = out.data_ptr<float>();
  product(x.data_ptr<float>(), v, z, n, k, 1);
  for (int64_t i = 0; i < n; ++i) z[i] *= 0.5 * scale;
  return out;
}
"""
_MODEL_SUM_SCALE = """    def __init__(self, input_size, hidden_size, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scale = scale

    def forward(self, x):
        return ext.run(x, self.weight, float(self.scale))
"""
_MODEL_OFFSET = """    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.offset = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return ext.run(x, self.linear.weight.t().contiguous(), self.offset)
"""
_LEAKY = "for (int64_t i = 0; i < n * m; ++i) { y[i] *= 2; y[i] = y[i] > 0 ? y[i] : 0.1f * y[i]; }\n  return full;"
_RELU = "for (int64_t i = 0; i < n * m; ++i) y[i] = std::max(0.0f, y[i]);\n  return full;"
_SIGMOID_SUM = """auto out = torch::zeros({n, 1}, x.options());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) out.data_ptr<float>()[i] += 1 / (1 + std::exp(-y[i * m + j]));
  return out;"""
_GELU_SOFTMAX = """for (int64_t i = 0; i < n; ++i) {
    float* row = y + i * m;
    float most = -1e30f, total = 0;
    for (int64_t j = 0; j < m; ++j) {
      row[j] = 0.5f * row[j] * (1 + std::erf(row[j] * 0.70710678f));
      most = std::max(most, row[j]);
    }
    for (int64_t j = 0; j < m; ++j) total += row[j] = std::exp(row[j] - most);
    for (int64_t j = 0; j < m; ++j) row[j] /= total;
  }
  return full;"""


def _file(name: str, cpp: str, model: str) -> str:
    return _FILE.format(name=f"bench_{name}", cpp=cpp, model=model.rstrip())


def _of(task: str, cpp: str, model: str) -> Source:
    return Source(task, task, _file(task.lower(), cpp, model))


def _product(task: str, arguments: str) -> Source:
    return _of(task, _MATMUL, _PLAIN.format(arguments=arguments))


_T4 = _of("T4", _DIAGONAL, _PLAIN.format(arguments="a, b"))
CPU = (
    _of("T1", _HINGE, _PLAIN.format(arguments="a, b")),
    _product("T2", "a, b"),
    _T4,
    _product("T5", "a, b"),
    _product("T8", "a.t().contiguous(), b"),
    _product("T9", "a, b.t().contiguous()"),
    _product("T10", "a.t().contiguous(), b.t().contiguous()"),
    _of("T11", _LINEAR % _LEAKY, _MODEL_LINEAR.format(more=", factor, slope")),
    _of("T12", _SUM_SCALE, _MODEL_SUM_SCALE),
    _of("T15", _LINEAR % _SIGMOID_SUM, _MODEL_LINEAR.format(more="")),
    _of("T17", _LINEAR % _RELU, _MODEL_OFFSET),
    _of("T18", _LINEAR % _GELU_SOFTMAX, _MODEL_LINEAR.format(more="")),
    Source("compile_error", "T4", _T4.text.replace("x[i] * y[i * m + j]", "x[i] * y[i * m + q]"), Status.COMPILE_ERROR),
    Source("wrong_value", "T4", _T4.text.replace("x[i] * y[", "x[j] * y["), Status.WRONG_VALUE),
    Source("crash", "T4", _T4.text.replace("= x[i]", "= x[i + (1ll << 40)]"), Status.DEVICE_FAULT),
)


def gpu() -> tuple[Source, ...]:
    """Correct kernels of every task and style that there is, then the wrong ones."""
    from specgen.llm.synthetic.gpu_stock import WRONG, correct

    return tuple(Source(kernel.name, kernel.task, kernel.source, kernel.status) for kernel in (*correct(), *WRONG))
