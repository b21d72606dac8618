"""T4, diagonal times matrix: 16-byte streaming accesses, four in flight in each thread."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>

constexpr int THREADS = 256;
constexpr int PER_THREAD = 4;

// Each thread moves four vectors of four floats; all loads are issued before the first store.
__global__ void __launch_bounds__(THREADS) scale_rows_kernel(
    const float* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, int width, int64_t count) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * THREADS * PER_THREAD + threadIdx.x;
    float4 value[PER_THREAD];
    float scale[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int64_t at = first + i * THREADS;
        if (at < count) {
            value[i] = __ldcs(b + at);
            scale[i] = __ldg(a + static_cast<int>(at / width));
        }
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int64_t at = first + i * THREADS;
        if (at < count) {
            const float s = scale[i];
            c[at] = make_float4(value[i].x * s, value[i].y * s, value[i].z * s, value[i].w * s);
        }
    }
}

torch::Tensor diagonal_matmul(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(a.scalar_type() == torch::kFloat32 && b.scalar_type() == torch::kFloat32, "inputs must be float32");
    TORCH_CHECK(a.dim() == 1 && b.dim() == 2 && a.size(0) == b.size(0), "a must have one value for each row of b");
    TORCH_CHECK(b.size(1) % 4 == 0, "the number of columns must be a multiple of 4");
    const at::cuda::OptionalCUDAGuard guard(device_of(b));
    a = a.contiguous();
    b = b.contiguous();
    auto c = torch::empty_like(b);
    const int64_t count = b.numel() / 4;
    const int64_t piece = THREADS * PER_THREAD;
    scale_rows_kernel<<<(count + piece - 1) / piece, THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), reinterpret_cast<const float4*>(b.data_ptr<float>()),
        reinterpret_cast<float4*>(c.data_ptr<float>()), static_cast<int>(b.size(1) / 4), count);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}
"""

cpp_source = "torch::Tensor diagonal_matmul(torch::Tensor a, torch::Tensor b);"

extension = load_inline(
    name="t4_float4",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["diagonal_matmul"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return extension.diagonal_matmul(a, b)
