"""Building a candidate's C++ and CUDA in a fraction of the stock time, with the stock verdict (docs/building.md).

``install`` replaces ``torch.utils.cpp_extension.load_inline`` and ``load`` inside the candidate's sandboxed process;
``ensure_support`` makes, outside the sandbox and once per machine, what the fast route needs. Not here: the sandbox,
correctness, timing. torch is imported inside the functions, never by importing this package.
"""

from __future__ import annotations

from specgen.evaluation.build.errors import BuildFailed, BuildTimeout, CompilerKilled
from specgen.evaluation.build.install import install
from specgen.evaluation.build.log import Build, BuildLog
from specgen.evaluation.build.support import ensure_support

__all__ = ["Build", "BuildFailed", "BuildLog", "BuildTimeout", "CompilerKilled", "ensure_support", "install"]
