"""T4, diagonal matrix times matrix, written the slow way: the diagonal is made dense first. CPU size.

KernelBench: level1/12_Matmul_with_diagonal_matrices_.py, its older form. a [1024], b [1024, 1024] -> [1024, 1024].
"""

import torch
from torch import nn

N = 1024
M = 1024


class Model(nn.Module):
    """``diag(a) @ b``: row i of b scaled by a[i]."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.diag(a) @ b


def get_inputs():
    return [torch.rand(N), torch.rand(N, M)]


def get_init_inputs():
    return []
