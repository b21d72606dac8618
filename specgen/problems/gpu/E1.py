"""E1, an elementwise chain over a residual: scale, bias, GELU, clamp, add. GPU size.

Not in KernelBench. x and residual [8192, 16384], scale and bias [16384] -> [8192, 16384].
"""

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 8192
FEATURES = 16384


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
