"""T4, diagonal times matrix: a template over the element type, own module definition."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>

template <typename scalar_t>
__global__ void scale_rows_kernel(
    const scalar_t* __restrict__ a, const scalar_t* __restrict__ b, scalar_t* __restrict__ c, int64_t columns) {
    const int64_t start = static_cast<int64_t>(blockIdx.x) * columns;
    const scalar_t scale = a[blockIdx.x];
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
        c[start + i] = scale * b[start + i];
    }
}

torch::Tensor diagonal_matmul(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(a.dim() == 1 && b.dim() == 2 && a.size(0) == b.size(0), "a must have one value for each row of b");
    const at::cuda::OptionalCUDAGuard guard(device_of(b));
    auto scale = a.contiguous();
    auto matrix = b.contiguous();
    auto c = torch::empty_like(matrix);
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(matrix.scalar_type(), "diagonal_matmul", [&] {
        scale_rows_kernel<scalar_t><<<matrix.size(0), 512, 0, at::cuda::getCurrentCUDAStream()>>>(
            scale.data_ptr<scalar_t>(), matrix.data_ptr<scalar_t>(), c.data_ptr<scalar_t>(), matrix.size(1));
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("diagonal_matmul", &diagonal_matmul, "diag(a) @ b");
}
"""

extension = load_inline(
    name="t4_dispatch",
    cpp_sources="",
    cuda_sources=cuda_source,
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return extension.diagonal_matmul(a, b)
