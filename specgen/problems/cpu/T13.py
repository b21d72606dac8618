"""T13, linear layer, scale per feature, batch normalisation. CPU size.

KernelBench: level2/33_Gemm_Scale_BatchNorm.py. x [128, 1024], weight [1024, 1024] -> [128, 1024].
"""

import torch
from torch import nn

BATCH = 128
INPUTS = 1024
OUTPUTS = 1024
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
