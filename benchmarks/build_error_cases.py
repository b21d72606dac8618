"""Sources that do not compile, do not link or load, or nearly do not: the corpus of ``--errors``, and CUDA's few.

The verdict and the first error must be stock's, whichever way they were reached: `verify` (torch's headers,
precompiled, front end only) or the full stock build. Sources that need more of torch than the façade declares are
right by stock.
"""
# ruff: noqa: E501  the sources are data

from __future__ import annotations

from benchmarks.build_cases import Case

_HEAD = "torch::Tensor run(torch::Tensor x) {\n"
_PLAIN = _HEAD + "    return x + 1;\n}\n"


def _body(name: str, body: str, *, before: str = "", cflags: tuple[str, ...] = ("-O3",)) -> Case:
    """A function ``run`` with this body that must not compile."""
    return Case(name, f"{before}{_HEAD}    {body}\n    return x;\n}}\n", (), ["run"], cflags, "stock", "error")


def _whole(name: str, source: str, *, cflags: tuple[str, ...] = ("-O3",), ldflags: tuple[str, ...] = ()) -> Case:
    return Case(name, source, (), ["run"], cflags, "stock", "error", ldflags=ldflags)


ERROR_CASES: list[Case] = [
    # syntax
    _body("semicolon", "auto y = x.clone()"),
    _whole("unclosed_brace", _HEAD + "    if (x.dim() > 1) {\n    return x;\n}\n"),
    _body("unclosed_bracket", "float v[4 = {0};"),
    _body("stray_character", "int a = 1 @ 2;"),
    _body("unterminated_string", 'std::string s = "abc;'),
    _body("misspelt_keyword", "retrun x;"),
    _whole("python_in_cpp", "def run(x):\n    return x\n"),
    _whole("unknown_directive_error", "#error this source is not finished\n" + _PLAIN),
    _whole("unterminated_if", "#ifdef SOMETHING\n" + _PLAIN),
    # names
    _body("undeclared_variable", "x.data_ptr<float>()[0] = scale;"),
    _body("undeclared_function", "x = fast_gelu(x);"),
    _body("unknown_method", "x = x.relu_fast();"),
    _body("unknown_namespace_member", "x = torch::swish(x);"),
    _body("unknown_type", "Tensr y = x;"),
    _whole("missing_header", '#include "my_kernels.h"\n' + _PLAIN),
    _body("header_not_brought", "std::mt19937 generator(1);"),
    _body("redeclared", "int n = 1;\n    int n = 2;"),
    _whole("redefined_function", _PLAIN + _PLAIN),
    _body("out_of_scope", "for (int i = 0; i < 3; ++i) {}\n    x = x + i;"),
    # types
    _body("pointer_to_number", 'int n = "four";'),
    _body("tensor_to_number", "float f = x;"),
    _body("const_violation", "const int64_t n = x.numel();\n    n = 3;"),
    _body("const_pointer", "const float* p = x.data_ptr<float>();\n    p[0] = 1.0f;"),
    _body("wrong_argument_count", "x = torch::matmul(x);"),
    _body("no_such_overload", 'x = x.view("flat");'),
    _body("narrowing", "int64_t n = x.numel();\n    int v[] = {n};"),
    _body("return_in_void", "auto f = [](int a) -> void { return a; };\n    f(1);"),
    _whole("missing_return_type", "run(torch::Tensor x) { return x; }\n"),
    _whole("wrong_return_type", "torch::Tensor run(torch::Tensor x) { return x.sizes(); }\n"),
    _body("dereferenced_value", "int64_t n = x.numel();\n    *n = 2;"),
    _body("bad_cast", "float* p = static_cast<float*>(x.data_ptr<double>());"),
    _body("accessor_of_rvalue", "auto a = x.clone().accessor<float, 2>();"),
    # templates
    _body("static_assert", 'static_assert(sizeof(int) == 8, "int must have 8 bytes");'),
    _body("static_assert_in_template", "T<float>::f();", before="template <class A> struct T { static_assert(sizeof(A) == 8); static void f() {} };\n"),
    _body("template_argument_count", "std::vector<float, 3, 4> v;"),
    _body("no_member_in_template", "f(3);", before="template <class A> auto f(A a) { return a.size(); }\n"),
    _body("deduction_fails", "x = x + f();", before="template <class A> int f() { return sizeof(A); }\n"),
    _body("not_constant", "int n = x.dim();\n    std::array<float, n> a;"),
    _body("private_member", "S s;\n    s.v = 1;", before="class S { int v; };\n"),
    _body("recursion_without_end", "x = x + F<1>::v;", before="template <int N> struct F { static const int v = F<N + 1>::v; };\n"),
    _whole("concept_not_met", "template <class A> requires(sizeof(A) == 1) int g(A) { return 1; }\n" + _HEAD + "    return x + g(1.0);\n}\n"),
    # flags
    _body("warning_as_error", "int unused = 3;", cflags=("-O3", "-Werror=unused-variable")),
    _body("missing_intrinsic_target", "__m512 v = _mm512_setzero_ps();\n    x = x + v[0];", before="#include <immintrin.h>\n", cflags=("-O3", "-mno-avx512f")),
    _whole("unknown_flag", _PLAIN, cflags=("-O3", "-fno-such-flag")),
    _whole("bad_macro_flag", _PLAIN, cflags=("-O3", "-Dreturn=")),
    _body("older_standard", "auto f = [](auto... a) requires true { return sizeof...(a); };\n    f();", cflags=("-O3", "-std=c++14")),
    # bindings, link, load
    _whole("function_not_defined", "torch::Tensor run(torch::Tensor x);\n"),
    _whole("function_not_declared", "torch::Tensor forward(torch::Tensor x) { return x; }\n"),
    _whole("helper_not_defined", "float helper(float);\n" + _HEAD + "    return x + helper(1.0f);\n}\n"),
    _whole("absent_library", _PLAIN, ldflags=("-lno_such_library",)),
    _whole("overloaded_binding", "int run(int a) { return a; }\n" + _PLAIN),
    _whole("unsupported_argument", "struct S { int v; };\ntorch::Tensor run(S s) { return torch::zeros({s.v}); }\n"),
    # right by stock, though the façade does not take them
    Case("right_slices", _HEAD + "    return x.index({torch::indexing::Slice(0, 1)});\n}\n", (), ["run"], route="stock"),
    Case("right_tensor_literal", _HEAD + "    return x + torch::tensor({1.0f, 2.0f});\n}\n", (), ["run"], route="stock"),
    Case(
        "right_caught_error",
        _HEAD + "    try { return x.view({7}); } catch (const c10::Error& e) { return x; }\n}\n", (), ["run"], route="stock",
    ),
    Case(
        "right_complex", _HEAD + "    return torch::view_as_real(x.to(torch::kComplexFloat));\n}\n", (), ["run"],
        route="stock",
    ),
]  # fmt: skip

