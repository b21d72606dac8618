"""T20, causal self-attention with ReLU instead of softmax. CPU size.

KernelBench: level3/50_ReLUSelfAttention.py. x [2, 256, 256], 4 heads -> [2, 256, 256].
"""

import torch
from torch import nn

BATCH = 2
LENGTH = 256
WIDTH = 256
HEADS = 4
NEEDED_FLOPS = 2 * BATCH * LENGTH * WIDTH * (3 * WIDTH + LENGTH + 1)


class Model(nn.Module):
    """``relu(q @ k.T / sqrt(width of a head)) @ v`` per head, positions that come later left out."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(x).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(self.later[:length, :length], float("-inf"))
        mixed = torch.relu(scores) @ v
        return mixed.transpose(1, 2).contiguous().view(batch, length, width)


def get_inputs():
    return [torch.rand(BATCH, LENGTH, WIDTH)]


def get_init_inputs():
    return [WIDTH, HEADS, LENGTH]
