"""T12, matrix product, division, row sum and scaling. GPU size.

KernelBench: level2/14_Gemm_Divide_Sum_Scaling.py. x [1024, 8192], weight [8192, 8192] -> [1024, 1].
"""

import torch
from torch import nn

BATCH = 1024
INPUT_SIZE = 8192
HIDDEN_SIZE = 8192
SCALE = 1.5


class Model(nn.Module):
    """``scale * sum(x @ W.T / 2, dim=1, keepdim=True)`` with a normally distributed W."""

    def __init__(self, input_size, hidden_size, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scale = scale

    def forward(self, x):
        product = torch.matmul(x, self.weight.T)
        halved = product / 2
        return torch.sum(halved, dim=1, keepdim=True) * self.scale


def get_inputs():
    return [torch.rand(BATCH, INPUT_SIZE)]


def get_init_inputs():
    return [INPUT_SIZE, HIDDEN_SIZE, SCALE]
