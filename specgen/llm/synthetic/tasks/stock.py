"""T1-T10 on a GPU: decisions that select among the files of :mod:`specgen.llm.synthetic.gpu_stock`.

A design implies a style, the style names a file, and the file is handed out as it is, under a comment with the
style's own design: two designs of one style are one candidate. What a prefix leaves open is naive. Mistakes are edits
of a correct file. Not here: kernels (they are whole files, run on an H200), the same tasks on a CPU.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from specgen.llm.synthetic import gpu_stock
from specgen.llm.synthetic.design import Axis, Design, DesignSpace, Option
from specgen.llm.synthetic.manner import CUDA
from specgen.llm.synthetic.tasks.base import Edit, Slips, Subject

_PROBLEMS = Path(__file__).resolve().parents[3] / "problems" / "gpu"
_FAR = "(int64_t{1} << 40)"

CUDA_SLIPS = Slips(
    compile=(
        Edit("threadIdx.x", "threadId.x"),
        Edit("    return c;\n", "    return c\n"),
        Edit("C10_CUDA_KERNEL_LAUNCH_CHECK();", "C10_CUDA_LAUNCH_CHECK();"),
        Edit("    TORCH_CHECK(a.is_cuda()", "    CHECK_CUDA(a.is_cuda()"),
        Edit("__global__ void ", "__global__ float "),
    ),
    raises=(
        Edit("extension.", "extension.run_"),
        Edit('is_cuda(), "inputs must be CUDA tensors"', 'is_cpu(), "inputs must be CPU tensors"'),
        Edit(", 0, at::cuda::getCurrentCUDAStream()>>>", ", 1 << 20, at::cuda::getCurrentCUDAStream()>>>"),
        Edit(", bytes, at::cuda::getCurrentCUDAStream()>>>", ", 4 * bytes, at::cuda::getCurrentCUDAStream()>>>"),
    ),
    fault=(
        Edit("c.data_ptr<float>()", f"(c.data_ptr<float>() + {_FAR})"),
        Edit("c.data_ptr<scalar_t>()", f"(c.data_ptr<scalar_t>() + {_FAR})"),
        Edit("b.data_ptr<float>()", f"(b.data_ptr<float>() + {_FAR})"),
        Edit("predictions.data_ptr<float>()", f"(predictions.data_ptr<float>() + {_FAR})"),
        Edit("predictions.data_ptr<scalar_t>()", f"(predictions.data_ptr<scalar_t>() + {_FAR})"),
    ),
)
_WRONG_PRODUCT = (
    Edit("            sum += a[", "            sum = a["),
    Edit("sum += as[y][i]", "sum = as[y][i]"),
    Edit("for (int kk = 0; kk < BK; kk += 8) {", "for (int kk = 8; kk < BK; kk += 8) {"),
    Edit("for (int kk = 0; kk < BK; kk += 16) {", "for (int kk = 16; kk < BK; kk += 16) {"),
    Edit("for (int i = 0; i < BK / 8; ++i) wgmma(", "for (int i = 1; i < BK / 8; ++i) wgmma("),
)
_WRONG_DIAGONAL = (
    Edit("c[idx] = a[row] * b[idx];", "c[idx] = a[row] * a[row] * b[idx];"),
    Edit("sum += as[threadIdx.y][k]", "sum = as[threadIdx.y][k]"),
    Edit("= scale * b[", "= scale * scale * b["),
    Edit("value[i].w * s)", "value[i].z * s)"),
    Edit("v.w *= s;", "v.w = s;"),
)
_WRONG_HINGE = (
    Edit("fmaxf(1.0f - predictions", "fmaxf(2.0f - predictions"),
    Edit("margin > scalar_t(0)", "margin > scalar_t(1)"),
    Edit("for (int i = 0; i < UNROLL; ++i) part +=", "for (int i = 1; i < UNROLL; ++i) part +="),
)


@dataclass(frozen=True)
class StockTask:
    """One task on a GPU. ``styles`` gives the values of all axes for each style that has a file, naive to good."""

    name: str
    title: str
    easy: bool
    space: DesignSpace
    styles: Mapping[str, tuple[str, ...]]
    wrong: tuple[Edit, ...]
    operands: tuple[str, str]
    remarks: tuple[str, ...]
    layout: bool = False  # triangular or transposed: easily taken wrongly (§3.2)

    language: ClassVar[str] = "CUDA"
    tag: ClassVar[str] = "cuda"
    slips: ClassVar[Slips] = CUDA_SLIPS

    @property
    def subject(self) -> Subject:
        """For rambling."""
        return Subject(self.space.axes, self.operands, self.remarks, CUDA)

    def design_of(self, style: str) -> Design:
        """The design that a style's file carries."""
        return Design(
            tuple((axis.name, value) for axis, value in zip(self.space.axes, self.styles[style], strict=True))
        )

    def style(self, design: Design) -> str:
        """What a design, whole or not, implies: the style that agrees with most of its decisions which are not the
        naive ones; the less ambitious of equals."""
        naive = self.design_of("naive")
        taken = [pair for pair in design.choices if pair[1] != naive[pair[0]]]

        def agreement(style: str) -> int:
            own = self.design_of(style)
            return sum(own[axis] == value for axis, value in taken)

        return max(sorted(self.styles, key=lambda style: style != "naive"), key=agreement)

    def source(self, design: Design) -> str:
        """The file, byte for byte as it lies in the stock."""
        return _source(f"{self.name}_{self.style(design)}")

    def render(self, design: Design) -> str:
        """The whole candidate file; correct by intent."""
        return f"{self.space.comment(self.design_of(self.style(design)))}\n{self.source(design)}"

    def complete(self, partial: Design, base: Design | None, keep: float, rng: random.Random) -> Design:
        """What a prefix leaves open is kept from ``base`` with probability ``keep``, else naive."""
        naive = self.design_of("naive")
        kept = {axis.name: base is not None and rng.random() < keep for axis in self.space.axes}
        choices = []
        for axis in self.space.axes:
            other = base if base is not None and kept[axis.name] else naive
            choices.append((axis.name, (partial if axis.name in partial else other)[axis.name]))
        return Design(tuple(choices))

    def excerpt(self, design: Design) -> str:
        """The file's last kernel: template line, signature and body."""
        return _last_kernel(self.source(design))

    def skeleton(self, taken: Design) -> str:
        """A draft of what is decided so far."""
        planned = "\n".join(f"    // {axis[taken[axis.name]].phrase}" for axis in self.space.axes if axis.name in taken)
        return f"__global__ void kernel(const float* a, const float* b, float* c) {{\n{planned}\n}}"


