"""CUDA sources, second half: libraries, split files, streams, memory, accessors, and those for stock."""
# ruff: noqa: E501  the sources are data

from __future__ import annotations

import torch

from benchmarks.build_cases import SQUARE, A, B, Call, Case, Raises, tensor

WIDE = tensor(4, 4096, seed=21)
SCALE_KERNEL = """
__global__ void scale_kernel(const float* x, float* y, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = s * x[i];
}
"""


def on_gpu(value: torch.Tensor) -> torch.Tensor:
    """A fresh copy on the device."""
    return value.clone().cuda()


MORE_CUDA_CASES: list[Case] = [
    Case(
        "cuda_inline_ptx",
        "torch::Tensor fused_add(torch::Tensor a, torch::Tensor b);",
        (Call(lambda m: m.fused_add(on_gpu(A), on_gpu(B)), lambda: A * B + A),),
        ["fused_add"],
        cuda="""
__device__ __forceinline__ float fused(float a, float b, float c) {
    float d;
    asm volatile("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}
__global__ void fma_kernel(const float* a, const float* b, float* c, int n) {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    int i = blockIdx.x * blockDim.x + (threadIdx.x & ~31u) + lane;
    if (i < n) c[i] = fused(a[i], b[i], a[i]);
}
torch::Tensor fused_add(torch::Tensor a, torch::Tensor b) {
    auto c = torch::empty_like(a);
    fma_kernel<<<1, 64>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), a.numel());
    return c;
}
""",
    ),
    Case(
        "cuda_cub",
        "torch::Tensor total(torch::Tensor x);",
        (Call(lambda m: m.total(on_gpu(WIDE)), lambda: WIDE.sum(1)),),
        ["total"],
        cuda="""
#include <cub/cub.cuh>
__global__ void total_kernel(const float* x, float* y, int cols) {
    using Reduce = cub::BlockReduce<float, 256>;
    __shared__ typename Reduce::TempStorage storage;
    float s = 0.0f;
    for (int c = threadIdx.x; c < cols; c += 256) s += x[blockIdx.x * cols + c];
    s = Reduce(storage).Sum(s);
    if (threadIdx.x == 0) y[blockIdx.x] = s;
}
torch::Tensor total(torch::Tensor x) {
    auto y = torch::zeros({x.size(0)}, x.options());
    total_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
""",
    ),
    Case(
        "cuda_cooperative_groups",
        "torch::Tensor norm(torch::Tensor x);",
        (Call(lambda m: m.norm(on_gpu(WIDE)), lambda: WIDE.norm(dim=1)),),
        ["norm"],
        cuda="""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void norm_kernel(const float* x, float* y, int cols) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    float s = 0.0f;
    for (int c = warp.thread_rank(); c < cols; c += 32) { float v = x[blockIdx.x * cols + c]; s += v * v; }
    s = cg::reduce(warp, s, cg::plus<float>());
    if (warp.thread_rank() == 0) y[blockIdx.x] = sqrtf(s);
}
torch::Tensor norm(torch::Tensor x) {
    auto y = torch::empty({x.size(0)}, x.options());
    norm_kernel<<<x.size(0), 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
""",
    ),
    Case(
        "cuda_keyword_defaults",
        "",
        (
            Call(lambda m: m.scale(on_gpu(A)), lambda: A * 2),
            Call(lambda m: m.scale(x=on_gpu(A), factor=3.0), lambda: A * 3),
        ),
        cuda=SCALE_KERNEL
        + """
torch::Tensor scale(torch::Tensor x, double factor) {
    auto y = torch::empty_like(x);
    scale_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), factor, x.numel());
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale, py::arg("x"), py::arg("factor") = 2.0); }
""",
        route="stock",
    ),
    Case(
        "cuda_split_host",
        """
#include <torch/extension.h>
void scale_launcher(const float* x, float* y, float s, int n);
torch::Tensor scale(torch::Tensor x, double s) {
    TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
    auto y = torch::empty_like(x);
    scale_launcher(x.data_ptr<float>(), y.data_ptr<float>(), static_cast<float>(s), x.numel());
    return y;
}
""",
        (
            Call(lambda m: m.scale(on_gpu(A), 4.0), lambda: A * 4),
            Call(lambda m: m.scale(A, 4.0), Raises("RuntimeError", "x must be on the GPU")),
        ),
        ["scale"],
        cuda=SCALE_KERNEL + "void scale_launcher(const float* x, float* y, float s, int n) "
        "{ scale_kernel<<<(n + 63) / 64, 64>>>(x, y, s, n); }\n",
    ),
    Case(
        "cuda_default_in_prototype",
        "torch::Tensor scale(torch::Tensor x, double s = 2.0);",
        (Call(lambda m: m.scale(on_gpu(A), 4.0), lambda: A * 4),),
        ["scale"],
        cuda=SCALE_KERNEL
        + """
torch::Tensor scale(torch::Tensor x, double s = 2.0) {
    auto y = torch::empty_like(x);
    scale_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), s, x.numel());
    return y;
}
""",
    ),
    Case(
        "cuda_from_files",
        "",
        (
            Call(lambda m: m.triple(on_gpu(A)), lambda: A * 3),
            Call(lambda m: m.triple(A), Raises("RuntimeError", "GPU only")),
        ),
        files={
            "kernels.cuh": "#pragma once\nvoid launch_triple(const float* x, float* y, int n, cudaStream_t s);\n",
            "kernels.cu": '#include <cuda_runtime.h>\n#include "kernels.cuh"\n'
            "__global__ void triple_kernel(const float* x, float* y, int n) {\n"
            "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = 3 * x[i];\n}\n"
            "void launch_triple(const float* x, float* y, int n, cudaStream_t s) "
            "{ triple_kernel<<<(n + 63) / 64, 64, 0, s>>>(x, y, n); }\n",
            "binding.cpp": "#include <torch/extension.h>\n#include <c10/cuda/CUDAStream.h>\n"
            '#include <cuda_runtime.h>\n#include "kernels.cuh"\n'
            "torch::Tensor triple(torch::Tensor x) {\n"
            '    TORCH_CHECK(x.is_cuda(), "GPU only");\n    auto y = torch::empty_like(x);\n'
            "    launch_triple(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), c10::cuda::getCurrentCUDAStream());\n"
            "    return y;\n}\n"
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("triple", &triple, "3 x"); }\n',
        },
        cuda_cflags=("-O3",),
    ),
    Case(
        "cuda_accessors",
        "torch::Tensor transpose(torch::Tensor x);",
        (
            Call(lambda m: m.transpose(on_gpu(A)), lambda: A.t().contiguous()),
            Call(lambda m: m.transpose(on_gpu(A).t()), lambda: A),
            Call(lambda m: m.transpose(on_gpu(A[0])), Raises("RuntimeError", "expected 2 dims but tensor has 1")),
        ),
        ["transpose"],
        cuda="""
template <typename scalar_t>
__global__ void transpose_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
    torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y) {
    const int r = blockIdx.x, c = threadIdx.x;
    if (r < x.size(0) && c < x.size(1)) y[c][r] = x[r][c];
}
torch::Tensor transpose(torch::Tensor x) {
    auto in = x.packed_accessor32<float, 2, torch::RestrictPtrTraits>();
    auto y = torch::empty({x.size(1), x.size(0)}, x.options());
    transpose_kernel<float><<<x.size(0), 32>>>(in, y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
    return y;
}
""",
    ),
    Case(
        "cuda_dynamic_shared",
        "torch::Tensor softmax(torch::Tensor x);",
        (
            Call(lambda m: m.softmax(on_gpu(WIDE)), lambda: torch.softmax(WIDE, 1)),
            Call(lambda m: m.softmax(on_gpu(tensor(1, 80000))), Raises("RuntimeError", "CUDA error")),
        ),
        ["softmax"],
        cuda="""
#include <c10/cuda/CUDAException.h>
__global__ void softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int cols) {
    extern __shared__ float row[];
    __shared__ float top, sum;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) row[c] = x[blockIdx.x * (size_t)cols + c];
    __syncthreads();
    if (threadIdx.x == 0) {
        float t = -INFINITY, s = 0.0f;
        for (int c = 0; c < cols; ++c) t = fmaxf(t, row[c]);
        for (int c = 0; c < cols; ++c) s += expf(row[c] - t);
        top = t;
        sum = s;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += blockDim.x) y[blockIdx.x * (size_t)cols + c] = expf(row[c] - top) / sum;
}
torch::Tensor softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const size_t bytes = x.size(1) * sizeof(float);
    C10_CUDA_CHECK(cudaFuncSetAttribute(softmax_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    softmax_kernel<<<x.size(0), 128, bytes>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
""",
    ),
    Case(
        "cuda_launch_error",
        "torch::Tensor bad(torch::Tensor x, int threads);",
        (
            Call(lambda m: m.bad(on_gpu(A), 32), lambda: A),
            Call(lambda m: m.bad(on_gpu(A), 4096), Raises("RuntimeError", "invalid configuration argument")),
            Call(lambda m: m.bad(on_gpu(A), 32), lambda: A),
        ),
        ["bad"],
        cuda="""
__global__ void copy_kernel(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
}
torch::Tensor bad(torch::Tensor x, int threads) {
    auto y = torch::empty_like(x);
    copy_kernel<<<1, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) throw std::runtime_error(std::string("launch failed: ") + cudaGetErrorString(err));
    return y;
}
""",
    ),
    Case(
        "cuda_illegal_access",
        "torch::Tensor wild(torch::Tensor x);",
        (Call(lambda m: m.wild(on_gpu(A)), Raises("AcceleratorError", "an illegal memory access")),),
        ["wild"],
        cuda="""
#include <c10/cuda/CUDAException.h>
__global__ void wild_kernel(float* x) { x[(1ll << 40) + threadIdx.x] = 1.0f; }
torch::Tensor wild(torch::Tensor x) {
    wild_kernel<<<1, 32>>>(x.data_ptr<float>());
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    return x;
}
""",
    ),
    Case(
        "cuda_streams_and_memory",
        "torch::Tensor staged(torch::Tensor x);",
        (Call(lambda m: m.staged(on_gpu(A)), lambda: A + 1),),
        ["staged"],
        cuda="""
#include <vector>
__global__ void inc_kernel(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1.0f; }
torch::Tensor staged(torch::Tensor x) {
    const size_t bytes = x.numel() * sizeof(float);
    float* buffer = nullptr;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaMalloc(&buffer, bytes);
    cudaDeviceSynchronize();
    cudaMemcpyAsync(buffer, x.data_ptr<float>(), bytes, cudaMemcpyDeviceToDevice, stream);
    inc_kernel<<<1, 64, 0, stream>>>(buffer, x.numel());
    auto y = torch::empty_like(x);
    cudaStreamSynchronize(stream);
    cudaMemcpyAsync(y.data_ptr<float>(), buffer, bytes, cudaMemcpyDeviceToDevice, stream);
    cudaStreamSynchronize(stream);
    cudaFree(buffer);
    cudaStreamDestroy(stream);
    return y;
}
""",
    ),
    Case(
        "cuda_device_properties",
        "std::vector<int64_t> facts(torch::Tensor x);",
        (Call(lambda m: m.facts(on_gpu(A))[1:], lambda: [0, 1, 32]),),
        ["facts"],
        cuda="""
#include <ATen/cuda/CUDAContext.h>
__global__ void nothing() {}
std::vector<int64_t> facts(torch::Tensor x) {
    const cudaDeviceProp* p = at::cuda::getCurrentDeviceProperties();
    nothing<<<1, 1>>>();
    return {p->multiProcessorCount, x.get_device(), x.device().type() == torch::kCUDA, p->warpSize};
}
""",
    ),
    Case(
        "cuda_cublas",
        "torch::Tensor gemm(torch::Tensor a, torch::Tensor b);",
        (Call(lambda m: m.gemm(on_gpu(SQUARE), on_gpu(SQUARE)), lambda: SQUARE @ SQUARE),),
        ["gemm"],
        cuda="""
#include <ATen/cuda/CUDAContext.h>
#include <cublas_v2.h>
torch::Tensor gemm(torch::Tensor a, torch::Tensor b) {
    const int m = a.size(0), k = a.size(1), n = b.size(1);
    auto c = torch::empty({m, n}, a.options());
    const float one = 1.0f, zero = 0.0f;
    cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
    const auto status = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data_ptr<float>(), n,
                                    a.data_ptr<float>(), k, &zero, c.data_ptr<float>(), n);
    TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublas ", static_cast<int>(status));
    return c;
}
""",
        ldflags=("-lcublas",),
    ),
    Case(
        "cuda_thrust",
        "torch::Tensor prefix(torch::Tensor x);",
        (Call(lambda m: m.prefix(on_gpu(A.abs().ceil())), lambda: A.abs().ceil().view(-1).cumsum(0).view(6, 5)),),
        ["prefix"],
        cuda="""
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/scan.h>
torch::Tensor prefix(torch::Tensor x) {
    auto y = torch::empty_like(x);
    thrust::device_ptr<float> in(x.data_ptr<float>()), out(y.data_ptr<float>());
    thrust::inclusive_scan(thrust::device, in, in + x.numel(), out);
    return y;
}
""",
    ),
    Case(
        "cuda_tensor_cores",
        "torch::Tensor mma(torch::Tensor a, torch::Tensor b);",
        (Call(lambda m: m.mma(on_gpu(_tile()), on_gpu(_tile())), lambda: _tile().float() @ _tile().float()),),
        ["mma"],
        cuda="""
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
__global__ void mma_kernel(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
torch::Tensor mma(torch::Tensor a, torch::Tensor b) {
    auto c = torch::empty({16, 16}, a.options().dtype(torch::kFloat32));
    mma_kernel<<<1, 32>>>(reinterpret_cast<half*>(a.data_ptr<at::Half>()), reinterpret_cast<half*>(b.data_ptr<at::Half>()),
                          c.data_ptr<float>());
    return c;
}
""",
        exact=True,
    ),
    Case(
        "cuda_atomics",
        "torch::Tensor histogram(torch::Tensor x, int64_t bins);",
        (
            Call(lambda m: m.histogram(on_gpu(torch.arange(12) % 5), 5), lambda: torch.tensor([3, 3, 2, 2, 2])),
            Call(
                lambda m: m.histogram(on_gpu(A), 5), Raises("RuntimeError", "expected scalar type Long but found Float")
            ),
        ),
        ["histogram"],
        cuda="""
__global__ void histogram_kernel(const int64_t* x, unsigned long long* h, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&h[x[i]], 1ull);
}
torch::Tensor histogram(torch::Tensor x, int64_t bins) {
    auto h = torch::zeros({bins}, x.options().dtype(torch::kLong));
    histogram_kernel<<<1, 64>>>(x.data_ptr<int64_t>(), reinterpret_cast<unsigned long long*>(h.data_ptr<int64_t>()), x.numel());
    return h;
}
""",
    ),
    Case(
        "cuda_index_types",
        "torch::Tensor gather(torch::Tensor x, torch::Tensor index);",
        (
            Call(lambda m: m.gather(on_gpu(A), on_gpu(torch.tensor([2, 0]))), lambda: A[[2, 0]]),
            Call(lambda m: m.gather(on_gpu(A), on_gpu(torch.tensor([2, 0]).int())), Raises("RuntimeError", "Long")),
        ),
        ["gather"],
        cuda="""
#include <vector>
template <typename T, typename I> __global__ void gather_kernel(const T* x, const I* index, T* y, I cols) {
    y[blockIdx.x * cols + threadIdx.x] = x[index[blockIdx.x] * cols + threadIdx.x];
}
torch::Tensor gather(torch::Tensor x, torch::Tensor index) {
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    shape[0] = index.size(0);
    auto y = at::empty(shape, x.options());
    gather_kernel<float, int64_t><<<index.size(0), x.size(1)>>>(
        x.data_ptr<float>(), index.data_ptr<int64_t>(), y.data_ptr<float>(), x.size(1));
    return y;
}
""",
    ),
    Case(
        "cuda_reduction_two_pass",
        "torch::Tensor mean_squared(torch::Tensor a, torch::Tensor b);",
        (Call(lambda m: m.mean_squared(on_gpu(A), on_gpu(B)), lambda: ((A - B) ** 2).mean()),),
        ["mean_squared"],
        cuda="""
#include <algorithm>
__global__ void partial_kernel(const float* a, const float* b, float* out, int n) {
    __shared__ float part[256];
    float s = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const float d = a[i] - b[i];
        s += d * d;
    }
    part[threadIdx.x] = s;
    __syncthreads();
    for (int k = blockDim.x / 2; k > 0; k /= 2) {
        if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
torch::Tensor mean_squared(torch::Tensor a, torch::Tensor b) {
    const int n = a.numel(), blocks = std::min(64, (n + 255) / 256);
    auto parts = torch::empty({blocks}, a.options());
    partial_kernel<<<blocks, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), parts.data_ptr<float>(), n);
    return parts.sum() / n;
}
""",
    ),
    Case(
        "cuda_no_headers_named",
        "at::Tensor negate(const at::Tensor& x);",
        (
            Call(lambda m: m.negate(on_gpu(A)), lambda: -A),
            Call(lambda m: m.negate(on_gpu(A).requires_grad_()).requires_grad, lambda: False),
        ),
        ["negate"],
        cuda="""
__global__ void negate_kernel(const float* const x, float* const y, const unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = -x[i];
}
at::Tensor negate(const at::Tensor& x) {
    auto y = at::empty_like(x);
    negate_kernel<<<1, 64>>>(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel());
    return y.detach();
}
""",
    ),
    Case(
        "cuda_standard",
        "torch::Tensor clip(torch::Tensor x);",
        (Call(lambda m: m.clip(on_gpu(A)), lambda: A.clamp(-0.5, 0.5)),),
        ["clip"],
        cuda="""
struct Clip {
    float low, high;
    __host__ __device__ float operator()(float v) const { return v < low ? low : (v > high ? high : v); }
};
template <class F> __global__ void map_kernel(const float* x, float* y, int n, F f) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = f(x[i]);
}
torch::Tensor clip(torch::Tensor x) {
    auto y = torch::empty_like(x);
    if constexpr (sizeof(Clip) == 8) map_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), Clip{-0.5f, 0.5f});
    return y;
}
""",
        cuda_cflags=("-O2", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-lineinfo"),
    ),
]


def _tile() -> torch.Tensor:
    return tensor(16, 16, seed=31).half()
