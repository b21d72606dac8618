"""T15, linear layer, sigmoid, row sum. GPU size.

KernelBench: level2/56_Matmul_Sigmoid_Sum.py. x [128, 32768], weight [32768, 32768] -> [128, 1].
"""

import torch
from torch import nn

BATCH = 128
INPUTS = 32768
OUTPUTS = 32768
NEEDED_FLOPS = 2 * BATCH * INPUTS * OUTPUTS


class Model(nn.Module):
    """``sum(sigmoid(linear(x)), dim=1, keepdim=True)``."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.sum(torch.sigmoid(self.linear(x)), dim=1, keepdim=True)


def get_inputs():
    return [torch.rand(BATCH, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS]
