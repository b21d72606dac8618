"""Honest CPU kernels of the tasks with parameters: linear layers (T11 to T13, T15, T17 to T19), convolutions, attention.

Parameters are kept under the reference's names (``same``: a state dict equals), under others (``renamed``), or as
transposed copies (``turned``); all are made in the reference's order, so that KernelBench's seed gives the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.honest.files import FAST, FASTER, Kernel, candidate
from benchmarks.honest.gemms import GEMMS

_LINEAR = """
static void linear(const torch::Tensor& x, const torch::Tensor& w, const float* bias, float* out) {
  const int64_t n = x.size(0), k = x.size(1), m = w.size(0);
  gemm(x.data_ptr<float>(), k, 1, w.data_ptr<float>(), 1, k, out, n, m, k);
  if (bias)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) out[i * m + j] += bias[j];
}
"""
_EACH = "for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j)"
_FORWARD = """
torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor bias{more}) {{
  const int64_t n = x.size(0), m = w.size(0);
  auto out = torch::empty({{n, m}}, x.options());
  float* po = out.data_ptr<float>();
  linear(x, w, bias.numel() ? bias.data_ptr<float>() : nullptr, po);
  {after}
}}
"""
_BATCH_NORM = """
static void normalise(float* p, int64_t n, int64_t m, const float* weight, const float* bias, float eps) {
  std::vector<double> sum(m, 0.0), square(m, 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) sum[j] += p[i * m + j];
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) {
      const double d = p[i * m + j] - sum[j] / n;
      square[j] += d * d;
    }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      p[i * m + j] = static_cast<float>((p[i * m + j] - sum[j] / n) / std::sqrt(square[j] / n + eps)) * weight[j] + bias[j];
}
"""


@dataclass(frozen=True)
class Task:
    """A linear task: its constructor, its parameters' construction, C++ after the product, and forward's call."""

    init: str
    same: str  # the reference's own modules
    renamed: str
    more: str  # further arguments of run
    after: str
    call: str  # of forward, with W, B and the rest named as ``same`` has them
    names: tuple[tuple[str, str], ...]  # what ``renamed`` calls them
    before: str = ""


_L = ("self.linear = nn.Linear(inputs, outputs)", "self.fc = nn.Linear(inputs, outputs)")
_LN = (("self.linear.", "self.fc."),)
TASKS = {
    "T11": Task(
        "inputs, outputs, factor, slope", f"{_L[0]}\nself.factor, self.slope = factor, slope",
        f"{_L[1]}\nself.factor, self.slope = factor, slope", ", double factor, double slope",
        f"const float f = factor, s = slope;\n  {_EACH} {{\n      const float v = po[i * m + j] * f;\n"
        "      po[i * m + j] = v > 0 ? v : v * s;\n    }\n  return out;",
        "ext.run(x, self.linear.weight, self.linear.bias, self.factor, self.slope)", _LN,
    ),
    "T12": Task(
        "inputs, outputs, scale", "self.weight = nn.Parameter(torch.randn(outputs, inputs))\nself.scale = scale",
        "self.w = nn.Parameter(torch.randn(outputs, inputs))\nself.scale = scale", ", double scale",
        "auto sums = torch::empty({n, 1}, x.options());\n  for (int64_t i = 0; i < n; ++i) {\n    double sum = 0;\n"
        "    for (int64_t j = 0; j < m; ++j) sum += po[i * m + j];\n"
        "    sums.data_ptr<float>()[i] = static_cast<float>(sum / 2 * scale);\n  }\n  return sums;",
        "ext.run(x, self.weight, torch.empty(0), self.scale)", (("self.weight", "self.w"),),
    ),
    "T13": Task(
        "inputs, outputs",
        f"{_L[0]}\nself.scale = nn.Parameter(torch.randn(outputs))\nself.norm = nn.BatchNorm1d(outputs)",
        f"{_L[1]}\nself.s = nn.Parameter(torch.randn(outputs))\nself.bn = nn.BatchNorm1d(outputs)",
        ", torch::Tensor scale, torch::Tensor weight, torch::Tensor beta, double eps",
        f"{_EACH} po[i * m + j] *= scale.data_ptr<float>()[j];\n"
        "  normalise(po, n, m, weight.data_ptr<float>(), beta.data_ptr<float>(), eps);\n  return out;",
        "ext.run(x, self.linear.weight, self.linear.bias, self.scale, self.norm.weight, self.norm.bias, self.norm.eps)",
        (*_LN, ("self.scale", "self.s"), ("self.norm", "self.bn")), _BATCH_NORM,
    ),
    "T15": Task(
        "inputs, outputs", _L[0], _L[1], "",
        "auto sums = torch::empty({n, 1}, x.options());\n  for (int64_t i = 0; i < n; ++i) {\n    double sum = 0;\n"
        "    for (int64_t j = 0; j < m; ++j) sum += 1.0f / (1.0f + std::exp(-po[i * m + j]));\n"
        "    sums.data_ptr<float>()[i] = static_cast<float>(sum);\n  }\n  return sums;",
        "ext.run(x, self.linear.weight, self.linear.bias)", _LN,
    ),
    "T17": Task(
        "inputs, outputs",
        "self.linear = nn.Linear(inputs, outputs, bias=False)\nself.offset = nn.Parameter(torch.randn(outputs))",
        "self.fc = nn.Linear(inputs, outputs, bias=False)\nself.o = nn.Parameter(torch.randn(outputs))", "",
        f"{_EACH} po[i * m + j] = std::max(0.0f, po[i * m + j]);\n  return out;",
        "ext.run(x, self.linear.weight, self.offset)", (*_LN, ("self.offset", "self.o")),
    ),
    "T18": Task(
        "inputs, outputs", _L[0], _L[1], "",
        "for (int64_t i = 0; i < n; ++i) {\n    float* row = po + i * m;\n    float most = -1e30f;\n    double sum = 0;\n"
        "    for (int64_t j = 0; j < m; ++j) {\n"
        "      row[j] = 0.5f * row[j] * (1.0f + std::erf(row[j] * 0.70710678118654752f));\n"
        "      most = std::max(most, row[j]);\n    }\n"
        "    for (int64_t j = 0; j < m; ++j) sum += row[j] = std::exp(row[j] - most);\n"
        "    for (int64_t j = 0; j < m; ++j) row[j] = static_cast<float>(row[j] / sum);\n  }\n  return out;",
        "ext.run(x, self.linear.weight, self.linear.bias)", _LN,
    ),
}  # fmt: skip


def _class(init: str, making: str, forward: str) -> str:
    made = making.replace("\n", "\n        ")
    body = forward.replace("\n", "\n        ")
    return f"""    def __init__(self, {init}):
        super().__init__()
        {made}

    def forward(self, x):
        {body}
