"""The honest kernels that cheats are made from: T4's ``diag(a) @ b`` and T2's product, with places for what is wrong."""

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


PRODUCT = """
    for (int64_t i = 0; i < n; ++i) {
        float* row = po + i * m;
        std::fill(row, row + m, 0.0f);
        for (int64_t l = 0; l < k; ++l)
            for (int64_t j = 0; j < m; ++j) row[j] += pa[i * k + l] * pb[l * m + j];
    }
"""
T2_NAME = "mul_ext"  # names the extension of every file for T2
MULTIPLY = "        return ext.multiply(a, b)"


def t2(
    body: str = PRODUCT, forward: str = MULTIPLY, before: str = "", cpp: str = "", methods: str = "", more: str = ""
) -> str:
    """A candidate for T2: ``body`` computes ``po`` from ``pa``, ``pb``, n, m, k. ``more``: further functions' names."""
    return f'''
import torch
from torch.utils.cpp_extension import load_inline
SOURCE = r"""
#include <torch/extension.h>
#include <algorithm>
#include <vector>
{cpp}
torch::Tensor multiply(torch::Tensor a, torch::Tensor b) {{
    int64_t k = b.size(0), m = b.size(1), n = a.numel() / k;
    auto out = torch::empty({{a.size(0), a.size(1), m}}, a.options());
    const float* pa = a.data_ptr<float>();
    const float* pb = b.data_ptr<float>();
    float* po = out.data_ptr<float>();
{body}
    return out;
}}
"""
ext = load_inline(name="{T2_NAME}", cpp_sources=SOURCE, functions=["multiply"{more}], extra_cflags=["-O3", "-march=native"])
{before}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {{}}
        self.calls = 0

    def forward(self, a, b):
{forward}
{methods}
'''


def plain(forward: str, top: str = "") -> str:
    """A candidate that builds nothing."""
    return f"import torch\n{top}\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n{forward}\n"


def model(cpp: str, functions: tuple[str, ...], klass: str, top: str = "") -> str:
    """Any other candidate: its C++ functions, and the whole class."""
    return f'''
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.cpp_extension import load_inline
SOURCE = r"""
#include <torch/extension.h>
#include <algorithm>
#include <cmath>
#include <vector>
{cpp}
"""
ext = load_inline(name="model_ext", cpp_sources=SOURCE, functions={list(functions)!r}, extra_cflags=["-O3", "-march=native"])
{top}

{klass}
'''


# The harness's own objects, as a candidate finds them that has read SpecGen's source.
HARNESS = """
import gc, sys
def harness():
    frame = sys._getframe()
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == "Harness":
            return frame.f_locals["self"]
        frame = frame.f_back
def doing():
    frame = sys._getframe()
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == "Harness" and "message" in frame.f_locals:
            return frame.f_locals["message"]["do"]
        frame = frame.f_back
"""