CUDA_ERROR_CASES: list[Case] = [
    Case(
        "cuda_compile_error",
        "torch::Tensor broken(torch::Tensor x);",
        functions=["broken"],
        cuda="""
__global__ void broken_kernel(float* x, int n) {
    if (threadIdx.x < n) x[threadIdx.x] = undeclared_scale * x[threadIdx.x];
}
torch::Tensor broken(torch::Tensor x) {
    broken_kernel<<<1, 32>>>(x.data_ptr<float>(), x.numel());
    return x;
}
""",
        route="stock",
        error='identifier "undeclared_scale" is undefined',
    ),
    Case(
        "cuda_host_error",
        "torch::Tensor broken(torch::Tensor x);",
        functions=["broken"],
        cuda="""
__global__ void k(float* x) { x[0] = 1.0f; }
torch::Tensor broken(torch::Tensor x) {
    auto y = torch::empty_liike(x);
    k<<<1, 1>>>(y.data_ptr<float>());
    return y;
}
""",
        route="stock",
        error="empty_liike",
    ),
    Case(
        "cuda_missing_function",
        "torch::Tensor absent(torch::Tensor x);",
        functions=["absent"],
        cuda="__global__ void k(float* x) { x[0] = 1.0f; }\n",
        route="stock",
        error="undefined symbol",
    ),
]