@lru_cache(maxsize=64)
def _source(name: str) -> str:
    return next(kernel for kernel in gpu_stock.correct(name.partition("_")[0]) if kernel.name == name).source


def _last_kernel(source: str) -> str:
    start = source.rindex("__global__ void")
    before = source.rindex("\n", 0, start) + 1
    above = source.rindex("\n", 0, before - 1) + 1
    first = above if source[above:].startswith("template") else before
    depth = 0
    for at in range(source.index(") {", start), len(source)):
        depth += (source[at] == "{") - (source[at] == "}")
        if depth == 0 and source[at] == "}":
            return source[first : at + 1]
    return source[first:]


# ------------------------------------------------------------------------------------------------ the ten tasks


def _axis(name: str, label: str, *options: tuple[str, str, float]) -> Axis:
    return Axis(name, label, tuple(Option(*option) for option in options))


_REUSE = _axis(
    "reuse", "data reuse",
    ("global", "operands straight from global memory", 0.1), ("shared", "operand tiles staged in shared memory", 0.9),
)  # fmt: skip
_UNITS = _axis(
    "units", "arithmetic units",
    ("cores", "plain fp32 FMAs on the CUDA cores", 0.2), ("tensor", "tensor cores for the products", 0.9),
)  # fmt: skip
_TF32 = ("tf32", "TF32 operands with warp-level mma.sync", 0.5)
_HALF = ("half", "operands scaled and rounded to half", 0.7)
_WGMMA = ("wgmma", "Hopper's warpgroup products fed by TMA", 0.9)
_PRODUCT = {
    "naive": ("global", "cores", "tf32"),
    "tiled": ("shared", "cores", "tf32"),
    "tf32": ("shared", "tensor", "tf32"),
    "half": ("shared", "tensor", "half"),
}
_PRODUCT_REMARKS = (
    "every element of both operands is needed thousands of times, so reuse decides everything",
    "the product is bound by arithmetic as soon as the tiles are large enough",
    "TF32 keeps ten bits of mantissa, which the tolerance allows",
    "sums have to stay in fp32 whatever the operands are",
    "the sizes are multiples of every sensible tile",
)


_ZEROS = "most of the products are with zeros"


def _product(
    name: str, title: str, remark: str, *, easy: bool = False, layout: bool = False, wgmma: bool = True
) -> StockTask:
    issue = _axis("issue", "operand format and instruction", _TF32, _HALF, *([_WGMMA] if wgmma else []))
    styles = _PRODUCT | ({"wgmma": ("shared", "tensor", "wgmma")} if wgmma else {})
    space, remarks = DesignSpace(name, (_REUSE, _UNITS, issue)), (remark, *_PRODUCT_REMARKS)
    return StockTask(name, title, easy, space, styles, _WRONG_PRODUCT, ("A and B", "C"), remarks, layout)


