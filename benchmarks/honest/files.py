"""Candidate files from parts: C++ text, the functions it exports, the Python class around it, and how it is built.

A style is how the file around the same kernels is written, as different authors would: ``inline`` (load_inline with
names), ``pybind`` (its own PYBIND11_MODULE), ``lazy`` (built in ``__init__``), ``file`` (sources written to disk, then
``load``), ``constants`` (sizes and flags at module level).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from specgen.types import source_id

FAST = ("-O3", "-march=native")
FASTER = ("-O3", "-march=native", "-ffast-math")
STYLES = ("inline", "pybind", "lazy", "file", "constants")


@dataclass(frozen=True)
class Kernel:
    """An honest candidate."""

    name: str
    task: str
    source: str

    @property
    def id(self) -> str:
        """The candidate's sha256."""
        return source_id(self.source)


def candidate(
    cpp: str, functions: tuple[str, ...], model: str, *, style: str = "inline", flags: tuple[str, ...] = FAST
) -> str:
    """A whole file. ``model`` is the body of ``class ModelNew`` and calls ``ext``; it is indented by four blanks."""
    name = "honest_" + hashlib.sha256(f"{cpp}{functions}{flags}{style}".encode()).hexdigest()[:10]
    includes = (
        "#include <torch/extension.h>\n#include <algorithm>\n#include <cmath>\n#include <cstring>\n#include <vector>\n"
    )
    body = f"{includes}{cpp.strip()}\n"
    named = f"functions={list(functions)!r}, "
    if style in ("pybind", "file"):
        defs = "\n".join(f'  m.def("{function}", &{function});' for function in functions)
        body += f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{defs}\n}}\n"
        named = ""
    head = f'import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\nSOURCE = r"""\n{body}"""\n'
    call = f'load_inline(name="{name}", cpp_sources=SOURCE, {named}extra_cflags={list(flags)!r}, verbose=False)'
    if style == "file":
        return f'''import pathlib
import tempfile
{head}
from torch.utils.cpp_extension import load
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "kernel.cpp").write_text(SOURCE)
ext = load(name="{name}", sources=[str(folder / "kernel.cpp")], extra_cflags={list(flags)!r}, verbose=False)


class ModelNew(nn.Module):
{model}'''
    if style == "lazy":
        lazy = model.replace("super().__init__()", f"super().__init__()\n        self.ext = {call}", 1)
        lazy = lazy.replace("ext.", "self.ext.").replace("self.self.ext.", "self.ext.")
        return f"{head}\nfrom torch.utils.cpp_extension import load_inline\n\n\nclass ModelNew(nn.Module):\n{lazy}"
    if style == "constants":
        head += f"\nFLAGS = {list(flags)!r}\nNAME = {name!r}\n"
        call = f"load_inline(NAME, SOURCE, {named}extra_cflags=FLAGS, verbose=False)"
    return f"{head}\nfrom torch.utils.cpp_extension import load_inline\n\next = {call}\n\n\nclass ModelNew(nn.Module):\n{model}"


PLAIN = """    def __init__(self):
        super().__init__()

    def forward(self, {inputs}):
        {body}
"""


def plain(inputs: str, body: str) -> str:
    """A class without parameters."""
    return PLAIN.format(inputs=inputs, body=body.strip().replace("\n", "\n        "))
