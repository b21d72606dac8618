"""T17, linear layer without bias, added vector, ReLU. GPU size.

KernelBench: level2/76_Gemm_Add_ReLU.py. x [1024, 8192], weight [8192, 8192] -> [1024, 8192].
"""

import torch
from torch import nn

BATCH = 1024
INPUTS = 8192
OUTPUTS = 8192
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
