"""T17, linear layer without bias, added vector, ReLU. CPU size.

KernelBench: level2/76_Gemm_Add_ReLU.py. x [128, 1024], weight [1024, 1024] -> [128, 1024].
"""

import torch
from torch import nn

BATCH = 128
INPUTS = 1024
OUTPUTS = 1024
NEEDED_FLOPS = 2 * BATCH * INPUTS * OUTPUTS


class Model(nn.Module):
    """``relu(x @ W.T + offset)``, offset normally distributed."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.offset = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.relu(self.linear(x) + self.offset)


def get_inputs():
    return [torch.rand(BATCH, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS]
