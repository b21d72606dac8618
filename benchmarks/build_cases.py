"""Candidates' C++ of varied style, each with calls and what they must give: the corpus of the build benchmark.

Used twice: tests/evaluation/test_build.py runs them through the façade and checks the results, and
``python -m benchmarks.build`` builds each by both routes and compares every result and every message. CUDA sources are
in `benchmarks.build_cuda_cases`, wrong ones in `benchmarks.build_error_cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

Value = Any  # a tensor, a number, a string, or a list or tuple of them


@dataclass(frozen=True)
class Raises:
    """A call that must fail: the exception's type by name, and words of its message."""

    kind: str
    words: str


@dataclass(frozen=True)
class Call:
    """One use of the built module, and its expected result."""

    run: Callable[[ModuleType], Value]
    expect: Callable[[], Value] | Raises


@dataclass(frozen=True)
class Case:
    """One source. ``route``: which route must build it; ``error``: words of the failure where it must not build.

    With ``cuda`` the first source holds prototypes (or host code) and ``cuda`` the kernels; with ``files`` (name ->
    text) nothing is inline: they are written out and built by ``load``.
    """

    name: str
    source: str
    calls: tuple[Call, ...] = ()
    functions: list[str] | dict[str, str] | None = None
    cflags: tuple[str, ...] = ("-O3",)
    route: Literal["facade", "stock"] = "facade"
    error: str = ""
    cuda: str = ""
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True  # False where two runs of one library may differ in the last bits

    def arguments(self) -> Mapping[str, Any]:
        """For ``load_inline``."""
        found: dict[str, Any] = {
            "name": f"case_{self.name}",
            "cpp_sources": [self.source],
            "functions": self.functions,
            "extra_cflags": list(self.cflags),
        }
        if self.cuda:
            found |= {"cuda_sources": [self.cuda], "extra_cuda_cflags": list(self.cuda_cflags)}
        if self.ldflags:
            found["extra_ldflags"] = list(self.ldflags)
        return found

    def file_arguments(self, directory: Path) -> Mapping[str, Any]:
        """For ``load``: the files are written to ``directory``; headers among them are found there."""
        for name, text in self.files.items():
            (directory / name).write_text(text)
        sources = [str(directory / name) for name in self.files if name.endswith((".cpp", ".cu"))]
        found = {"name": f"case_{self.name}", "sources": sources, "extra_cflags": list(self.cflags)}
        return found | ({"extra_cuda_cflags": list(self.cuda_cflags)} if self.cuda_cflags else {})


def outcome(call: Call, module: ModuleType) -> Value:
    """The call's result, or its exception as (type, message)."""
    try:
        return call.run(module)
    except Exception as error:
        return type(error).__name__, str(error)


def same(a: Value, b: Value, *, exactly: bool) -> bool:
    """Compare results as trees: bit for bit between routes, within float tolerance against an expectation."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return (
            torch.equal(_bits(a), _bits(b)) if exactly else torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        )
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return (
            type(a) is type(b)
            and len(a) == len(b)
            and all(same(x, y, exactly=exactly) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, float) and isinstance(b, float) and not exactly:
        return abs(a - b) <= 1e-4 * max(1.0, abs(b))
    return type(a) is type(b) and bool(a == b or (a != a and b != b))


def _bits(value: torch.Tensor) -> torch.Tensor:
    """So that a NaN equals itself, and zeros of two signs differ."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A seeded normal tensor."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


A, B, SQUARE, IMAGE = tensor(6, 5), tensor(6, 5, seed=1), tensor(8, 8, seed=2), tensor(2, 3, 8, 8, seed=3)

SCALE = """
torch::Tensor scale(torch::Tensor x, double factor) {
    TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
    auto y = torch::empty_like(x);
    const float* p = x.data_ptr<float>();
    float* q = y.data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); i++) q[i] = p[i] * static_cast<float>(factor);
    return y;
}
"""

