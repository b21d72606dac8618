"""T8, transposed matrix times matrix. CPU size.

KernelBench: level1/16_Matmul_with_transposed_A.py. a [1024, 256], b [1024, 512] -> [256, 512].
"""

import torch
from torch import nn

ROWS = 256
INNER = 1024
COLUMNS = 512
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
