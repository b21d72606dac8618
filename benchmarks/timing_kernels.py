"""Kernels whose duration is known: the same work done a given number of times, or a given number of nanoseconds.

On a CPU a chain of dependent operations, each of which waits for the one before; on a GPU one thread that looks at
the device's own nanosecond clock. Whole candidate files, so that they come into a window the way candidates do. The
reference of such a problem does next to nothing; the output is the same on both sides.
"""

from __future__ import annotations

from specgen.types import ProblemSpec

_PROBLEM = """
import torch

AMOUNT = {amount}


class Model(torch.nn.Module):
    def forward(self, x, amount):
        return x * 2


def get_inputs():
    return [torch.rand(256), AMOUNT]


def get_init_inputs():
    return []
"""

_CANDIDATE = """
import torch
from torch.utils.cpp_extension import load_inline

ext = load_inline(name="known", functions=["known"], {sources})


class ModelNew(torch.nn.Module):
    def forward(self, x, amount):
        return ext.known(x, amount)
"""

_CHAIN = r"""
#include <torch/extension.h>

torch::Tensor known(torch::Tensor x, int64_t count) {
  uint64_t value = 1;
  for (int64_t i = 0; i < count; ++i) {
    value = value * 6364136223846793005ull + 1442695040888963407ull;
    asm volatile("" : "+r"(value));
  }
  auto out = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = out.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i];
  return out;
}
"""

_SPIN = r"""
#include <torch/extension.h>

__global__ void spin(const float* from, float* to, int count, long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < static_cast<unsigned long long>(ns));
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = 2 * from[i];
}

torch::Tensor known(torch::Tensor x, int64_t ns) {
  auto out = torch::empty_like(x);
  spin<<<1, 32>>>(x.data_ptr<float>(), out.data_ptr<float>(), static_cast<int>(x.numel()), ns);
  return out;
}
"""
_DECLARATION = "torch::Tensor known(torch::Tensor x, int64_t ns);"


def problem(backend: str, amount: int) -> ProblemSpec:
    """A problem that asks for that many operations (a CPU) or nanoseconds (a GPU)."""
    source = _PROBLEM.format(amount=amount)
    return ProblemSpec(name=f"known {amount}", source=source, backend="cuda" if backend == "cuda" else "cpu")


def candidate(backend: str) -> str:
    """The file that does it."""
    if backend == "cuda":
        return _CANDIDATE.format(sources=f'cpp_sources="{_DECLARATION}", cuda_sources=r"""{_SPIN}"""')
    return _CANDIDATE.format(sources=f'cpp_sources=r"""{_CHAIN}""", extra_cflags=["-O2"]')
