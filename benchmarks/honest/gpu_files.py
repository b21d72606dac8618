"""CUDA files from parts: kernels of T1, T2 to T10, T4 and row-wise epilogues, in several launch configurations."""

from __future__ import annotations

import hashlib

_HEAD = """#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
"""


def declaration(cuda: str, function: str) -> str:
    """The first line of a host function's definition, as a declaration."""
    at = cuda.index(f" {function}(")
    start = cuda.rindex("\n", 0, at) + 1
    return cuda[start : cuda.index(")", at) + 1] + ";"


def extension(cuda: str, functions: tuple[str, ...], style: str = "inline") -> str:
    """From ``import`` to ``ext = load_inline(...)``. Styles: ``inline``; ``pybind``: its own module definition."""
    text = f"{_HEAD}{cuda.strip()}\n"
    name = "honest_" + hashlib.sha256(f"{cuda}{style}".encode()).hexdigest()[:10]
    cpp = "\\n".join(declaration(f"\n{cuda}", function) for function in functions)
    named = f"functions={list(functions)!r}, "
    if style == "pybind":
        defs = "\\n".join(f'm.def(\\"{function}\\", &{function});' for function in functions)
        cpp = f"#include <torch/extension.h>\\n{cpp}\\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\\n{defs}\\n}}"
        named = ""
    return f'''import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
{text}"""

ext = load_inline(
    name="{name}", cpp_sources="{cpp}", cuda_sources=SOURCE, {named}extra_cuda_cflags=["-O3"], verbose=False
)
'''


def scale_rows(
    threads: int, vector: int, *, stream: str = "at::cuda::getCurrentCUDAStream()", dtype: str = "float"
) -> str:
    """T4: ``vector`` floats a thread."""
    kind = {1: "float", 2: "float2", 4: "float4"}[vector]
    parts = ["v"] if vector == 1 else [f"v.{c}" for c in "xyzw"[:vector]]
    scaled = " ".join(f"{part} = {_through(dtype, part)} * {_through(dtype, 's')};" for part in parts)
    return f"""
__global__ void __launch_bounds__({threads}) scale_kernel(const float* a, const {kind}* b, {kind}* out, int64_t width,
                                                         int64_t count) {{
    const int64_t at = blockIdx.x * (int64_t){threads} + threadIdx.x;
    if (at >= count) return;
    const float s = a[at / width];
    {kind} v = b[at];
    {scaled}
    out[at] = v;
}}
torch::Tensor diag_mul(torch::Tensor a, torch::Tensor b) {{
    const at::cuda::OptionalCUDAGuard guard(device_of(b));
    TORCH_CHECK(a.is_contiguous() && b.is_contiguous() && b.scalar_type() == torch::kFloat32 && a.scalar_type() == torch::kFloat32);
    TORCH_CHECK(b.size(1) % {vector} == 0);
    auto out = torch::empty_like(b);
    const int64_t count = b.numel() / {vector};
    scale_kernel<<<(count + {threads} - 1) / {threads}, {threads}, 0, {stream}>>>(
        a.data_ptr<float>(), reinterpret_cast<const {kind}*>(b.data_ptr<float>()),
        reinterpret_cast<{kind}*>(out.data_ptr<float>()), b.size(1) / {vector}, count);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}}
"""


def _through(dtype: str, value: str) -> str:
    """A float rounded to another type and back."""
    return {
        "float": value, "half": f"__half2float(__float2half({value}))",
        "bfloat16": f"__bfloat162float(__float2bfloat16({value}))",
    }[dtype]  # fmt: skip


LAYOUTS = {  # strides of a (i, l) and of b (l, j), sizes, shape
    "T2": ("k, 1", "m, 1", "k = b.size(0), m = b.size(1), n = a.numel() / k", "{a.size(0), a.size(1), m}"),
    "T3": ("k, 1", "m, 1", "k = b.size(0), m = b.size(1), n = a.numel() / k", "{a.size(0), a.size(1), a.size(2), m}"),
    "T5": ("k, 1", "m, 1", "k = b.size(0), m = b.size(1), n = a.size(0)", "{n, m}"),
    "T6": ("k, 1", "m, 1", "k = b.size(0), m = b.size(1), n = a.size(0)", "{n, m}"),
    "T7": ("k, 1", "m, 1", "k = b.size(0), m = b.size(1), n = a.size(0)", "{n, m}"),
    "T8": ("1, n", "m, 1", "k = b.size(0), m = b.size(1), n = a.size(1)", "{n, m}"),
    "T9": ("k, 1", "1, k", "k = b.size(1), m = b.size(0), n = a.size(0)", "{n, m}"),
    "T10": ("1, n", "1, k", "k = b.size(1), m = b.size(0), n = a.size(1)", "{n, m}"),
}
_KEEP = {"T6": "row <= column", "T7": "row >= column"}


