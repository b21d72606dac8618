"""T3, 4D tensor times matrix, as an einsum. CPU size.

KernelBench: level1/11_4D_tensor_matrix_multiplication.py. a [2, 64, 64, 128], b [128, 384] -> [2, 64, 64, 384].
"""

import torch
from torch import nn

BATCH = 2
ROWS = 64
COLUMNS = 64
INNER = 128
FEATURES = 384
NEEDED_FLOPS = 2 * BATCH * ROWS * COLUMNS * INNER * FEATURES


class Model(nn.Module):
    """``out[b, i, j, k] = sum over l of a[b, i, j, l] * b[l, k]``."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.einsum("bijl,lk->bijk", a, b)


def get_inputs():
    return [torch.rand(BATCH, ROWS, COLUMNS, INNER), torch.rand(INNER, FEATURES)]


def get_init_inputs():
    return []
