"""Sources for the tests, made from one honest kernel of T4 (``diag(a) @ b``)."""

from __future__ import annotations

BODY = """
    const float* pa = a.data_ptr<float>();
    const float* pb = b.data_ptr<float>();
    float* po = out.data_ptr<float>();
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j)
            po[i * m + j] = pa[i] * pb[i * m + j];
"""

FORWARD = "        return ext.diag_mul(a, b)"


def t4(body: str = BODY, forward: str = FORWARD, before: str = "", top: str = "", cpp: str = "") -> str:
    """A candidate for T4: ``body`` fills ``out``, ``before`` runs at import after the build, ``top`` before it."""
    return f'''
import torch
from torch.utils.cpp_extension import load_inline
{top}
SOURCE = r"""
#include <torch/extension.h>
{cpp}
torch::Tensor diag_mul(torch::Tensor a, torch::Tensor b) {{
    int64_t n = b.size(0), m = b.size(1);
    auto out = torch::empty_like(b);
{body}
    return out;
}}
"""
ext = load_inline(name="diag_ext", cpp_sources=SOURCE, functions=["diag_mul"], extra_cflags=["-O3"])
{before}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {{}}
        self.calls = 0

    def forward(self, a, b):
{forward}
'''


def plain(forward: str, top: str = "") -> str:
    """A candidate that builds nothing."""
    return f"import torch\n{top}\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n{forward}\n"
