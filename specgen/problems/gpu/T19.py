"""T19, perceptron: three linear layers, ReLU between them. GPU size.

KernelBench: level3/1_MLP.py. x [128, 16384], layers of 16384, 16384 and 8192 -> [128, 8192].
"""

import torch
from torch import nn

BATCH = 128
INPUTS = 16384
HIDDEN = 16384
OUTPUTS = 8192
NEEDED_FLOPS = 2 * BATCH * HIDDEN * (INPUTS + HIDDEN + OUTPUTS)


class Model(nn.Module):
    """``linear(relu(linear(relu(linear(x)))))``."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.rand(BATCH, INPUTS)]


def get_init_inputs():
    return [INPUTS, HIDDEN, OUTPUTS]