"""


def linear(task: str, gemm: str, kept: str, style: str, flags: tuple[str, ...] = FAST) -> Kernel:
    """One task by one way to multiply, its parameters kept in one way."""
    given = TASKS[task]
    cpp = GEMMS[gemm] + _LINEAR + given.before + _FORWARD.format(more=given.more, after=given.after)
    making, call = given.same, f"return {given.call}"
    if kept == "renamed":
        making = given.renamed
        for old, new in given.names:
            call = call.replace(old, new)
    source = candidate(cpp, ("run",), _class(given.init, making, call), style=style, flags=flags)
    return Kernel(f"{task} {gemm}, {kept}", task, source)


_EPILOGUE = """
torch::Tensor leaky(torch::Tensor x, double factor, double slope) {
  auto out = torch::empty_like(x);
  const float *px = x.data_ptr<float>(), f = factor, s = slope;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float v = px[i] * f;
    out.data_ptr<float>()[i] = v > 0 ? v : v * s;
  }
  return out;
}
"""
_ROWDOT = """
torch::Tensor column_sums(torch::Tensor w) {
  auto out = torch::zeros({w.size(1)}, w.options());
  for (int64_t i = 0; i < w.size(0); ++i)
    for (int64_t j = 0; j < w.size(1); ++j) out.data_ptr<float>()[j] += w.data_ptr<float>()[i * w.size(1) + j];
  return out;
}
torch::Tensor dots(torch::Tensor x, torch::Tensor s, double scale) {
  auto out = torch::empty({x.size(0), 1}, x.options());
  for (int64_t i = 0; i < x.size(0); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < x.size(1); ++j) sum += (double)x.data_ptr<float>()[i * x.size(1) + j] * s.data_ptr<float>()[j];
    out.data_ptr<float>()[i] = static_cast<float>(sum * scale / 2);
  }
  return out;
}
"""
_TURNED = """
torch::Tensor run(torch::Tensor x, torch::Tensor wt, torch::Tensor offset) {  // wt: [inputs, outputs]
  const int64_t n = x.size(0), k = x.size(1), m = wt.size(1);
  auto out = torch::empty({n, m}, x.options());
  gemm(x.data_ptr<float>(), k, 1, wt.data_ptr<float>(), m, 1, out.data_ptr<float>(), n, m, k);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) {
      float& v = out.data_ptr<float>()[i * m + j];
      v = std::max(0.0f, v + offset.data_ptr<float>()[j]);
    }
  return out;
}
"""
_MLP = """
torch::Tensor layer(torch::Tensor x, torch::Tensor w, torch::Tensor bias, bool relu) {
  const int64_t n = x.size(0), m = w.size(0);
  auto out = torch::empty({n, m}, x.options());
  linear(x, w, bias.data_ptr<float>(), out.data_ptr<float>());
  if (relu)
    for (int64_t i = 0; i < n * m; ++i) out.data_ptr<float>()[i] = std::max(0.0f, out.data_ptr<float>()[i]);
  return out;
}
torch::Tensor mlp(torch::Tensor x, torch::Tensor w0, torch::Tensor b0, torch::Tensor w1, torch::Tensor b1,
                  torch::Tensor w2, torch::Tensor b2) {
  return layer(layer(layer(x, w0, b0, true), w1, b1, true), w2, b2, false);
}
"""
_MLP_SAME = "self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))"
_MLP_OTHER = (
    "self.a = nn.Linear(inputs, hidden)\nself.b = nn.Linear(hidden, hidden)\nself.c = nn.Linear(hidden, outputs)"
)
_MLP_CALL = "a, b, c = self.layers[0], self.layers[2], self.layers[4]\n"


def special_linear() -> Iterator[Kernel]:
    """A library's product with an epilogue of one's own, algebra in forward, other layouts, several layers."""
    yield Kernel("T11 torch's linear, own activation", "T11", candidate(_EPILOGUE, ("leaky",), _class(
        TASKS["T11"].init, TASKS["T11"].same, "return ext.leaky(self.linear(x), self.factor, self.slope)")))  # fmt: skip
    yield Kernel("T12 sums of columns first", "T12", candidate(_ROWDOT, ("column_sums", "dots"), _class(
        TASKS["T12"].init, TASKS["T12"].same, "return ext.dots(x, ext.column_sums(self.weight), self.scale)"), flags=FASTER))  # fmt: skip
    yield Kernel("T12 sums of columns by torch", "T12", candidate(_ROWDOT, ("column_sums", "dots"), _class(
        TASKS["T12"].init, TASKS["T12"].renamed, "return ext.dots(x, self.w.sum(0), self.scale)"), style="pybind"))  # fmt: skip
    turned = ("linear = nn.Linear(inputs, outputs, bias=False)\nself.wt = nn.Parameter(linear.weight.detach().t().contiguous())\n"
              "self.offset = nn.Parameter(torch.randn(outputs))")  # fmt: skip
    yield Kernel("T17 transposed parameter", "T17", candidate(GEMMS["panels"] + _TURNED, ("run",), _class(
        TASKS["T17"].init, turned, "return ext.run(x, self.wt, self.offset)")))  # fmt: skip
    yield Kernel("T17 transposed in each call", "T17", candidate(GEMMS["rows"] + _TURNED, ("run",), _class(
        TASKS["T17"].init, TASKS["T17"].same, "return ext.run(x, self.linear.weight.t().contiguous(), self.offset)")))  # fmt: skip
    for gemm, style in (("panels", "inline"), ("dots", "pybind"), ("tiled", "lazy"), ("tf32", "inline")):
        yield Kernel(f"T19 {gemm}, layer by layer", "T19", candidate(GEMMS[gemm] + _LINEAR + _MLP, ("layer", "mlp"), _class(
            "inputs, hidden, outputs", _MLP_SAME, _MLP_CALL +
            "h = ext.layer(x, a.weight, a.bias, True)\nh = ext.layer(h, b.weight, b.bias, True)\nreturn ext.layer(h, c.weight, c.bias, False)"),
            style=style))  # fmt: skip
    yield Kernel("T19 one call, renamed", "T19", candidate(GEMMS["four_rows"] + _LINEAR + _MLP, ("mlp",), _class(
        "inputs, hidden, outputs", _MLP_OTHER,
        "return ext.mlp(x, self.a.weight, self.a.bias, self.b.weight, self.b.bias, self.c.weight, self.c.bias)")))  # fmt: skip


_CONV = """
static void convolve(const float* x, const float* w, const float* bias, float* out, int64_t batch, int64_t channels,
                     int64_t filters, int64_t high, int64_t wide) {
  const int64_t oh = high - 2, ow = wide - 2;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t f = 0; f < filters; ++f) {
      float* plane = out + (b * filters + f) * oh * ow;
      std::fill(plane, plane + oh * ow, bias[f]);
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t dy = 0; dy < 3; ++dy)
          for (int64_t dx = 0; dx < 3; ++dx) {
            const float k = w[((f * channels + c) * 3 + dy) * 3 + dx];
            for (int64_t y = 0; y < oh; ++y) {
              const float* line = x + ((b * channels + c) * high + y + dy) * wide + dx;
              float* row = plane + y * ow;
              for (int64_t i = 0; i < ow; ++i) row[i] += k * line[i];
            }
          }
    }
}
"""
_IM2COL = """
static void convolve(const float* x, const float* w, const float* bias, float* out, int64_t batch, int64_t channels,
                     int64_t filters, int64_t high, int64_t wide) {
  const int64_t oh = high - 2, ow = wide - 2, k = channels * 9;
  std::vector<float> columns(k * oh * ow);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < k; ++r)
      for (int64_t y = 0; y < oh; ++y)
        std::memcpy(columns.data() + (r * oh + y) * ow,
                    x + ((b * channels + r / 9) * high + y + r % 9 / 3) * wide + r % 3, ow * sizeof(float));
    gemm(w, k, 1, columns.data(), oh * ow, 1, out + b * filters * oh * ow, filters, oh * ow, k);
    for (int64_t f = 0; f < filters; ++f)
      for (int64_t i = 0; i < oh * ow; ++i) out[(b * filters + f) * oh * ow + i] += bias[f];
  }
}
"""
_CONV_RUN = """
torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor bias, torch::Tensor gamma, torch::Tensor beta,
                  double eps, double factor) {
  const int64_t batch = x.size(0), channels = x.size(1), high = x.size(2), wide = x.size(3), filters = w.size(0);
  auto out = torch::empty({batch, filters, high - 2, wide - 2}, x.options());
  float* po = out.data_ptr<float>();
  const int64_t plane = (high - 2) * (wide - 2);
  convolve(x.data_ptr<float>(), w.data_ptr<float>(), bias.data_ptr<float>(), po, batch, channels, filters, high, wide);
  if (MISH)
    for (int64_t i = 0; i < out.numel(); ++i) po[i] *= std::tanh(po[i] > 20 ? po[i] : std::log1p(std::exp(po[i])));
  for (int64_t f = 0; f < filters; ++f) {
    double sum = 0, square = 0;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < plane; ++i) sum += po[(b * filters + f) * plane + i];
    const double mean = sum / (batch * plane);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < plane; ++i) {
        const double d = po[(b * filters + f) * plane + i] - mean;
        square += d * d;
      }
    const double slope = gamma.data_ptr<float>()[f] / std::sqrt(square / (batch * plane) + eps);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < plane; ++i) {
        float& v = po[(b * filters + f) * plane + i];
        v = static_cast<float>(((v - mean) * slope + beta.data_ptr<float>()[f]) * factor);
      }
  }
  return out;
}
"""
_BN_RUN = """
torch::Tensor scale(torch::Tensor x, double factor) {
  auto out = torch::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) out.data_ptr<float>()[i] = x.data_ptr<float>()[i] * (float)factor;
  return out;
}
"""
_CONV_CALL = (
    "c, n = self.convolution, self.norm\nreturn ext.run(x, c.weight, c.bias, n.weight, n.bias, n.eps, {factor})"
)
_CONV_TASKS = {
    "T14": ("channels, filters, kernel", "true", "1.0", ""),
    "T16": ("channels, filters, kernel, factor", "false", "self.factor", "\nself.factor = factor"),
}


def convolutions() -> Iterator[Kernel]:
    """T14 and T16."""
    for task, (init, mish, factor, more) in _CONV_TASKS.items():
        same = f"self.convolution = nn.Conv2d(channels, filters, kernel)\nself.norm = nn.BatchNorm2d(filters){more}"
        call = _CONV_CALL.format(factor=factor)
        renamed = same.replace("self.convolution", "self.conv").replace("self.norm", "self.bn")
        other = call.replace("self.convolution", "self.conv").replace("self.norm", "self.bn")
        run = _CONV_RUN.replace("MISH", mish)
        for name, cpp, style, making, forward, flags in (
            ("direct", _CONV, "inline", same, call, FAST),
            ("direct, renamed", _CONV, "pybind", renamed, other, FASTER),
            ("columns, rows", GEMMS["rows"] + _IM2COL, "lazy", same, call, FAST),
            ("columns, four rows", GEMMS["four_rows"] + _IM2COL, "constants", same, call, FAST),
        ):
            source = candidate(cpp + run, ("run",), _class(init, making, forward), style=style, flags=flags)
            yield Kernel(f"{task} {name}", task, source)
    init, _, _, more = _CONV_TASKS["T16"]
    same = f"self.convolution = nn.Conv2d(channels, filters, kernel)\nself.norm = nn.BatchNorm2d(filters){more}"
    yield Kernel("T16 library with own scale", "T16", candidate(_BN_RUN, ("scale",), _class(
        init, same, "return ext.scale(self.norm(self.convolution(x)), self.factor)")))  # fmt: skip


_ATTENTION = """
torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor bias, int64_t heads) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2), wide = 3 * width, depth = width / heads;
  std::vector<float> all(batch * length * wide);
  gemm(x.data_ptr<float>(), width, 1, w.data_ptr<float>(), 1, width, all.data(), batch * length, wide, width);
  for (int64_t i = 0; i < batch * length; ++i)
    for (int64_t j = 0; j < wide; ++j) all[i * wide + j] += bias.data_ptr<float>()[j];
  auto out = torch::zeros_like(x);
  const float scale = 1.0f / std::sqrt(static_cast<float>(depth));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < length; ++i) {
        const float* q = all.data() + (b * length + i) * wide + h * depth;
        float* o = out.data_ptr<float>() + (b * length + i) * width + h * depth;
        for (int64_t j = 0; j <= i; ++j) {
          const float* k = all.data() + (b * length + j) * wide + width + h * depth;
          float s = 0;
          for (int64_t d = 0; d < depth; ++d) s += q[d] * k[d];
          s *= scale;
          if (s > 0)
            for (int64_t d = 0; d < depth; ++d) o[d] += s * k[width + d];
        }
      }
  return out;
}
"""
_ATTENTION_SAME = (
    "self.heads = heads\nself.project = nn.Linear(width, 3 * width)\n"
    'self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))'
)
_MASKED = """
torch::Tensor masked_relu(torch::Tensor scores, double scale) {
  const int64_t length = scores.size(-1), rows = scores.numel() / length;
  auto out = torch::empty_like(scores);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < length; ++j) {
      const float v = scores.data_ptr<float>()[r * length + j] * (float)scale;
      out.data_ptr<float>()[r * length + j] = j <= r % length && v > 0 ? v : 0.0f;
    }
  return out;
}
"""


def attention() -> Iterator[Kernel]:
    """T20."""
    call = "return ext.run(x, self.project.weight, self.project.bias, self.heads)"
    for gemm, style, flags in (
        ("panels", "inline", FASTER),
        ("tiled", "pybind", FASTER),
        ("dots", "constants", FASTER),
    ):
        yield Kernel(f"T20 {gemm}", "T20", candidate(
            GEMMS[gemm] + _ATTENTION, ("run",), _class("width, heads, length", _ATTENTION_SAME, call), style=style, flags=flags))  # fmt: skip
    renamed = "self.heads = heads\nself.qkv = nn.Linear(width, 3 * width)"
    yield Kernel("T20 renamed, no mask kept", "T20", candidate(
        GEMMS["rows"] + _ATTENTION, ("run",), _class("width, heads, length", renamed, call.replace("project", "qkv")), flags=FASTER))  # fmt: skip
    yield Kernel("T20 library products, own mask and ReLU", "T20", candidate(_MASKED, ("masked_relu",), _class(
        "width, heads, length", _ATTENTION_SAME, "q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.project(x).chunk(3, 2))\n"
        "scores = ext.masked_relu((q @ k.transpose(-2, -1)).contiguous(), q.shape[-1] ** -0.5)\nreturn (scores @ v).transpose(1, 2).flatten(2)")))  # fmt: skip


def kernels() -> Iterator[Kernel]:
    """All of this file."""
    ways = (
        ("panels", "same", "inline", FAST), ("dots", "renamed", "pybind", FAST), ("tiled", "same", "lazy", FASTER),
        ("four_rows", "same", "file", FAST), ("tf32", "same", "constants", FAST),
    )  # fmt: skip
    for task in TASKS:
        for gemm, kept, style, flags in ways:
            if (task, gemm) == ("T12", "tf32"):
                continue  # sums of 1024 products: KernelBench's absolute tolerance of 1e-2 refuses TF32 there
            yield linear(task, gemm, kept, style, flags)
    yield from special_linear()
    yield from convolutions()
    yield from attention()
