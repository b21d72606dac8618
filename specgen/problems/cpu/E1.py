"""E1, an elementwise chain over a residual: scale, bias, GELU, clamp, add. CPU size.

Not in KernelBench. x and residual [1024, 2048], scale and bias [2048] -> [1024, 2048].
"""

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 1024
FEATURES = 2048


class Model(nn.Module):
    """``clamp(gelu(x * scale + bias), -limit, limit) + residual``, scale and bias per feature."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x, scale, bias, residual):
        activated = F.gelu(x * scale + bias)
        return torch.clamp(activated, -self.limit, self.limit) + residual


def get_inputs():
    return [
        torch.rand(ROWS, FEATURES),
        torch.rand(FEATURES),
        torch.rand(FEATURES),
        torch.rand(ROWS, FEATURES),
    ]


def get_init_inputs():
    return [2.0]
