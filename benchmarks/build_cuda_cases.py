"""CUDA sources of the kinds that LLMs write: the corpus of ``python -m benchmarks.build --gpu``, first half.

Each has calls on the GPU and, on a machine that has one, must behave by the façade as by stock. What of torch they use
follows the counts over 2 662 real sources (docs/building.md).
"""
# ruff: noqa: E501  the sources are data

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.build_cases import IMAGE, SQUARE, A, B, Call, Case, Raises, tensor
from benchmarks.build_error_cases import CUDA_ERROR_CASES
from benchmarks.build_more_cuda_cases import MORE_CUDA_CASES, on_gpu

BIG = tensor(256, 1024, seed=11)
CONTEXT = "#include <ATen/cuda/CUDAContext.h>\n#include <c10/cuda/CUDAGuard.h>\n"

FIRST_CUDA_CASES: list[Case] = [
    Case(
        "cuda_data_ptr",
        "torch::Tensor scale(torch::Tensor x, double factor);",
        (
            Call(lambda m: m.scale(on_gpu(A), 2.5), lambda: A * 2.5),
            Call(lambda m: m.scale(on_gpu(A.double()), 2.5), Raises("RuntimeError", "expected scalar type Float")),
            Call(lambda m: m.scale(on_gpu(A)), Raises("TypeError", "incompatible function arguments")),
            Call(lambda m: m.scale(on_gpu(A), "2"), Raises("TypeError", "Invoked with: ")),
        ),
        ["scale"],
        cuda="""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void scale_kernel(const float* in, float* out, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor;
}
torch::Tensor scale(torch::Tensor x, double factor) {
    auto out = torch::empty_like(x);
    int n = x.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), factor, n);
    return out;
}
""",
    ),
    Case(
        "cuda_options_zeros",
        "torch::Tensor row_sums(torch::Tensor x);",
        (
            Call(lambda m: m.row_sums(on_gpu(A)), lambda: A.sum(1)),
            Call(lambda m: m.row_sums(on_gpu(A[0])), Raises("IndexError", "Dimension out of range")),
        ),
        ["row_sums"],
        cuda="""
__global__ void row_sum_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float s = 0.0f;
    for (int c = 0; c < cols; ++c) s += x[r * cols + c];
    y[r] = s;
}
torch::Tensor row_sums(torch::Tensor x) {
    const auto rows = x.size(0), cols = x.size(1);
    auto options = torch::TensorOptions().dtype(x.dtype()).device(x.device());
    auto y = torch::zeros({rows}, options);
    const int threads = 128;
    row_sum_kernel<<<(rows + threads - 1) / threads, threads>>>(
        x.contiguous().data_ptr<float>(), y.data_ptr<float>(), rows, cols);
    return y;
}
""",
    ),
    Case(
        "cuda_guard_stream_check",
        "torch::Tensor add(torch::Tensor a, torch::Tensor b);",
        (
            Call(lambda m: m.add(on_gpu(A), on_gpu(B)), lambda: A + B),
            Call(lambda m: m.add(A, on_gpu(B)), Raises("RuntimeError", "a must be a CUDA tensor")),
            Call(lambda m: m.add(on_gpu(A.t()), on_gpu(B.t())), Raises("RuntimeError", "a must be contiguous")),
            Call(lambda m: m.add(on_gpu(A), on_gpu(SQUARE)), Raises("RuntimeError", "sizes differ: [6, 5] and [8, 8]")),
            Call(lambda m: _on_side_stream(lambda: m.add(on_gpu(A), on_gpu(B))), lambda: A + B),
        ),
        ["add"],
        cuda=CONTEXT
        + """
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)
__global__ void add_kernel(const float* a, const float* b, float* c, int64_t n) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}
torch::Tensor add(torch::Tensor a, torch::Tensor b) {
    CHECK_INPUT(a);
    CHECK_INPUT(b);
    TORCH_CHECK(a.sizes() == b.sizes(), "sizes differ: ", a.sizes(), " and ", b.sizes());
    const at::cuda::CUDAGuard guard(a.device());
    auto c = torch::empty_like(a);
    cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
    add_kernel<<<32, 256, 0, stream>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), a.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}
""",
    ),
    Case(
        "cuda_dispatch",
        "torch::Tensor silu(torch::Tensor x);",
        (
            Call(lambda m: m.silu(on_gpu(A)), lambda: torch.nn.functional.silu(A)),
            Call(lambda m: m.silu(on_gpu(A.double())), lambda: torch.nn.functional.silu(A.double())),
            Call(
                lambda m: m.silu(on_gpu(A.half())), Raises("NotImplementedError", "\"silu\" not implemented for 'Half'")
            ),
        ),
        ["silu"],
        cuda="""
template <typename scalar_t>
__global__ void silu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, size_t n) {
    const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] / (scalar_t(1) + exp(-x[i]));
}
torch::Tensor silu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int threads = 256;
    const int blocks = (x.numel() + threads - 1) / threads;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "silu", ([&] {
        silu_kernel<scalar_t><<<blocks, threads>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
    }));
    return y;
}
""",
    ),
    Case(
        "cuda_dispatch_half",
        "torch::Tensor twice(torch::Tensor x);",
        (
            Call(lambda m: m.twice(on_gpu(A.half())), lambda: A.half() * 2),
            Call(lambda m: m.twice(on_gpu(A.bfloat16())), lambda: A.bfloat16() * 2),
            Call(lambda m: m.twice(on_gpu(A.int())), Raises("NotImplementedError", "not implemented for 'Int'")),
        ),
        ["twice"],
        cuda="""
template <typename T> __global__ void twice_kernel(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = static_cast<T>(static_cast<float>(x[i]) * 2.0f);
}
torch::Tensor twice(torch::Tensor x) {
    auto y = at::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "twice", [&] {
        twice_kernel<scalar_t><<<1, 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
    });
    return y;
}
""",
    ),
    Case(
        "cuda_own_module",
        "",
        (
            Call(lambda m: m.forward(on_gpu(A)), lambda: torch.relu(A)),
            Call(lambda m: m.forward.__doc__, lambda: "forward(arg0: torch.Tensor) -> torch.Tensor\n\nReLU (CUDA)\n"),
            Call(lambda m: m.forward(None), Raises("TypeError", "forward(): incompatible")),
        ),
        cuda="""
#include <torch/extension.h>
__global__ void relu_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
torch::Tensor forward(torch::Tensor x) {
    auto y = torch::zeros_like(x);
    relu_kernel<<<(x.numel() + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "ReLU (CUDA)"); }
""",
    ),
    Case(
        "cuda_several_functions",
        """
torch::Tensor exp_forward(torch::Tensor x);
std::vector<torch::Tensor> minmax(torch::Tensor x);
void fill_(torch::Tensor x, float value);
int64_t count(torch::Tensor x);
""",
        (
            Call(lambda m: m.exp_forward(on_gpu(A)), lambda: A.exp()),
            Call(lambda m: m.minmax(on_gpu(A)), lambda: [A.min(), A.max()]),
            Call(lambda m: [m.fill_(x := on_gpu(A), 2.0), x], lambda: [None, torch.full_like(A, 2.0)]),
            Call(lambda m: m.count(on_gpu(A)), lambda: 30),
        ),
        ["exp_forward", "minmax", "fill_", "count"],
        cuda="""
__global__ void exp_kernel(const float* x, float* y, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) y[i] = expf(x[i]);
}
__global__ void fill_kernel(float* x, float v, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) x[i] = v;
}
torch::Tensor exp_forward(torch::Tensor x) {
    auto y = torch::empty({x.size(0), x.size(1)}, x.options());
    exp_kernel<<<1, 512>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
std::vector<torch::Tensor> minmax(torch::Tensor x) { return {x.min(), x.max()}; }
void fill_(torch::Tensor x, float value) { fill_kernel<<<1, 512>>>(x.data_ptr<float>(), value, x.numel()); }
int64_t count(torch::Tensor x) { return x.numel(); }
""",
    ),
    Case(
        "cuda_float4",
        "torch::Tensor scale_rows(torch::Tensor a, torch::Tensor b);",
        (
            Call(lambda m: m.scale_rows(on_gpu(A[:, 0]), on_gpu(A)), Raises("RuntimeError", "a multiple of 4")),
            Call(lambda m: m.scale_rows(on_gpu(BIG[:, 0].clone()), on_gpu(BIG)), lambda: BIG[:, :1] * BIG),
        ),
        ["scale_rows"],
        cuda=CONTEXT
        + """
__global__ void __launch_bounds__(256) scale_rows_kernel(
    const float* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, int width) {
    const float s = __ldg(a + blockIdx.x);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float4 v = b[blockIdx.x * (size_t)width + i];
        v.x *= s; v.y *= s; v.z *= s; v.w *= s;
        c[blockIdx.x * (size_t)width + i] = v;
    }
}
torch::Tensor scale_rows(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(b.size(1) % 4 == 0, "columns must be a multiple of 4");
    const at::cuda::OptionalCUDAGuard guard(device_of(b));
    auto c = torch::empty_like(b);
    scale_rows_kernel<<<b.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), reinterpret_cast<const float4*>(b.data_ptr<float>()),
        reinterpret_cast<float4*>(c.data_ptr<float>()), b.size(1) / 4);
    AT_CUDA_CHECK(cudaGetLastError());
    return c;
}
""",
    ),
    Case(
        "cuda_tiled_matmul",
        "torch::Tensor matmul(torch::Tensor a, torch::Tensor b);",
        (
            Call(lambda m: m.matmul(on_gpu(A), on_gpu(B)), Raises("RuntimeError", "5 vs 6")),
            Call(lambda m: m.matmul(on_gpu(BIG), on_gpu(BIG.t().contiguous())), lambda: BIG @ BIG.t()),
        ),
        ["matmul"],
        cuda="""
template <typename T, int TILE>
__global__ void matmul_kernel(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ C, int M, int N, int K) {
    __shared__ T as[TILE][TILE + 1];
    __shared__ T bs[TILE][TILE + 1];
    const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    T acc = T(0);
    for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
        as[threadIdx.y][threadIdx.x] = row < M && t * TILE + threadIdx.x < K ? A[row * K + t * TILE + threadIdx.x] : T(0);
        bs[threadIdx.y][threadIdx.x] = col < N && t * TILE + threadIdx.y < K ? B[(t * TILE + threadIdx.y) * N + col] : T(0);
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) acc += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = acc;
}
torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.size(1) == b.size(0), a.size(1), " vs ", b.size(0));
    auto c = torch::empty({a.size(0), b.size(1)}, a.options());
    const dim3 threads(16, 16), blocks((b.size(1) + 15) / 16, (a.size(0) + 15) / 16);
    AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "matmul", [&] {
        matmul_kernel<scalar_t, 16><<<blocks, threads>>>(a.data_ptr<scalar_t>(), b.data_ptr<scalar_t>(),
            c.data_ptr<scalar_t>(), a.size(0), b.size(1), a.size(1));
    });
    return c;
}
""",
    ),
    Case(
        "cuda_fast_math",
        "torch::Tensor gelu(torch::Tensor x);",
        (Call(lambda m: m.gelu(on_gpu(BIG)), lambda: torch.nn.functional.gelu(BIG, approximate="tanh")),),
        ["gelu"],
        cuda="""
__global__ void gelu_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    y[i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
}
torch::Tensor gelu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    gelu_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
""",
        cuda_cflags=("-O3", "--use_fast_math"),
    ),
    Case(
        "cuda_half2",
        "torch::Tensor add_half(torch::Tensor a, torch::Tensor b);",
        (
            Call(lambda m: m.add_half(on_gpu(A), on_gpu(B)), Raises("RuntimeError", "half tensors only")),
            Call(lambda m: m.add_half(on_gpu(BIG.half()), on_gpu(BIG.half())), lambda: BIG.half() * 2),
        ),
        ["add_half"],
        cuda="""
#include <cuda_fp16.h>
__global__ void add_half2_kernel(const __half2* a, const __half2* b, __half2* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = __hadd2(a[i], b[i]);
}
torch::Tensor add_half(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.scalar_type() == torch::kHalf && b.scalar_type() == at::kHalf, "half tensors only");
    auto c = torch::empty_like(a);
    const int n = a.numel() / 2;
    add_half2_kernel<<<(n + 255) / 256, 256>>>(reinterpret_cast<const __half2*>(a.data_ptr<at::Half>()),
        reinterpret_cast<const __half2*>(b.data_ptr<at::Half>()), reinterpret_cast<__half2*>(c.data_ptr<at::Half>()), n);
    return c;
}
""",
    ),
    Case(
        "cuda_bf16",
        "torch::Tensor square(torch::Tensor x);",
        (
            Call(lambda m: m.square(on_gpu(A.bfloat16())), lambda: A.bfloat16() ** 2),
            Call(
                lambda m: m.square(on_gpu(A)), Raises("RuntimeError", "expected scalar type BFloat16 but found Float")
            ),
        ),
        ["square"],
        cuda="""
#include <cuda_bf16.h>
__global__ void square_kernel(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float v = __bfloat162float(x[i]); y[i] = __float2bfloat16(v * v); }
}
torch::Tensor square(torch::Tensor x) {
    auto y = torch::empty_like(x);
    square_kernel<<<1, 256>>>(reinterpret_cast<const __nv_bfloat16*>(x.data_ptr<at::BFloat16>()),
                              reinterpret_cast<__nv_bfloat16*>(y.data_ptr<at::BFloat16>()), x.numel());
    return y;
}
""",
    ),
    Case(
        "cuda_operators",
        "torch::Tensor block(torch::Tensor x, torch::Tensor w, c10::optional<torch::Tensor> bias);",
        (
            Call(lambda m: m.block(on_gpu(SQUARE), on_gpu(SQUARE), None), lambda: torch.relu(SQUARE @ SQUARE.t()) + 1),
            Call(
                lambda m: m.block(on_gpu(SQUARE), on_gpu(SQUARE), on_gpu(SQUARE[0])),
                lambda: torch.relu(SQUARE @ SQUARE.t() + SQUARE[0]) + 1,
            ),
            Call(lambda m: m.block(on_gpu(A), on_gpu(SQUARE), None), Raises("RuntimeError", "cannot be multiplied")),
            Call(lambda m: m.block(on_gpu(SQUARE), SQUARE, None), Raises("RuntimeError", "same device")),
        ),
        ["block"],
        cuda="""
__global__ void relu_add_kernel(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = (x[i] > 0.f ? x[i] : 0.f) + 1.f;
}
torch::Tensor block(torch::Tensor x, torch::Tensor w, c10::optional<torch::Tensor> bias) {
    auto y = torch::matmul(x, w.t());
    if (bias.has_value()) y = y + bias.value();
    y = y.contiguous();
    relu_add_kernel<<<(y.numel() + 255) / 256, 256>>>(y.data_ptr<float>(), y.numel());
    return y;
}
""",
        exact=True,
    ),
    Case(
        "cuda_convolution",
        "torch::Tensor conv_bias(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
        (
            Call(
                lambda m: m.conv_bias(on_gpu(IMAGE), on_gpu(IMAGE[:, :, :3, :3].clone()), on_gpu(IMAGE[0, 0, 0, :2])),
                lambda: torch.nn.functional.conv2d(IMAGE, IMAGE[:, :, :3, :3], IMAGE[0, 0, 0, :2], padding=1),
            ),
        ),
        ["conv_bias"],
        cuda="""
__global__ void add_channel_kernel(float* y, const float* b, int channels, int inner, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += b[(i / inner) % channels];
}
torch::Tensor conv_bias(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    auto y = at::conv2d(x, w, {}, 1, 1);
    const int inner = y.size(2) * y.size(3);
    add_channel_kernel<<<(y.numel() + 255) / 256, 256>>>(y.data_ptr<float>(), b.data_ptr<float>(), y.size(1), inner, y.numel());
    return y;
}
""",
        exact=False,
    ),
    Case(
        "cuda_shuffles",
        "torch::Tensor row_max(torch::Tensor x);",
        (Call(lambda m: m.row_max(on_gpu(BIG)), lambda: BIG.max(1).values),),
        ["row_max"],
        cuda="""
#include <cfloat>
__inline__ __device__ float warp_max(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v = fmaxf(v, __shfl_down_sync(0xffffffff, v, offset));
    return v;
}
__global__ void row_max_kernel(const float* x, float* y, int cols) {
    __shared__ float part[32];
    float v = -FLT_MAX;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) v = fmaxf(v, x[blockIdx.x * cols + c]);
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : -FLT_MAX;
    if (threadIdx.x < 32) v = warp_max(v);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}
torch::Tensor row_max(torch::Tensor x) {
    auto y = torch::empty({x.size(0)}, x.options());
    row_max_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
""",
    ),
    Case(
        "cuda_constant_memory",
        "torch::Tensor filter(torch::Tensor x, torch::Tensor w);",
        (
            Call(
                lambda m: m.filter(on_gpu(BIG[0].clone()), BIG[1, :5].clone()),
                lambda: torch.nn.functional.conv1d(BIG[:1, None], BIG[None, None, 1, :5])[0, 0],
            ),
        ),
        ["filter"],
        cuda="""
__constant__ float weights[32];
__global__ void filter_kernel(const float* x, float* y, int n, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = 0.0f;
    for (int j = 0; j < k; ++j) s += weights[j] * x[i + j];
    y[i] = s;
}
torch::Tensor filter(torch::Tensor x, torch::Tensor w) {
    const int k = w.numel(), n = x.numel() - k + 1;
    cudaMemcpyToSymbol(weights, w.cpu().data_ptr<float>(), k * sizeof(float));
    auto y = torch::empty({n}, x.options());
    filter_kernel<<<(n + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, k);
    return y;
}
""",
    ),
    Case(
        "cuda_extern_c",
        "torch::Tensor add_one(torch::Tensor x);",
        (Call(lambda m: m.add_one(on_gpu(A)), lambda: A + 1),),
        ["add_one"],
        cuda="""
extern "C" __global__ void add_one_kernel(float* __restrict__ x, const int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1.0f;
}
extern "C" void launch_add_one(float* x, int n, cudaStream_t stream) { add_one_kernel<<<1, 64, 0, stream>>>(x, n); }
torch::Tensor add_one(torch::Tensor x) {
    auto y = x.clone();
    launch_add_one(y.data_ptr<float>(), static_cast<int>(y.numel()), 0);
    return y;
}
""",
    ),
]

# The same with other flags, which both routes must honour alike.
_FLAGS = (
    ("-O2",), ("-O1", "-lineinfo"), ("--maxrregcount=32",), ("-Xptxas", "-O2"), ("--fmad=false",),
    ("-O3", "--ftz=true"), ("-std=c++17",), ("-O3", "--extra-device-vectorization"), ("--prec-div=false",), ("-DNDEBUG",),
)  # fmt: skip
FLAG_CASES = [
    replace(case, name=f"{case.name}_{number}", cuda_cflags=flags)
    for number, (case, flags) in enumerate(zip(FIRST_CUDA_CASES, _FLAGS, strict=False))
]

CUDA_CASES: list[Case] = [*FIRST_CUDA_CASES, *MORE_CUDA_CASES, *FLAG_CASES, *CUDA_ERROR_CASES]


def _on_side_stream(run: object) -> torch.Tensor:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        result: torch.Tensor = run()  # type: ignore[operator]
    stream.synchronize()
    return result
