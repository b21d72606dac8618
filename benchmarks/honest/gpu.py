"""Honest CUDA files (the stock of :mod:`specgen.llm.synthetic.gpu_stock` and generated ones), and CUDA cheats.

Written for a GPU; where there is none, some of them can be put through nvcc (``--compile``).
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.honest import gpu_cheats
from benchmarks.honest.files import Kernel
from benchmarks.honest.gpu_files import each, extension, hinge, product, row_sums, scale_rows
from specgen.evaluation.build.errors import FacadeRefused
from specgen.evaluation.build.facade import compile_units
from specgen.evaluation.build.request import BuildRequest, from_load_inline
from specgen.evaluation.build.support import Support, ensure_support
from specgen.evaluation.build.toolchain import Deadline, cuda_home
from specgen.llm.synthetic.gpu_stock import correct

CHEATS = gpu_cheats.CHEATS

_FORWARD = """

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {inputs}):
        {body}
"""


def _file(cuda: str, function: str, inputs: str, body: str, *, style: str = "inline", init: str = "pass") -> str:
    forward = body.strip().replace("\n", "\n        ")
    made = init.replace("\n", "\n        ")
    return extension(cuda, (function,), style) + _FORWARD.format(init=made, inputs=inputs, body=forward)


def _scales() -> Iterator[Kernel]:
    call = "return ext.diag_mul(a, b)"
    for threads, vector in (
        (64, 1),
        (128, 1),
        (256, 1),
        (1024, 1),
        (128, 2),
        (512, 2),
        (64, 4),
        (128, 4),
        (256, 4),
        (512, 4),
    ):
        style = "pybind" if threads == 128 else "inline"
        yield Kernel(f"T4 {threads} threads, {vector} floats", "T4", _file(
            scale_rows(threads, vector), "diag_mul", "a, b", call, style=style))  # fmt: skip
    for dtype in ("half", "bfloat16"):
        yield Kernel(f"T4 through {dtype}", "T4", _file(scale_rows(256, 4, dtype=dtype), "diag_mul", "a, b", call))
    yield Kernel("T4 on a side stream that is joined", "T4", _file(scale_rows(256, 4), "diag_mul", "a, b", """
main = torch.cuda.current_stream()
self.side.wait_stream(main)
with torch.cuda.stream(self.side):
    out = ext.diag_mul(a, b)
main.wait_stream(self.side)
out.record_stream(main)
return out""", init="self.side = torch.cuda.Stream()"))  # fmt: skip
    yield Kernel("T4 halves on two streams", "T4", _file(scale_rows(256, 4), "diag_mul", "a, b", """
main = torch.cuda.current_stream()
n = a.shape[0] // 2
self.side.wait_stream(main)
with torch.cuda.stream(self.side):
    low = ext.diag_mul(a[n:].contiguous(), b[n:].contiguous())
high = ext.diag_mul(a[:n].contiguous(), b[:n].contiguous())
main.wait_stream(self.side)
low.record_stream(main)
return torch.cat([high, low])""", init="self.side = torch.cuda.Stream()"))  # fmt: skip
    yield Kernel("T4 a graph, replayed on fresh inputs", "T4", _file(scale_rows(256, 4), "diag_mul", "a, b", """
if self.graph is None:
    self.a, self.b = a.clone(), b.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ext.diag_mul(self.a, self.b)
    torch.cuda.current_stream().wait_stream(side)
    self.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(self.graph):
        self.out = ext.diag_mul(self.a, self.b)
self.a.copy_(a)
self.b.copy_(b)
self.graph.replay()
return self.out.clone()""", init="self.graph = None"))  # fmt: skip


def _hinges() -> Iterator[Kernel]:
    for threads, blocks, total in (
        (128, 512, "double"), (256, 1024, "double"), (512, 2048, "double"), (256, 512, "float"), (1024, 1024, "double")
    ):  # fmt: skip
        yield Kernel(f"T1 {blocks} blocks of {threads}, {total}", "T1", _file(
            hinge(threads, blocks, total), "hinge", "p, t", "return ext.hinge(p, t, 1)",
            style="pybind" if threads == 512 else "inline"))  # fmt: skip


def _products() -> Iterator[Kernel]:
    for task in ("T2", "T3", "T5", "T6", "T7", "T8", "T9", "T10"):
        for tile, dtype, wide in ((16, "float", 1), (32, "float", 2), (16, "half", 4), (32, "bfloat16", 1)):
            yield Kernel(f"{task} tile {tile}, {wide} rows a thread, {dtype}", task, _file(
                product(task, tile, dtype, wide), "multiply", "a, b", "return ext.multiply(a, b)",
                style="pybind" if wide == 2 else "inline"))  # fmt: skip


_LINEAR = "self.linear = nn.Linear(inputs, outputs)"


def _model(name: str, task: str, cuda: str, functions: tuple[str, ...], init: str, made: str, body: str) -> Kernel:
    lines = made.replace("\n", "\n        ")
    forward = body.strip().replace("\n", "\n        ")
    klass = f"""

