"""T13, linear layer, scale per feature, batch normalisation. GPU size.

KernelBench: level2/33_Gemm_Scale_BatchNorm.py. x [1024, 8192], weight [8192, 8192] -> [1024, 8192].
"""

import torch
from torch import nn

BATCH = 1024
INPUTS = 8192
OUTPUTS = 8192
NEEDED_FLOPS = 2 * BATCH * INPUTS * OUTPUTS


class Model(nn.Module):
    """``batch_norm(linear(x) * scale)`` with the batch's own statistics (train mode)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(torch.randn(outputs))
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, x):
        return self.norm(self.linear(x) * self.scale)


def get_inputs():
    return [torch.rand(BATCH, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS]
