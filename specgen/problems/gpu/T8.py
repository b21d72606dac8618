"""T8, transposed matrix times matrix. GPU size.

KernelBench: level1/16_Matmul_with_transposed_A.py. a [8192, 2048], b [8192, 4096] -> [2048, 4096].
"""

import torch
from torch import nn

ROWS = 2048
INNER = 8192
COLUMNS = 4096
NEEDED_FLOPS = 2 * ROWS * INNER * COLUMNS


class Model(nn.Module):
    """``a.T @ b``."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.matmul(a.T, b)


def get_inputs():
    return [torch.rand(INNER, ROWS), torch.rand(INNER, COLUMNS)]


def get_init_inputs():
    return []
