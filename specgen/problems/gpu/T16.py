"""T16, convolution, batch normalisation, factor. GPU size.

KernelBench: level2/73_Conv2d_BatchNorm_Scaling.py. x [128, 8, 128, 128], kernel 3 x 3 -> [128, 64, 126, 126].
"""

import torch
from torch import nn

BATCH = 128
CHANNELS = 8
FILTERS = 64
SIDE = 128
KERNEL = 3
FACTOR = 2.0


class Model(nn.Module):
    """``batch_norm(convolution(x)) * factor`` with the batch's own statistics (train mode)."""

    def __init__(self, channels, filters, kernel, factor):
        super().__init__()
        self.convolution = nn.Conv2d(channels, filters, kernel)
        self.norm = nn.BatchNorm2d(filters)
        self.factor = factor

    def forward(self, x):
        return self.norm(self.convolution(x)) * self.factor


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS, KERNEL, FACTOR]
