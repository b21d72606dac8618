"""T9, matrix times transposed matrix. GPU size.

KernelBench: level1/17_Matmul_with_transposed_B.py. a [2048, 8192], b [4096, 8192] -> [2048, 4096].
"""

import torch
from torch import nn

ROWS = 2048
INNER = 8192
COLUMNS = 4096
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