_HINGE = StockTask(
    name="T1", title="hinge loss", easy=True,
    space=DesignSpace("T1", (
        _axis("sums", "reduction",
              ("atomic", "one atomic addition per block", 0.2), ("partial", "partial sums and a second kernel", 0.6),
              ("last", "partial sums that the last block adds up", 0.9)),
        _axis("loads", "loads", ("scalar", "four-byte loads", 0.3), ("vector", "16-byte vector loads", 0.9)),
        _axis("targets", "targets",
              ("again", "targets read again for every row", 0.2), ("registers", "targets kept in registers", 0.9)),
    )),
    styles={"naive": ("atomic", "scalar", "again"), "two_kernels": ("partial", "scalar", "again"),
            "float4": ("last", "vector", "registers")},
    wrong=_WRONG_HINGE,
    operands=("predictions and targets", "a scalar"),
    remarks=(
        "the predictions are read once and nothing of that size is written",
        "one target belongs to a whole column of predictions",
        "a mean over a billion values needs sums in double or in short pieces",
        "the loss is bound by the bandwidth of device memory alone",
    ),
)  # fmt: skip
_DIAGONAL = StockTask(
    name="T4", title="diagonal matmul", easy=True,
    space=DesignSpace("T4", (
        _axis("algo", "algorithm", ("dense", "a dense diagonal and a tiled product", 0.02),
              ("scale", "a direct row scaling without any matrix product", 1.0)),
        _axis("threads", "work per thread",
              ("element", "one thread for each element", 0.3), ("row", "one block for each row", 0.6),
              ("flight", "several loads in flight in each thread", 0.9)),
        _axis("loads", "loads", ("four", "four-byte accesses", 0.4), ("sixteen", "16-byte accesses", 0.9)),
    )),
    styles={"dense": ("dense", "element", "four"), "naive": ("scale", "element", "four"),
            "dispatch": ("scale", "row", "four"), "rows": ("scale", "row", "sixteen"),
            "float4": ("scale", "flight", "sixteen")},
    wrong=_WRONG_DIAGONAL,
    operands=("B", "C"),
    remarks=(
        "diag(A) is almost entirely zeros, so a full product multiplies by zero n - 1 times out of n",
        "each output element is one multiplication, so this is bound by memory and not by arithmetic",
        "B is read once and C is written once, nothing else has to move",
        "row i of C depends on row i of B and on the single number A[i]",
    ),
)  # fmt: skip

CUDA_TASKS: tuple[StockTask, ...] = (
    _HINGE,
    _product("T2", "3D tensor times matrix", "the two leading dimensions of A are one long list of rows", easy=True),
    _product("T3", "4D tensor times matrix", "the three leading dimensions of A are one long list of rows"),
    _DIAGONAL,
    _product("T5", "product of symmetric matrices", "symmetry lets either operand be read either way"),
    _product("T6", "product of upper triangular matrices", _ZEROS, layout=True, wgmma=False),
    _product("T7", "product of lower triangular matrices", _ZEROS, layout=True, wgmma=False),
    _product("T8", "transposed matrix times matrix", "A is walked along its columns", layout=True),
    _product("T9", "matrix times transposed matrix", "both operands are contiguous along the sum", layout=True),
    _product("T10", "product of transposed matrices", "neither operand lies the way the product wants it", layout=True),
)

_END = r".*?(?=^[^\s)\]}]|\Z)"  # of a definition at module level
_PARTS = [re.compile(f"^{head}{_END}", re.MULTILINE | re.DOTALL) for head in (r"class Model\(", r"def get_inputs\(")]
_FOR_CUDA = re.compile(r"\bCUDA (?:kernels?|C\+\+)|\bcuda_sources\b")


def wants_cuda(prompt: str) -> bool:
    """Whether the prompt asks for CUDA, as the shipped templates do for the backend ``cuda``."""
    return _FOR_CUDA.search(prompt) is not None


def identify_cuda(prompt: str) -> StockTask | None:
    """The task whose reference and inputs, as they ship, stand in the prompt (comments and blanks aside)."""
    return _references().get(_shape(prompt))


@lru_cache(maxsize=1)
def _references() -> dict[str, StockTask]:
    return {_shape((_PROBLEMS / f"{task.name}.py").read_text(encoding="utf-8")): task for task in CUDA_TASKS}


def _shape(text: str) -> str:
    """The first ``class Model`` and ``get_inputs`` of a text as their syntax says them, docstrings left out."""
    shapes = []
    for part in _PARTS:
        found = part.search(text)
        try:
            node = ast.parse(found[0] if found else "").body[0]
        except (SyntaxError, ValueError, IndexError):
            return ""
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner) is not None:
                inner.body = inner.body[1:]
        shapes.append(ast.dump(node))
    return "\n".join(shapes)
