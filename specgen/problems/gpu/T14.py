"""T14, convolution, Mish as softplus and tanh, batch normalisation. GPU size.

KernelBench: level2/52_Conv2d_Activation_BatchNorm.py. x [64, 64, 128, 128], kernel 3 x 3 -> [64, 128, 126, 126].
"""

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 64
CHANNELS = 64
FILTERS = 128
SIDE = 128
KERNEL = 3


class Model(nn.Module):
    """``batch_norm(tanh(softplus(c)) * c)``, c the convolution of x, with the batch's own statistics (train mode)."""

    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.convolution = nn.Conv2d(channels, filters, kernel)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, x):
        c = self.convolution(x)
        return self.norm(torch.tanh(F.softplus(c)) * c)


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS, KERNEL]
