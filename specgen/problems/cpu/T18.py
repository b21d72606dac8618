"""T18, linear layer, GELU, softmax over the features. CPU size.

KernelBench: level2/99_Matmul_GELU_Softmax.py. x [128, 1024], weight [1024, 1024] -> [128, 1024].
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 128
INPUTS = 1024
OUTPUTS = 1024
NEEDED_FLOPS = 2 * BATCH * INPUTS * OUTPUTS


class Model(nn.Module):
    """``softmax(gelu(linear(x)), dim=1)``; its values are near 1 / outputs, so an absolute tolerance says little."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return F.softmax(F.gelu(self.linear(x)), dim=1)


def get_inputs():
    return [torch.rand(BATCH, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS]
