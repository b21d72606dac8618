"""T9, matrix times transposed matrix. CPU size.

KernelBench: level1/17_Matmul_with_transposed_B.py. a [256, 1024], b [512, 1024] -> [256, 512].
"""

import torch
from torch import nn

ROWS = 256
INNER = 1024
COLUMNS = 512
NEEDED_FLOPS = 2 * ROWS * INNER * COLUMNS


class Model(nn.Module):
    """``a @ b.T``."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.matmul(a, b.T)


def get_inputs():
    return [torch.rand(ROWS, INNER), torch.rand(COLUMNS, INNER)]


def get_init_inputs():
    return []