def product(task: str, tile: int, dtype: str = "float", wide: int = 1) -> str:
    """Tiles in shared memory; each thread computes ``wide`` rows; operands rounded to ``dtype``, sums in fp32."""
    a, b, sizes, shape = LAYOUTS[task]
    keep = f"{_KEEP[task]} ? sums[w] : 0.0f" if task in _KEEP else "sums[w]"
    return f"""
constexpr int TILE = {tile}, WIDE = {wide};
__global__ void product_kernel(const float* a, int64_t ai, int64_t al, const float* b, int64_t bl, int64_t bj, float* c,
                               int64_t n, int64_t m, int64_t k) {{
    __shared__ float left[TILE * WIDE][TILE + 1], right[TILE][TILE + 1];
    const int64_t column = blockIdx.y * (int64_t)TILE + threadIdx.x, first = blockIdx.x * (int64_t)(TILE * WIDE);
    float sums[WIDE] = {{}};
    for (int64_t l0 = 0; l0 < k; l0 += TILE) {{
        for (int w = 0; w < WIDE; ++w) {{
            const int64_t row = first + w * TILE + threadIdx.y, l = l0 + threadIdx.x;
            const float v = row < n && l < k ? a[row * ai + l * al] : 0.0f;
            left[w * TILE + threadIdx.y][threadIdx.x] = {_through(dtype, "v")};
        }}
        const int64_t l = l0 + threadIdx.y;
        const float v = column < m && l < k ? b[l * bl + column * bj] : 0.0f;
        right[threadIdx.y][threadIdx.x] = {_through(dtype, "v")};
        __syncthreads();
        for (int i = 0; i < TILE; ++i)
            for (int w = 0; w < WIDE; ++w) sums[w] += left[w * TILE + threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }}
    for (int w = 0; w < WIDE; ++w) {{
        const int64_t row = first + w * TILE + threadIdx.y;
        if (row < n && column < m) c[row * m + column] = {keep};
    }}
}}
torch::Tensor multiply(torch::Tensor a, torch::Tensor b) {{
    const at::cuda::OptionalCUDAGuard guard(device_of(a));
    a = a.contiguous();
    b = b.contiguous();
    const int64_t {sizes};
    auto out = torch::empty({shape}, a.options());
    const dim3 blocks((n + TILE * WIDE - 1) / (TILE * WIDE), (m + TILE - 1) / TILE), threads(TILE, TILE);  // y ends at 65535
    product_kernel<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), {a}, b.data_ptr<float>(), {b}, out.data_ptr<float>(), n, m, k);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}}
"""


def hinge(threads: int, blocks: int, total: str = "double") -> str:
    """T1: partial sums of blocks, then one block; ``total``: the type sums are kept in."""
    return f"""
__global__ void hinge_kernel(const float* p, const float* t, {total}* parts, int64_t n, int64_t m, int64_t step) {{
    __shared__ {total} shared[{threads}];
    {total} sum = 0;
    for (int64_t i = blockIdx.x * step; i < n; i += gridDim.x * step) {{
        float row = 0;
        for (int64_t j = threadIdx.x; j < m; j += {threads}) row += fmaxf(0.0f, 1.0f - p[i * m + j] * t[j]);
        sum += row;
    }}
    shared[threadIdx.x] = sum;
    for (int half = {threads} / 2; half; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }}
    if (!threadIdx.x) parts[blockIdx.x] = shared[0];
}}
__global__ void total_kernel(const {total}* parts, float* out, int count, double scale) {{
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += parts[i];
    *out = (float)(sum * scale);
}}
torch::Tensor hinge(torch::Tensor p, torch::Tensor t, int64_t step) {{
    const at::cuda::OptionalCUDAGuard guard(device_of(p));
    auto parts = torch::empty({{{blocks}}}, p.options().dtype(torch::k{"Float64" if total == "double" else "Float32"}));
    auto out = torch::empty({{}}, p.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    hinge_kernel<<<{blocks}, {threads}, 0, stream>>>(
        p.data_ptr<float>(), t.data_ptr<float>(), parts.data_ptr<{total}>(), p.size(0), p.size(1), step);
    total_kernel<<<1, 1, 0, stream>>>(
        parts.data_ptr<{total}>(), out.data_ptr<float>(), {blocks}, (double)step / ((double)p.size(0) * p.size(1)));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}}
"""


def each(name: str, arguments: str, body: str, threads: int = 256) -> str:
    """A kernel over the elements ``x[at]`` of a matrix of ``m`` columns; ``body`` ends with ``out[at] = ...``."""
    given = "".join(f", {argument}" for argument in arguments.split(", ") if argument)
    host = "".join(
        f", torch::Tensor {argument.split('* ')[1]}" if "*" in argument else f", double {argument.split(' ')[1]}"
        for argument in arguments.split(", ")
        if argument
    )
    passed = "".join(
        f", {argument.split('* ')[1]}.data_ptr<float>()" if "*" in argument else f", (float){argument.split(' ')[1]}"
        for argument in arguments.split(", ")
        if argument
    )
    return f"""
__global__ void {name}_kernel(const float* x, float* out, int64_t count, int64_t m{given}) {{
    const int64_t at = blockIdx.x * (int64_t){threads} + threadIdx.x;
    if (at < count) {{ {body} }}
}}
torch::Tensor {name}(torch::Tensor x{host}) {{
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    x = x.contiguous();
    auto out = torch::empty_like(x);
    {name}_kernel<<<(x.numel() + {threads} - 1) / {threads}, {threads}, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), out.data_ptr<float>(), x.numel(), x.size(-1){passed});
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}}
"""


def row_sums(name: str, term: str, arguments: str = "", host: str = "", passed: str = "") -> str:
    """One block a row: the sum of ``term`` (over ``v``, an element)."""
    return f"""
__global__ void {name}_kernel(const float* x, float* out, int64_t m{arguments}) {{
    __shared__ double shared[256];
    double sum = 0;
    for (int64_t j = threadIdx.x; j < m; j += 256) {{
        const float v = x[blockIdx.x * m + j];
        sum += {term};
    }}
    shared[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }}
    if (!threadIdx.x) out[blockIdx.x] = (float)shared[0];
}}
torch::Tensor {name}(torch::Tensor x{host}) {{
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    x = x.contiguous();
    auto out = torch::empty({{x.size(0), 1}}, x.options());
    {name}_kernel<<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1){passed});
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}}
"""
