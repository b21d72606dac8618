"""T7, product of two lower triangular matrices. CPU size.

KernelBench: level1/15_Matmul_for_lower_triangular_matrices.py. a, b [512, 512] -> [512, 512].
"""

import torch
from torch import nn

N = 512
NEEDED_FLOPS = N * (N + 1) * (N + 2) // 3


class Model(nn.Module):
    """``tril(a @ b)``; a and b are lower triangular too."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.tril(torch.matmul(a, b))


def get_inputs():
    return [torch.tril(torch.rand(N, N)), torch.tril(torch.rand(N, N))]


def get_init_inputs():
    return []
