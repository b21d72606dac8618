"""The third part of the CPU corpus: more ways to take, give and fail, and sources that go through ``load``."""

from __future__ import annotations

import torch

from benchmarks.build_cases import IMAGE, SQUARE, A, B, Call, Case, Raises, tensor
from benchmarks.build_more_cases import ALL_CASES

ROWS = tensor(64, 256, seed=5)

EXTRA_CASES: list[Case] = [
    Case(
        "fused_rows",
        """
#include <cmath>
#include <algorithm>
torch::Tensor layer_norm_gelu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
    TORCH_CHECK(x.dim() == 2 && weight.size(0) == x.size(1), "weight must have ", x.size(1), " values");
    auto out = torch::empty_like(x);
    const auto* in = x.data_ptr<float>();
    const auto *w = weight.data_ptr<float>(), *b = bias.data_ptr<float>();
    auto* o = out.data_ptr<float>();
    const int64_t rows = x.size(0), width = x.size(1);
    for (int64_t r = 0; r < rows; ++r) {
        const float* p = in + r * width;
        float mean = 0, var = 0;
        for (int64_t c = 0; c < width; ++c) mean += p[c];
        mean /= width;
        for (int64_t c = 0; c < width; ++c) var += (p[c] - mean) * (p[c] - mean);
        const float rstd = 1.0f / std::sqrt(var / width + static_cast<float>(eps));
        for (int64_t c = 0; c < width; ++c) {
            const float y = (p[c] - mean) * rstd * w[c] + b[c];
            o[r * width + c] = 0.5f * y * (1.0f + std::erf(y * 0.70710678f));
        }
    }
    return out;
}
""",
        (
            Call(lambda m: m.layer_norm_gelu(A, B[0, :4], B[0], 1e-5), Raises("RuntimeError", "must have 5 values")),
            Call(
                lambda m: m.layer_norm_gelu(ROWS, ROWS[0].clone(), ROWS[1].clone(), 1e-5),
                lambda: torch.nn.functional.gelu(torch.layer_norm(ROWS, (256,), ROWS[0], ROWS[1])),
            ),
        ),
        ["layer_norm_gelu"],
    ),
    Case(
        "standard_exceptions",
        """
int fail(int kind) {
    switch (kind) {
        case 0: return std::vector<int>(3).at(5);
        case 1: throw std::bad_alloc();
        case 2: throw std::domain_error("domain");
        case 3: throw std::out_of_range("range");
        case 4: throw std::overflow_error("overflow");
        case 5: throw 7;
        case 6: throw std::length_error("");
        case 7: TORCH_CHECK_NOT_IMPLEMENTED(false, "not yet");
        case 8: TORCH_CHECK_TYPE(false, "type ", 1.5);
        default: return kind;
    }
}
""",
        (
            Call(lambda m: m.fail(0), Raises("RuntimeError", "vector::_M_range_check")),
            Call(lambda m: m.fail(1), Raises("RuntimeError", "bad_alloc")),
            Call(lambda m: m.fail(2), Raises("RuntimeError", "domain")),
            Call(lambda m: m.fail(3), Raises("RuntimeError", "range")),
            Call(lambda m: m.fail(4), Raises("RuntimeError", "overflow")),
            Call(lambda m: m.fail(5), Raises("RuntimeError", "Caught an unknown exception!")),
            Call(lambda m: m.fail(6), Raises("RuntimeError", "")),
            Call(lambda m: m.fail(7), Raises("NotImplementedError", "not yet")),
            Call(lambda m: m.fail(8), Raises("TypeError", "type 1.5")),
            Call(lambda m: m.fail(9), lambda: 9),
        ),
        ["fail"],
    ),
    Case(
        "overloads",
        """
int64_t of_int(int64_t x) { return x + 1; }
double of_double(double x) { return x / 2; }
at::Tensor of_tensor(const at::Tensor& x) { return x.neg(); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("f", &of_int, "an integer");
    m.def("f", &of_double, "a number");
    m.def("f", &of_tensor, "a tensor");
}
""",
        (
            Call(lambda m: [m.f(1), m.f(1.0), m.f(A)], lambda: [2, 0.5, -A]),
            Call(lambda m: m.f("x"), Raises("TypeError", "2. (arg0:")),
            Call(lambda m: m.f.__doc__.splitlines()[0], lambda: "f(*args, **kwargs)"),
        ),
    ),
    Case(
        "views",
        """
std::vector<at::Tensor> views(at::Tensor x) {
    auto c = x.chunk(2, 1);
    return {x.narrow(0, 1, 2), x.t(), x.expand({2, x.size(0), x.size(1)}), c[1], x.select(0, 0), x.squeeze(),
            x.unsqueeze(-1).flatten(0, 1), x.view({-1}), x.as_strided({2, 2}, {1, 2}), torch::stack({x, x}, 1)};
}
std::vector<int64_t> strides(at::Tensor x) { return x.strides().vec(); }
bool contiguous(at::Tensor x) { return x.is_contiguous(at::MemoryFormat::ChannelsLast); }
std::tuple<int64_t, int64_t, int64_t, bool> facts(at::Tensor x) {
    return {x.storage_offset(), x.element_size(), x.ndimension(), x.is_floating_point()};
}
""",
        (
            Call(lambda m: m.views(A)[:4], lambda: [A[1:3], A.t(), A.expand(2, 6, 5), A.chunk(2, 1)[1]]),
            Call(lambda m: m.views(A)[9].shape, lambda: torch.Size([6, 2, 5])),
            Call(lambda m: m.views(A.t()), Raises("RuntimeError", "view size is not compatible")),
            Call(lambda m: [m.strides(A.t()), m.contiguous(IMAGE)], lambda: [[1, 5], False]),
            Call(lambda m: m.contiguous(IMAGE.to(memory_format=torch.channels_last)), lambda: True),
            Call(lambda m: m.facts(A[1:]), lambda: (5, 4, 2, True)),
        ),
        ["views", "strides", "contiguous", "facts"],
    ),
    Case(
        "switch_on_type",
        """
std::string name(const at::Tensor& x) {
    switch (x.scalar_type()) {
        case at::ScalarType::Float: return "float";
        case torch::kFloat64: return "double";
        case at::kHalf: return "half";
        case torch::kInt64: return "long";
        case torch::kBool: return "bool";
        default: break;
    }
    return std::string(c10::toString(x.scalar_type())) + "?";
}
at::Tensor cast(at::Tensor x) {
    if (x.dtype() == torch::kFloat16 || x.scalar_type() == torch::kBFloat16) return x.to(torch::kFloat32);
    if (at::isIntegralType(x.scalar_type(), /*includeBool=*/true)) return x.to(at::kDouble);
    return x.toType(torch::kHalf);
}
""",
        (
            Call(lambda m: [m.name(A), m.name(A.double()), m.name(A.int())], lambda: ["float", "double", "Int?"]),
            Call(lambda m: [m.cast(A.bfloat16()), m.cast(A > 0), m.cast(A)], lambda: _casts()),
        ),
        ["name", "cast"],
    ),
    Case(
        "half_arithmetic",
        """
torch::Tensor axpy(torch::Tensor x, torch::Tensor y, float a) {
    auto out = torch::empty_like(x);
    const at::Half* p = x.data_ptr<at::Half>();
    const c10::Half* q = y.data_ptr<c10::Half>();
    at::Half* o = out.data_ptr<at::Half>();
    for (int64_t i = 0; i < x.numel(); ++i) o[i] = at::Half(a) * p[i] + q[i];
    return out;
}
""",
        (
            Call(lambda m: m.axpy(A.half(), B.half(), 2.0), lambda: 2 * A.half() + B.half()),
            Call(
                lambda m: m.axpy(A, B.half(), 2.0), Raises("RuntimeError", "expected scalar type Half but found Float")
            ),
            Call(lambda m: m.axpy(A.half(), B.half(), "2"), Raises("TypeError", "incompatible function arguments")),
        ),
        ["axpy"],
    ),
    Case(
        "reductions",
        """
std::vector<at::Tensor> reduce(at::Tensor x) {
    return {x.sum(), x.sum(0), x.mean({0, 1}), x.amax(1), std::get<1>(x.min(0)), x.argmax(), x.prod(1), x.norm(),
            x.std(1), at::logsumexp(x, 1), x.cumsum(1), torch::linspace(0, 1, 5)};
}
double total(at::Tensor x) { return x.sum().item<double>() + x.max().item().toDouble(); }
""",
        (
            Call(lambda m: m.reduce(A)[:4], lambda: [A.sum(), A.sum(0), A.mean(), A.amax(1)]),
            Call(lambda m: m.reduce(A)[8:], lambda: _reduced()),
            Call(lambda m: m.total(A), lambda: float(A.sum()) + float(A.max())),
            Call(lambda m: m.reduce(A.int()), Raises("RuntimeError", "mean")),
            Call(lambda m: m.total(torch.empty(0)), Raises("RuntimeError", "max()")),
        ),
        ["reduce", "total"],
    ),
    Case(
        "scalars",
        """
at::Tensor add(at::Tensor x, at::Scalar s) { return x.add(s); }
at::Tensor fill(int64_t n, double v) { return torch::full({n, 2}, v, torch::dtype(torch::kDouble)); }
at::Tensor mixed(at::Tensor x) { return (2 * x - 1) / 3 + x.pow(2).clamp_max(1.5) - torch::sigmoid(x).mul_(2); }
bool positive(at::Tensor x) { return (x > 0).all().item<bool>(); }
""",
        (
            Call(lambda m: m.add(A, 2.5), lambda: A + 2.5),
            Call(lambda m: m.add(A.long(), 2), lambda: A.long() + 2),
            Call(lambda m: m.fill(3, 1.25), lambda: torch.full((3, 2), 1.25, dtype=torch.float64)),
            Call(lambda m: m.fill(-1, 1.0), Raises("RuntimeError", "negative")),
            Call(lambda m: m.mixed(A), lambda: (2 * A - 1) / 3 + A.pow(2).clamp_max(1.5) - 2 * torch.sigmoid(A)),
            Call(lambda m: [m.positive(A), m.positive(A.abs() + 1)], lambda: [False, True]),
            Call(lambda m: m.positive(3.0), Raises("TypeError", "Invoked with: 3.0")),
        ),
        ["add", "fill", "mixed", "positive"],
        route="stock",
    ),
    Case(
        "integers",
        """
torch::Tensor dot_int8(torch::Tensor a, torch::Tensor b) {
    auto out = torch::zeros({a.size(0)}, a.options().dtype(torch::kInt32));
    const int8_t *p = a.data_ptr<int8_t>(), *q = b.data_ptr<int8_t>();
    for (int64_t r = 0; r < a.size(0); ++r)
        for (int64_t c = 0; c < a.size(1); ++c)
            out.data_ptr<int32_t>()[r] += int32_t(p[r * a.size(1) + c]) * q[r * a.size(1) + c];
    return out;
}
torch::Tensor flags(torch::Tensor x) {
    auto out = torch::empty(x.sizes(), torch::TensorOptions().dtype(torch::kBool).device(x.device()));
    for (int64_t i = 0; i < x.numel(); ++i) out.data_ptr<bool>()[i] = x.data_ptr<uint8_t>()[i] & 1;
    return out;
}
""",
        (
            Call(lambda m: m.dot_int8(_bytes(), _bytes()), lambda: (_bytes().int() ** 2).sum(1).int()),
            Call(lambda m: m.dot_int8(A, A), Raises("RuntimeError", "expected scalar type Char but found Float")),
            Call(lambda m: m.flags(torch.arange(6, dtype=torch.uint8)), lambda: torch.arange(6) % 2 == 1),
        ),
        ["dot_int8", "flags"],
    ),
    Case(
        "undefined_and_empty",
        """
at::Tensor none() { return at::Tensor(); }
bool defined(at::Tensor x) { return x.defined(); }
at::Tensor empty(at::Tensor x) { return torch::empty({0, x.size(1)}, x.options()); }
int64_t rank(at::Tensor x) { return x.dim(); }
""",
        (
            Call(lambda m: m.none(), lambda: None),
            Call(lambda m: m.defined(A), lambda: True),
            Call(lambda m: m.defined(None), Raises("TypeError", "Invoked with: None")),
            Call(lambda m: m.empty(A), lambda: A[:0]),
            Call(lambda m: m.empty(A[0]), Raises("IndexError", "Dimension out of range")),
        ),
        ["none", "defined", "empty", "rank"],
    ),
    Case(
        "recurrence",
        """
#include <vector>
struct Cell {
    const float *w, *u;
    int64_t n;
    void step(const float* x, float* h) const {
        std::vector<float> next(n);
        for (int64_t i = 0; i < n; ++i) {
            float s = 0;
            for (int64_t j = 0; j < n; ++j) s += w[i * n + j] * x[j] + u[i * n + j] * h[j];
            next[i] = std::tanh(s);
        }
        std::copy(next.begin(), next.end(), h);
    }
};
torch::Tensor rnn(torch::Tensor xs, torch::Tensor w, torch::Tensor u) {
    auto h = torch::zeros({w.size(0)}, xs.options());
    const Cell cell{w.data_ptr<float>(), u.data_ptr<float>(), w.size(0)};
    for (int64_t t = 0; t < xs.size(0); ++t) cell.step(xs.data_ptr<float>() + t * xs.size(1), h.data_ptr<float>());
    return h;
}
""",
        (Call(lambda m: m.rnn(SQUARE, SQUARE * 0.1, SQUARE * 0.2), lambda: _recurred()),),
        ["rnn"],
        ("-O2",),
    ),
    Case(
        "from_files",
        "",
        (
            Call(lambda m: m.forward(A), lambda: A * 3),
            Call(lambda m: m.forward(A.double()), Raises("RuntimeError", "expected scalar type Float")),
            Call(lambda m: m.forward(), Raises("TypeError", "forward(): incompatible function arguments")),
        ),
        files={
            "factor.h": "#pragma once\nvoid triple(const float* in, float* out, long n);\n",
            "triple.cpp": '#include "factor.h"\nvoid triple(const float* in, float* out, long n) {\n'
            "    for (long i = 0; i < n; ++i) out[i] = 3 * in[i];\n}\n",
            "binding.cpp": '#include <torch/extension.h>\n#include "factor.h"\n'
            "torch::Tensor forward(torch::Tensor x) {\n    auto y = torch::empty_like(x);\n"
            "    triple(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());\n    return y;\n}\n"
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }\n',
        },
    ),
]

EVERY_CASE: list[Case] = [*ALL_CASES, *EXTRA_CASES]


def _casts() -> list[torch.Tensor]:
    return [A.bfloat16().float(), (A > 0).double(), A.half()]


def _reduced() -> list[torch.Tensor]:
    return [A.std(), A.logsumexp(1), A.cumsum(1), torch.linspace(0, 1, 5)]


def _bytes() -> torch.Tensor:
    return (A * 40).to(torch.int8)


def _recurred() -> torch.Tensor:
    h = torch.zeros(8)
    for x in SQUARE:
        h = torch.tanh(SQUARE * 0.1 @ x + SQUARE * 0.2 @ h)
    return h
