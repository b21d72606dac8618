"""T10, product of two transposed matrices. GPU size.

KernelBench: level1/18_Matmul_with_transposed_both.py. a [8192, 2048], b [4096, 8192] -> [2048, 4096].
"""

import torch
from torch import nn

ROWS = 2048
INNER = 8192
COLUMNS = 4096
NEEDED_FLOPS = 2 * ROWS * INNER * COLUMNS


class Model(nn.Module):
    """``a.T @ b.T``."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.matmul(a.T, b.T)


def get_inputs():
    return [torch.rand(INNER, ROWS), torch.rand(COLUMNS, INNER)]


def get_init_inputs():
    return []