CASES: list[Case] = [
    Case(
        "float_pointers",
        SCALE,
        (
            Call(lambda m: m.scale(A, 2.5), lambda: A * 2.5),
            Call(lambda m: m.scale(A.t(), 2.5), Raises("RuntimeError", "x must be contiguous")),
            Call(
                lambda m: m.scale(A.double(), 2.5),
                Raises("RuntimeError", "expected scalar type Float but found Double"),
            ),
            Call(lambda m: m.scale(A), Raises("TypeError", "(arg0: torch.Tensor, arg1:")),
            Call(lambda m: m.scale("x", 1.0), Raises("TypeError", "Invoked with: 'x', 1.0")),
        ),
        ["scale"],
    ),
    Case(
        "implicit_headers",
        """
#include <torch/extension.h>
#include <vector>

static inline float gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * float(M_SQRT1_2))); }

torch::Tensor forward(const torch::Tensor& x) {
    auto in = x.contiguous();
    auto out = torch::zeros(in.sizes(), in.options());
    std::transform(in.data_ptr<float>(), in.data_ptr<float>() + in.numel(), out.data_ptr<float>(), gelu);
    return out;
}
""",
        (Call(lambda m: m.forward(A), lambda: torch.nn.functional.gelu(A)),),
        ["forward"],
    ),
    Case(
        "templates",
        """
template <typename T, int N> struct Power { static T of(T x) { return x * Power<T, N - 1>::of(x); } };
template <typename T> struct Power<T, 0> { static T of(T) { return T(1); } };
template <typename T> static void run(const T* in, T* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = Power<T, 5>::of(in[i]);
}
at::Tensor fifth(at::Tensor x) {
    auto y = at::empty(x.sizes(), x.options());
    if (x.scalar_type() == at::kFloat) run(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    else if (x.dtype() == torch::kFloat64) run(x.data_ptr<double>(), y.data_ptr<double>(), x.numel());
    else AT_ERROR("unsupported dtype ", x.dtype(), " on ", x.device());
    return y;
}
""",
        (
            Call(lambda m: m.fifth(A), lambda: A**5),
            Call(lambda m: m.fifth(A.double()), lambda: A.double() ** 5),
            Call(lambda m: m.fifth(A.long()), Raises("RuntimeError", "unsupported dtype long int on cpu")),
        ),
        ["fifth"],
    ),
    Case(
        "several_functions",
        """
torch::Tensor add(torch::Tensor a, torch::Tensor b) { return a + b; }
torch::Tensor axpy(float alpha, torch::Tensor x, torch::Tensor y) { return alpha * x + y; }
torch::Tensor rsub(torch::Tensor x) { return 1.0 - x / 2 - 3 * x; }
torch::Tensor mask(torch::Tensor x) { return (x > 0).to(x.dtype()) * x; }
bool same(torch::Tensor a, torch::Tensor b) { return a.sizes() == b.sizes() && a.is_same(a); }
int64_t count(torch::Tensor a) { return a.numel(); }
std::string describe(torch::Tensor a) { return c10::str(a.sizes(), " ", a.scalar_type(), " ", a.device()); }
""",
        (
            Call(lambda m: m.add(A, B), lambda: A + B),
            Call(lambda m: m.axpy(2.0, A, B), lambda: 2 * A + B),
            Call(lambda m: m.rsub(A), lambda: 1.0 - A / 2 - 3 * A),
            Call(lambda m: m.mask(A), lambda: torch.relu(A)),
            Call(lambda m: [m.same(A, B), m.same(A, SQUARE)], lambda: [True, False]),
            Call(lambda m: m.count(A), lambda: 30),
            Call(lambda m: m.describe(A), lambda: "[6, 5] Float cpu"),
            Call(lambda m: m.add(A, SQUARE), Raises("RuntimeError", "must match the size of tensor")),
        ),
        ["add", "axpy", "rsub", "mask", "same", "count", "describe"],
    ),
    Case(
        "own_module",
        """
#include <torch/extension.h>
torch::Tensor square(torch::Tensor x) { return x * x; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "squares";
    m.def("square", &square, "x * x");
    m.def("cube", [](const at::Tensor& x) { return x * x * x; });
    m.def("twice", torch::wrap_pybind_function([](int n) { return 2 * n; }));
}
""",
        (
            Call(lambda m: m.square(A), lambda: A * A),
            Call(lambda m: m.cube(A), lambda: A**3),
            Call(lambda m: m.twice(21), lambda: 42),
            Call(
                lambda m: [m.__doc__, m.square.__doc__],
                lambda: ["squares", "square(arg0: torch.Tensor) -> torch.Tensor\n\nx * x\n"],
            ),
            Call(lambda m: m.twice(2**40), Raises("TypeError", "incompatible function arguments")),
        ),
    ),
    Case(
        "openmp",
        """
#include <omp.h>
torch::Tensor row_sums(torch::Tensor x) {
    auto out = torch::empty({x.size(0)}, x.options());
    const float* p = x.data_ptr<float>();
    float* q = out.data_ptr<float>();
    const int64_t rows = x.size(0), cols = x.size(1);
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < cols; ++c) sum += p[r * cols + c];
        q[r] = sum;
    }
    return out;
}
int threads() { return omp_get_max_threads() > 0; }
""",
        (Call(lambda m: m.row_sums(A), lambda: A.sum(1)), Call(lambda m: m.threads(), lambda: 1)),
        ["row_sums", "threads"],
        ("-O3", "-fopenmp"),
    ),
    Case(
        "intrinsics",
        """
#include <immintrin.h>
torch::Tensor relu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* p = x.data_ptr<float>();
    float* q = y.data_ptr<float>();
    const int64_t n = x.numel();
    const __m256 zero = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(q + i, _mm256_max_ps(_mm256_loadu_ps(p + i), zero));
    for (; i < n; ++i) q[i] = std::max(p[i], 0.0f);
    return y;
}
""",
        (Call(lambda m: m.relu(A), lambda: torch.relu(A)),),
        ["relu"],
        ("-O3", "-mavx2", "-mfma"),
    ),
    Case(
        "intrinsics_without_include",
        """
float dot(torch::Tensor a, torch::Tensor b) {
    const float *p = a.data_ptr<float>(), *q = b.data_ptr<float>();
    __m128 acc = _mm_setzero_ps();
    int64_t i = 0;
    for (; i + 4 <= a.numel(); i += 4) acc = _mm_add_ps(acc, _mm_mul_ps(_mm_loadu_ps(p + i), _mm_loadu_ps(q + i)));
    float parts[4], sum = 0;
    _mm_storeu_ps(parts, acc);
    for (float part : parts) sum += part;
    for (; i < a.numel(); ++i) sum += p[i] * q[i];
    return sum;
}
""",
        (Call(lambda m: m.dot(A, B), lambda: float((A * B).sum())),),
        ["dot"],
        ("-O2", "-march=native"),
    ),
    Case(
        "vector_of_tensors",
        """
std::vector<torch::Tensor> split_sign(torch::Tensor x) {
    return {torch::clamp(x, 0), torch::clamp(x, c10::nullopt, 0)};
}
torch::Tensor join(const std::vector<torch::Tensor>& parts) { return torch::cat(parts, 0); }
std::tuple<at::Tensor, at::Tensor, int64_t> top(const at::Tensor& x) {
    auto [values, indices] = x.max(1);
    return {values, indices, x.size(0)};
}
std::vector<int64_t> shape(at::Tensor x) { return x.sizes().vec(); }
std::pair<float, double> extremes(at::Tensor x) { return {x.min().item<float>(), x.max().item<double>()}; }
""",
        (
            Call(lambda m: m.split_sign(A), lambda: [A.clamp(min=0), A.clamp(max=0)]),
            Call(lambda m: m.join([A, B]), lambda: torch.cat([A, B])),
            Call(lambda m: m.join((A, 3)), Raises("TypeError", "collections.abc.Sequence[torch.Tensor]")),
            Call(lambda m: m.top(A), lambda: (*A.max(1), 6)),
            Call(lambda m: m.shape(A), lambda: [6, 5]),
            Call(lambda m: m.extremes(A), lambda: (float(A.min()), float(A.max()))),
        ),
        ["split_sign", "join", "top", "shape", "extremes"],
    ),
    Case(
        "optional_arguments",
        """
torch::Tensor affine(torch::Tensor x, c10::optional<torch::Tensor> weight, const std::optional<torch::Tensor>& bias,
                     std::optional<double> eps) {
    auto y = x.clone();
    if (weight.has_value()) y.mul_(*weight);
    if (bias) y += bias.value();
    return y.add_(eps.value_or(0.0));
}
""",
        (
            Call(lambda m: m.affine(A, None, None, None), lambda: A),
            Call(lambda m: m.affine(A, B, B, 0.5), lambda: A * B + B + 0.5),
        ),
        ["affine"],
    ),
    Case(
        "checks",
        """
#define CHECK_CPU(x) TORCH_CHECK(!x.is_cuda(), #x " must be a CPU tensor")
#define CHECK_INPUT(x) CHECK_CPU(x); TORCH_CHECK(x.is_contiguous())
torch::Tensor checked(torch::Tensor x, int64_t k) {
    CHECK_INPUT(x);
    TORCH_CHECK(x.dim() == 2, "expected 2 dimensions, got ", x.dim(), " of ", x.sizes(), ", factor ", 0.1f, ' ', true);
    TORCH_CHECK_INDEX(k < x.size(1), "index ", k, " is out of range");
    TORCH_CHECK_VALUE(k != 1, "not one");
    if (k == 2) throw std::runtime_error("two");
    if (k == 3) throw std::invalid_argument("three");
    if (k == 4) TORCH_INTERNAL_ASSERT(false, "four");
    return x.select(1, k);
}
""",
        (
            Call(lambda m: m.checked(A, 0), lambda: A[:, 0]),
            Call(
                lambda m: m.checked(A.t(), 0),
                Raises("RuntimeError", "Expected x.is_contiguous() to be true, but got false."),
            ),
            Call(lambda m: m.checked(IMAGE, 0), Raises("RuntimeError", "got 4 of [2, 3, 8, 8], factor 0.1 1")),
            Call(lambda m: m.checked(A, 9), Raises("IndexError", "index 9 is out of range")),
            Call(lambda m: m.checked(A, 1), Raises("ValueError", "not one")),
            Call(lambda m: m.checked(A, 2), Raises("RuntimeError", "two")),
            Call(lambda m: m.checked(A, 3), Raises("RuntimeError", "three")),
            Call(lambda m: m.checked(A, 4), Raises("RuntimeError", "INTERNAL ASSERT FAILED")),
            Call(lambda m: m.checked(A, -9), Raises("IndexError", "index -9 out of range for tensor of size [6, 5]")),
        ),
        ["checked"],
    ),
    Case(
        "operators",
        """
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    auto scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
    return at::matmul(torch::softmax(scores, -1), v);
}
at::Tensor mlp(at::Tensor x, at::Tensor w) {
    auto h = torch::relu(x.mm(w)).add(1).mul(0.5);
    h = at::layer_norm(h, {h.size(-1)});
    return torch::addmm(h, h, w.t(), 0.5, 2).sum({0, 1}, /*keepdim=*/true).view({-1}).unsqueeze(0);
}
at::Tensor conv(at::Tensor x, at::Tensor w) { return torch::conv2d(x, w, {}, 1, 1).mean({2, 3}).flatten(1); }
at::Tensor make() {
    auto a = torch::arange(6, torch::kFloat32).reshape({2, 3});
    auto o = torch::ones({2, 3}, torch::dtype(torch::kFloat32).device(torch::kCPU));
    a[0] = 7;
    a[1][2] += 1;
    return torch::where(a > 3, a, -o).permute({1, 0}).contiguous();
}
""",
        (
            Call(
                lambda m: m.attention(SQUARE, SQUARE, SQUARE),
                lambda: torch.softmax(SQUARE @ SQUARE.T / 8**0.5, -1) @ SQUARE,
            ),
            Call(lambda m: m.mlp(SQUARE, SQUARE).shape == (1, 1), lambda: True),
            Call(
                lambda m: m.conv(IMAGE, IMAGE[:, :, :3, :3]),
                lambda: torch.nn.functional.conv2d(IMAGE, IMAGE[:, :, :3, :3], padding=1).mean((2, 3)),
            ),
            Call(lambda m: m.make(), lambda: torch.tensor([[7.0, -1.0], [7.0, 4.0], [7.0, 6.0]])),
            Call(lambda m: m.mlp(A, SQUARE), Raises("RuntimeError", "cannot be multiplied")),
        ),
        ["attention", "mlp", "conv", "make"],
    ),
]
