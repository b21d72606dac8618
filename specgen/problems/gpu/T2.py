"""T2, 3D tensor times matrix: every [rows, inner] slice of a times b. GPU size.

KernelBench: level1/10_3D_tensor_matrix_multiplication.py. a [16, 1024, 2048], b [2048, 768] -> [16, 1024, 768].
"""

import torch
from torch import nn

BATCH = 16
ROWS = 1024
INNER = 2048
COLUMNS = 768
NEEDED_FLOPS = 2 * BATCH * ROWS * INNER * COLUMNS


class Model(nn.Module):
    """``a @ b`` over a's last dimension."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.rand(BATCH, ROWS, INNER), torch.rand(INNER, COLUMNS)]


def get_init_inputs():
    return []
