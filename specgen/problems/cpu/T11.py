"""T11, linear layer, factor, leaky ReLU. CPU size.

KernelBench: level2/12_Gemm_Multiply_LeakyReLU.py. x [128, 1024], weight [1024, 1024] -> [128, 1024].
"""

import torch
from torch import nn

BATCH = 128
INPUTS = 1024
OUTPUTS = 1024
FACTOR = 2.0
SLOPE = 0.1
NEEDED_FLOPS = 2 * BATCH * INPUTS * OUTPUTS


class Model(nn.Module):
    """``leaky_relu(linear(x) * factor, slope)``."""

    def __init__(self, inputs, outputs, factor, slope):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.activation = nn.LeakyReLU(slope)
        self.factor = factor

    def forward(self, x):
        return self.activation(self.linear(x) * self.factor)


def get_inputs():
    return [torch.rand(BATCH, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS, FACTOR, SLOPE]
