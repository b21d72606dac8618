"""T10, product of two transposed matrices. CPU size.

KernelBench: level1/18_Matmul_with_transposed_both.py. a [1024, 256], b [512, 1024] -> [256, 512].
"""

import torch
from torch import nn

ROWS = 256
INNER = 1024
COLUMNS = 512
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
