"""T19, perceptron: three linear layers, ReLU between them. CPU size.

KernelBench: level3/1_MLP.py. x [64, 1024], layers of 1024, 1024 and 512 -> [64, 512].
"""

import torch
from torch import nn

BATCH = 64
INPUTS = 1024
HIDDEN = 1024
OUTPUTS = 512
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
