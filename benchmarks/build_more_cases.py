"""The second half of the corpus: accessors, dispatch, dtypes, autograd, and sources that the façade must refuse."""

from __future__ import annotations

import torch

from benchmarks.build_cases import CASES, IMAGE, SQUARE, A, B, Call, Case, Raises, tensor

HALF, FLAGS = A.half(), ("-O3", "-march=native", "-fopenmp")

MORE_CASES: list[Case] = [
    Case(
        "accessor",
        """
torch::Tensor trace_rows(torch::Tensor x) {
    auto in = x.accessor<float, 2>();
    auto out = torch::zeros({x.size(1)}, torch::kFloat);
    auto o = out.accessor<float, 1>();
    for (int64_t r = 0; r < in.size(0); r++)
        for (int64_t c = 0; c < in.size(1); c++) o[c] += in[r][c];
    return out;
}
""",
        (
            Call(lambda m: m.trace_rows(A), lambda: A.sum(0)),
            Call(lambda m: m.trace_rows(A.t()), lambda: A.sum(1)),
            Call(
                lambda m: m.trace_rows(IMAGE), Raises("RuntimeError", "TensorAccessor expected 2 dims but tensor has 4")
            ),
        ),
        ["trace_rows"],
    ),
    Case(
        "packed_accessor",
        """
template <typename T> T diagonal(at::PackedTensorAccessor32<T, 2> a) {
    T sum = 0;
    for (int i = 0; i < a.size(0); ++i) sum += a[i][i];
    return sum;
}
double trace(at::Tensor x) { return diagonal<double>(x.packed_accessor32<double, 2>()); }
""",
        (Call(lambda m: m.trace(SQUARE.double()), lambda: float(SQUARE.double().trace())),),
        ["trace"],
    ),
    Case(
        "dispatch_floating",
        """
torch::Tensor softsign(torch::Tensor x) {
    auto y = torch::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softsign", ([&] {
        const scalar_t* p = x.data_ptr<scalar_t>();
        scalar_t* q = y.data_ptr<scalar_t>();
        for (int64_t i = 0; i < x.numel(); ++i) q[i] = p[i] / (scalar_t(1) + std::abs(p[i]));
    }));
    return y;
}
""",
        (
            Call(lambda m: m.softsign(A), lambda: torch.nn.functional.softsign(A)),
            Call(lambda m: m.softsign(A.double()), lambda: torch.nn.functional.softsign(A.double())),
            Call(
                lambda m: m.softsign(A.int()), Raises("NotImplementedError", "\"softsign\" not implemented for 'Int'")
            ),
        ),
        ["softsign"],
    ),
    Case(
        "dispatch_half",
        """
torch::Tensor doubled(torch::Tensor x) {
    auto y = torch::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "doubled", [&] {
        auto p = x.data_ptr<scalar_t>();
        auto q = y.data_ptr<scalar_t>();
        for (int64_t i = 0; i < x.numel(); ++i) q[i] = static_cast<scalar_t>(static_cast<float>(p[i]) * 2.0f);
    });
    return y;
}
""",
        (
            Call(lambda m: m.doubled(HALF), lambda: HALF * 2),
            Call(lambda m: m.doubled(A.bfloat16()), lambda: A.bfloat16() * 2),
        ),
        ["doubled"],
    ),
    Case(
        "dispatch_all",
        """
torch::Tensor plus_one(torch::Tensor x) {
    auto y = torch::zeros_like(x);
    AT_DISPATCH_ALL_TYPES(x.scalar_type(), "plus_one", [&] {
        for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<scalar_t>()[i] = x.data_ptr<scalar_t>()[i] + 1;
    });
    return y;
}
""",
        (
            Call(lambda m: m.plus_one(A.long()), lambda: A.long() + 1),
            Call(lambda m: m.plus_one(A.to(torch.uint8)), lambda: A.to(torch.uint8) + 1),
            Call(lambda m: m.plus_one(A > 0), Raises("NotImplementedError", "not implemented for 'Bool'")),
        ),
        ["plus_one"],
    ),
    Case(
        "number_arguments",
        """
std::vector<double> numbers(int a, int64_t b, float c, bool d, size_t e, std::string f) {
    return {double(a), double(b), double(c), double(d), double(e), double(f.size())};
}
torch::Tensor shaped(std::vector<int64_t> shape, std::vector<float> values) {
    return torch::from_blob(values.data(), at::IntArrayRef(shape), torch::kFloat32).clone();
}
""",
        (
            Call(lambda m: m.numbers(1, 2, 3, True, 5, "six"), lambda: [1.0, 2.0, 3.0, 1.0, 5.0, 3.0]),
            Call(lambda m: m.numbers(1.5, 2, 3, True, 5, "six"), Raises("TypeError", "Invoked with: 1.5, 2, 3")),
            Call(lambda m: m.numbers(1, 2, 3, True, -5, "six"), Raises("TypeError", "arg4:")),
            Call(lambda m: m.numbers(torch.tensor(4), 2, 3, True, 5, ""), lambda: [4.0, 2.0, 3.0, 1.0, 5.0, 0.0]),
            Call(lambda m: m.shaped([2, 2], [1, 2, 3, 4]), lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        ),
        ["numbers", "shaped"],
    ),
    Case(
        "autograd",
        """
torch::Tensor through(torch::Tensor x) { return (x * x).sum(); }
torch::Tensor without(torch::Tensor x) { torch::NoGradGuard guard; return (x * x).sum(); }
torch::Tensor leaf() { return torch::ones({2}, torch::TensorOptions().requires_grad(true)); }
""",
        (
            Call(lambda m: [m.through(_leaf()).requires_grad, m.without(_leaf()).requires_grad], lambda: [True, False]),
            Call(lambda m: torch.autograd.grad(m.through(x := _leaf()), x)[0], lambda: 2 * A),
            Call(lambda m: [m.leaf().requires_grad, m.leaf().detach()], lambda: [True, torch.ones(2)]),
        ),
        ["through", "without", "leaf"],
    ),
    Case(
        "standard_library",
        """
torch::Tensor histogram(torch::Tensor x) {
    std::unordered_map<int64_t, int64_t> seen;
    for (int64_t i = 0; i < x.numel(); ++i) ++seen[x.data_ptr<int64_t>()[i]];
    std::vector<int64_t> keys;
    for (auto& [key, count] : seen) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    auto out = torch::empty({static_cast<int64_t>(keys.size()), 2}, torch::kInt64);
    for (size_t i = 0; i < keys.size(); ++i) {
        out[i][0] = keys[i];
        out[i][1] = seen[keys[i]];
    }
    std::ostringstream text;
    text << std::fixed << out.size(0);
    std::mutex m;
    std::lock_guard<std::mutex> guard(m);
    return out;
}
""",
        (Call(lambda m: m.histogram(torch.tensor([3, 1, 3])), lambda: torch.tensor([[1, 1], [3, 2]])),),
        ["histogram"],
    ),
    Case(
        "parallel_for",
        """
#include <ATen/Parallel.h>
torch::Tensor exp_rows(torch::Tensor x) {
    auto y = torch::empty_like(x);
    auto p = x.data_ptr<float>();
    auto q = y.data_ptr<float>();
    at::parallel_for(0, x.numel(), 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) q[i] = std::exp(p[i]);
    });
    return y;
}
torch::Tensor failing(torch::Tensor x) {
    at::parallel_for(0, 100, 1, [&](int64_t b, int64_t) { TORCH_CHECK(b < 0, "inside"); });
    return x;
}
""",
        (
            Call(lambda m: m.exp_rows(A), lambda: A.exp()),
            Call(lambda m: m.failing(A), Raises("RuntimeError", "inside")),
        ),
        ["exp_rows", "failing"],
        FLAGS,
    ),
    Case(
        "in_place",
        """
void scale_(torch::Tensor& x, double k) { x.mul_(k); }
torch::Tensor fill(torch::Tensor x) {
    x.zero_();
    x.fill_(3);
    x.slice(0, 0, 1).copy_(torch::ones({1, x.size(1)}));
    return x;
}
""",
        (
            Call(lambda m: [m.scale_(x := A.clone(), 2.0), x], lambda: [None, A * 2]),
            Call(lambda m: m.fill(A.clone())[:2, 0], lambda: torch.tensor([1.0, 3.0])),
        ),
        ["scale_", "fill"],
    ),
    Case(
        "tiled_matmul",
        """
constexpr int T = 16;
torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.size(1) == b.size(0), "inner sizes differ: ", a.size(1), " and ", b.size(0));
    const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
    auto c = torch::zeros({M, N}, a.options());
    const float* __restrict__ A = a.data_ptr<float>();
    const float* __restrict__ B = b.data_ptr<float>();
    float* __restrict__ C = c.data_ptr<float>();
    for (int64_t i0 = 0; i0 < M; i0 += T)
        for (int64_t k0 = 0; k0 < K; k0 += T)
            for (int64_t i = i0; i < std::min<int64_t>(i0 + T, M); ++i)
                for (int64_t k = k0; k < std::min<int64_t>(k0 + T, K); ++k)
                    for (int64_t j = 0; j < N; ++j) C[i * N + j] += A[i * K + k] * B[k * N + j];
    return c;
}
""",
        (
            Call(lambda m: m.matmul(tensor(40, 30), tensor(30, 20)), lambda: tensor(40, 30) @ tensor(30, 20)),
            Call(lambda m: m.matmul(A, B), Raises("RuntimeError", "inner sizes differ: 5 and 6")),
        ),
        ["matmul"],
        ("-O3", "-march=native", "-ffast-math", "-fopenmp"),
    ),
    Case(
        "docstrings",
        "int one() { return 1; }\nvoid nothing() {}",
        (
            Call(lambda m: [m.one(), m.nothing()], lambda: [1, None]),
            Call(lambda m: m.one.__doc__, lambda: "one() -> int\n\nthe first number\n"),
            Call(lambda m: m.one(1), Raises("TypeError", "Invoked with: 1")),
        ),
        {"one": "the first number", "nothing": "nothing"},
        (),
    ),
    Case(
        "keyword_arguments",
        """
torch::Tensor scale(torch::Tensor x, double factor) { return x * factor; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale, py::arg("x"), py::arg("factor") = 2.0); }
""",
        (Call(lambda m: m.scale(x=A), lambda: A * 2),),
        route="stock",
    ),
    Case(
        "indexing",
        "torch::Tensor rows(torch::Tensor x) { return x.index({torch::indexing::Slice(0, 2)}); }",
        (Call(lambda m: m.rows(A), lambda: A[:2]),),
        ["rows"],
        route="stock",
    ),
    Case(
        "syntax_error",
        "\ntorch::Tensor broken(torch::Tensor x) {\n    auto y = x.clone()\n    return y;\n}\n",
        functions=["broken"],
        route="stock",
        error="cpp_source.cpp:4:5: error: expected",
    ),
]

ALL_CASES: list[Case] = [*CASES, *MORE_CASES]


def _leaf() -> torch.Tensor:
    return A.clone().requires_grad_()
