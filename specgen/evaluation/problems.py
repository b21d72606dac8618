"""Finding and checking problem files: built-in names, or the path of any KernelBench-format file.

Not here: running the reference (:mod:`specgen.evaluation.register`). Nothing of the file is executed and torch is
not imported; the contract is the one of docs/evaluation.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Literal

from specgen.errors import ProblemError
from specgen.types import ProblemSpec

Backend = Literal["cpu", "cuda"]

BUILTIN_TOLERANCE = 1e-2  # the paper's generation of KernelBench
USER_TOLERANCE = 1e-4  # KernelBench now, fp32
_DIRECTORY: dict[Backend, str] = {"cpu": "cpu", "cuda": "gpu"}
_ROOT = Path(__file__).resolve().parent.parent / "problems"
_NEEDED = ("get_inputs", "get_init_inputs")


def builtin_names(backend: Backend = "cpu") -> tuple[str, ...]:
    """Names of the problems that ship with SpecGen, in natural order (T1, T4, T12)."""

    def order(name: str) -> tuple[str, int]:
        match = re.fullmatch(r"([A-Z]+)(\d+)", name)
        return (match[1], int(match[2])) if match else (name, 0)

    files = (_ROOT / _DIRECTORY[backend]).glob("*.py")
    return tuple(sorted((file.stem for file in files if not file.stem.startswith("_")), key=order))


def load_problem(name_or_path: str, backend: Backend = "cpu", *, tolerance: float | None = None) -> ProblemSpec:
    """A problem by built-in name or by path, checked statically.

    ``tolerance`` is absolute and relative; by default 1e-2 for built-in problems and 1e-4 for a user's own file.
    Raises ProblemError: no such file or name, not Python, or no ``Model``, ``get_inputs`` or ``get_init_inputs``.
    """
    builtin = name_or_path in builtin_names(backend)
    path = _ROOT / _DIRECTORY[backend] / f"{name_or_path}.py" if builtin else Path(name_or_path).expanduser()
    source = _read(path, name_or_path, backend)
    check_source(source, str(path.name))
    chosen = tolerance or (BUILTIN_TOLERANCE if builtin else USER_TOLERANCE)
    return ProblemSpec(name=name_or_path if builtin else path.stem, source=source, backend=backend, tolerance=chosen)


def _read(path: Path, asked: str, backend: Backend) -> str:
    if not path.is_file():
        names = ", ".join(builtin_names(backend))
        raise ProblemError(f"no problem {asked!r}", f"give the path of a KernelBench-format file, or one of: {names}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ProblemError(f"cannot read {path}: {exc}", "a problem is a UTF-8 Python file") from exc


def check_source(source: str, label: str) -> None:
    """Static checks of a problem's text. Raises ProblemError with what is missing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as exc:
        line = getattr(exc, "lineno", None)
        raise ProblemError(f"{label} is not valid Python: {exc}", f"see line {line}" if line else "") from exc
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
    if "Model" not in names:
        raise ProblemError(f"{label} defines no class Model", "the reference is `class Model(torch.nn.Module)`")
    for needed in _NEEDED:
        if needed not in names:
            raise ProblemError(f"{label} defines no {needed}()", "see the KernelBench format in docs/evaluation.md")