class ModelNew(nn.Module):
    def __init__(self, {init}):
        super().__init__()
        {lines}

    def forward(self, x):
        {forward}
"""
    return Kernel(f"{task} {name}", task, extension(cuda, functions) + klass)


def _epilogues() -> Iterator[Kernel]:
    """The library's product, what follows by a kernel of one's own."""
    for threads in (128, 256, 512):
        leaky = each("leaky", "float factor, float slope",
                     "const float v = x[at] * factor; out[at] = v > 0 ? v : v * slope;", threads)  # fmt: skip
        yield _model(f"activation, {threads} threads", "T11", leaky, ("leaky",), "inputs, outputs, factor, slope",
                     f"{_LINEAR}\nself.factor, self.slope = factor, slope",
                     "return ext.leaky(self.linear(x), self.factor, self.slope)")  # fmt: skip
        relu = each("add_relu", "const float* o", "out[at] = fmaxf(0.0f, x[at] + o[at % m]);", threads)
        yield _model(f"offset and ReLU, {threads} threads", "T17", relu, ("add_relu",), "inputs, outputs",
                     "self.linear = nn.Linear(inputs, outputs, bias=False)\nself.offset = nn.Parameter(torch.randn(outputs))",
                     "return ext.add_relu(self.linear(x), self.offset)")  # fmt: skip
    yield _model("sums of rows", "T12", row_sums("sums", "v / 2"), ("sums",), "inputs, outputs, scale",
                 "self.weight = nn.Parameter(torch.randn(outputs, inputs))\nself.scale = scale",
                 "return ext.sums(torch.matmul(x, self.weight.T)) * self.scale")  # fmt: skip
    yield _model("sums of sigmoids", "T15", row_sums("sums", "1.0f / (1.0f + __expf(-v))"), ("sums",), "inputs, outputs", _LINEAR,
                 "return ext.sums(self.linear(x))")  # fmt: skip
    yield _model("scaled before the norm", "T13", each("scale", "const float* s", "out[at] = x[at] * s[at % m];"), ("scale",),
                 "inputs, outputs", f"{_LINEAR}\nself.scale = nn.Parameter(torch.randn(outputs))\nself.norm = nn.BatchNorm1d(outputs)",
                 "return self.norm(ext.scale(self.linear(x), self.scale))")  # fmt: skip
    gelu = each("gelu", "", "const float v = x[at]; out[at] = 0.5f * v * (1.0f + erff(v * 0.70710678f));")
    yield _model("own GELU", "T18", gelu, ("gelu",), "inputs, outputs", _LINEAR,
                 "return torch.softmax(ext.gelu(self.linear(x)), dim=1)")  # fmt: skip
    mish = each("mish", "", "const float v = x[at]; out[at] = v * tanhf(v > 20.0f ? v : log1pf(expf(v)));")
    yield _model("own Mish", "T14", mish, ("mish",), "channels, filters, kernel",
                 "self.convolution = nn.Conv2d(channels, filters, kernel)\nself.norm = nn.BatchNorm2d(filters)",
                 "return self.norm(ext.mish(self.convolution(x)))")  # fmt: skip
    twice = each("scaled", "float factor", "out[at] = x[at] * factor;")
    yield _model("own scale", "T16", twice, ("scaled",), "channels, filters, kernel, factor",
                 "self.convolution = nn.Conv2d(channels, filters, kernel)\nself.norm = nn.BatchNorm2d(filters)\nself.factor = factor",
                 "return ext.scaled(self.norm(self.convolution(x)), self.factor)")  # fmt: skip
    relu = each("relu", "", "out[at] = fmaxf(0.0f, x[at]);")
    yield _model("own ReLUs", "T19", relu, ("relu",), "inputs, hidden, outputs",
                 "self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))",
                 "a, b, c = self.layers[0], self.layers[2], self.layers[4]\nreturn c(ext.relu(b(ext.relu(a(x)))))")  # fmt: skip
    masked = each("masked", "float scale", "const int64_t j = at % m, i = at / m % m; const float v = x[at] * scale;\n"
                  "        out[at] = j <= i && v > 0 ? v : 0.0f;")  # fmt: skip
    yield _model("own mask and ReLU", "T20", masked, ("masked",), "width, heads, length",
                 'self.heads = heads\nself.project = nn.Linear(width, 3 * width)\n'
                 'self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))',
                 "q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.project(x).chunk(3, 2))\n"
                 "scores = ext.masked(q @ k.transpose(-2, -1), q.shape[-1] ** -0.5)\nreturn (scores @ v).transpose(1, 2).flatten(2)")  # fmt: skip


_TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(a, b, out, width, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(b + at, mask=inside) * tl.load(a + at // width, mask=inside)
    tl.store(out + at, value, mask=inside)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        out = torch.empty_like(b)
        count = b.numel()
        kernel[(triton.cdiv(count, SIZE),)](a, b, out, b.shape[1], count, BLOCK=SIZE, num_warps=WARPS)
        return out
"""
_TRITON_HINGE = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(p, t, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < width
        margin = 1.0 - tl.load(p + row * width + at, mask=inside, other=0.0) * tl.load(t + at, mask=inside, other=0.0)
        total += tl.where(inside & (margin > 0), margin, 0.0)
    tl.store(out + row, tl.sum(total))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, p, t):
        sums = p.new_empty(p.shape[0])
        kernel[(p.shape[0],)](p, t, sums, p.shape[1], BLOCK=SIZE)
        return sums.double().mean().div(p.shape[1]).float()
