"""T1, hinge loss: the mean of ``max(1 - prediction * target, 0)``. GPU size.

KernelBench: level1/100_HingeLoss.py. predictions [32768, 32768], targets -1 or +1 [32768] -> a number.
"""

import torch
from torch import nn

ROWS = 32768
COLUMNS = 32768


class Model(nn.Module):
    """Predictions against targets of -1 or +1; the target row applies to every row of predictions."""

    def __init__(self):
        super().__init__()

    def forward(self, predictions, targets):
        margin = 1 - predictions * targets
        return torch.mean(torch.clamp(margin, min=0))


def get_inputs():
    signs = torch.randint(0, 2, (COLUMNS,)).float() * 2 - 1
    return [torch.rand(ROWS, COLUMNS), signs]


def get_init_inputs():
    return []
