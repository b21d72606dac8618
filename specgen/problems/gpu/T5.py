"""T5, product of two symmetric matrices. GPU size.

KernelBench: level1/13_Matmul_for_symmetric_matrices.py. a, b [4096, 4096] -> [4096, 4096].
"""

import torch
from torch import nn

N = 4096
NEEDED_FLOPS = 2 * N**3


class Model(nn.Module):
    """``a @ b``; a and b equal their transposes, the product need not."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    a, b = torch.rand(N, N), torch.rand(N, N)
    return [(a + a.T) / 2, (b + b.T) / 2]


def get_init_inputs():
    return []
