"""T2, 3D tensor times matrix: every [rows, inner] slice of a times b. CPU size.

KernelBench: level1/10_3D_tensor_matrix_multiplication.py. a [4, 256, 512], b [512, 384] -> [4, 256, 384].
"""

import torch
from torch import nn

BATCH = 4
ROWS = 256
INNER = 512
COLUMNS = 384
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
