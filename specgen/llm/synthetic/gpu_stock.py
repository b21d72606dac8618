"""The stock of CUDA candidates for T1-T10 at GPU sizes: whole files under ``gpu/``, from naive to good, and wrong ones.

A file is data: it is read and handed out as text, never imported here. Correct files are named after task and style
(``T4_float4.py``), wrong ones after their mistake (``wrong_address.py``, all written for T4). Not here: CPU kernels,
which are rendered from designs (:mod:`specgen.llm.synthetic.tasks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specgen.types import Status

_ROOT = Path(__file__).parent / "gpu"

# From naive to good; what a style means stands in the first lines of its files.
_STYLES = ("dense", "naive", "tiled", "dispatch", "two_kernels", "rows", "float4", "tf32", "half", "wgmma")


@dataclass(frozen=True)
class Kernel:
    """One candidate file and the status that an evaluation must give it."""

    name: str  # the file's, without its suffix
    task: str  # the problem it answers
    status: Status = Status.VALID

    @property
    def style(self) -> str:
        """What follows the task (or ``wrong``) in its name."""
        return self.name.partition("_")[2]

    @property
    def source(self) -> str:
        """The whole file."""
        return (_ROOT / f"{self.name}.py").read_text(encoding="utf-8")


WRONG: tuple[Kernel, ...] = tuple(
    Kernel(f"wrong_{mistake}", "T4", status)
    for mistake, status in (
        ("name", Status.NO_MODELNEW),
        ("undeclared", Status.COMPILE_ERROR),
        ("half_operator", Status.COMPILE_ERROR),
        ("function", Status.COMPILE_ERROR),
        ("check", Status.RUNTIME_ERROR),
        ("arguments", Status.RUNTIME_ERROR),
        ("threads", Status.RUNTIME_ERROR),
        ("shared", Status.RUNTIME_ERROR),
        ("memory", Status.OUT_OF_MEMORY),
        ("address", Status.DEVICE_FAULT),
        ("null", Status.DEVICE_FAULT),
        ("endless", Status.HANG),
        ("flag_wait", Status.HANG),
        ("shape", Status.WRONG_SHAPE),
        ("dtype", Status.WRONG_DTYPE),
        ("column", Status.WRONG_VALUE),
        ("tail", Status.WRONG_VALUE),
        ("not_finite", Status.NOT_FINITE),
    )
)


def correct(task: str = "") -> tuple[Kernel, ...]:
    """The correct candidates of a task (of all where none is named), each task's from naive to good."""
    names = [file.stem for file in _ROOT.glob("T*_*.py")]
    kernels = [Kernel(name, name.partition("_")[0]) for name in names if task in ("", name.partition("_")[0])]
    return tuple(sorted(kernels, key=lambda kernel: (int(kernel.task[1:]), _STYLES.index(kernel.style))))
