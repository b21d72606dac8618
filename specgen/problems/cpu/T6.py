"""T6, product of two upper triangular matrices. CPU size.

KernelBench: level1/14_Matmul_for_upper_triangular_matrices.py. a, b [512, 512] -> [512, 512].
"""

import torch
from torch import nn

N = 512
NEEDED_FLOPS = N * (N + 1) * (N + 2) // 3


class Model(nn.Module):
    """``triu(a @ b)``; a and b are upper triangular too."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.triu(torch.matmul(a, b))


def get_inputs():
    return [torch.triu(torch.rand(N, N)), torch.triu(torch.rand(N, N))]


def get_init_inputs():
    return []
