"""T3, 4D tensor times matrix, as an einsum. GPU size.

KernelBench: level1/11_4D_tensor_matrix_multiplication.py. a [8, 256, 512, 256], b [256, 768] -> [8, 256, 512, 768].
"""

import torch
from torch import nn

BATCH = 8
ROWS = 256
COLUMNS = 512
INNER = 256
FEATURES = 768
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
