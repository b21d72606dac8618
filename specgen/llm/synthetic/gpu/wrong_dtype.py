"""T4 that returns half."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>


constexpr int THREADS = 256;

// A block for each row, so that the factor is one load and no thread divides.
__global__ void __launch_bounds__(THREADS) scale_row_kernel(
    const float* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, int width) {
    const float s = a[blockIdx.x];
    const float4* from = b + static_cast<int64_t>(blockIdx.x) * width;
    float4* to = c + static_cast<int64_t>(blockIdx.x) * width;
#pragma unroll 4
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float4 v = from[i];
        v.x *= s;
        v.y *= s;
        v.z *= s;
        v.w *= s;
        to[i] = v;
    }
}

torch::Tensor diagonal_matmul(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(a.dim() == 1 && b.dim() == 2 && a.size(0) == b.size(0), "a must have one value for each row of b");
    TORCH_CHECK(b.size(1) % 4 == 0, "the number of columns must be a multiple of 4");
    const at::cuda::OptionalCUDAGuard guard(device_of(b));
    a = a.contiguous();
    b = b.contiguous();
    auto c = torch::empty_like(b);
    scale_row_kernel<<<b.size(0), THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), reinterpret_cast<const float4*>(b.data_ptr<float>()),
        reinterpret_cast<float4*>(c.data_ptr<float>()), static_cast<int>(b.size(1) / 4));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}
"""

cpp_source = "torch::Tensor diagonal_matmul(torch::Tensor a, torch::Tensor b);"

extension = load_inline(
    name="wrong_dtype",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["diagonal_matmul"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return extension.diagonal_matmul(a, b).half()