"""


def _tritons() -> Iterator[Kernel]:
    for size, warps in ((256, 2), (1024, 4), (4096, 8)):
        source = _TRITON.replace("SIZE", str(size)).replace("WARPS", str(warps))
        yield Kernel(f"T4 Triton, blocks of {size}", "T4", source)
    for size in (1024, 4096):
        yield Kernel(f"T1 Triton, blocks of {size}", "T1", _TRITON_HINGE.replace("SIZE", str(size)))


def kernels() -> list[Kernel]:
    """All honest CUDA files: the stock first."""
    stock = [Kernel(f"stock {kernel.name}", kernel.task, kernel.source) for kernel in correct()]
    return [*stock, *_scales(), *_hinges(), *_products(), *_epilogues(), *_tritons()]


def compile_some(count: int, cache: Path) -> int:
    """Compile some files (honest and cheats, evenly chosen) as a candidate's build does; nothing is linked or run."""
    if cuda_home() is None:
        sys.stderr.write("no nvcc on this machine: install the CUDA toolkit, or set CUDA_HOME\n")
        return 2
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    support = Support(ensure_support(cache))
    generated = [kernel for kernel in kernels() if not kernel.name.startswith("stock")]
    made = [(kernel.name, kernel.source) for kernel in generated if "load_inline" in kernel.source]
    bad = [(cheat.name, cheat.source) for cheat in CHEATS if "cuda_sources" in cheat.source]
    failed = 0
    for name, source in (*_some(made, count), *_some(bad, count)):
        error = _compile_error(_request(source), support)
        failed += bool(error)
        print(f"{'FAILED' if error else 'compiled'}: {name} {error}".strip(), flush=True)
    print(f"{len(made)} generated honest files and {len(bad)} cheats with CUDA text; nothing was run: no GPU here")
    return 1 if failed else 0


def _some(given: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    return given[:: max(1, len(given) // max(1, count))][:count]


def _request(source: str) -> BuildRequest:
    """What the file asks ``load_inline`` for, read without running it."""
    tree = ast.parse(source)
    text = next(
        node.value.value for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and ast.unparse(node.targets[0]) == "SOURCE"
    )  # fmt: skip
    call = next(
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load_inline"
    )  # fmt: skip
    given = {
        str(keyword.arg): text if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
        for keyword in call.keywords
    }
    return from_load_inline(given)


def _compile_error(request: BuildRequest, support: Support) -> str:
    with tempfile.TemporaryDirectory(prefix="specgen-compile-") as folder:
        try:
            compile_units(request, Path(folder), support, Deadline.after(600.0))
        except FacadeRefused as refused:
            lines = [line for line in refused.output.splitlines() if "error" in line]
            return f"{refused.reason} {(lines or [''])[0]}".strip()
    return ""
