"""Finding and checking problems: built-in names, files in KernelBench format, problems of a KernelBench checkout.

Not here: running the reference (:mod:`specgen.evaluation.register`). Nothing of a file is executed and torch is not
imported; the contract is the one of docs/problems.md.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from specgen.errors import ProblemError, SettingsError
from specgen.evaluation import kernelbench
from specgen.settings import get_settings
from specgen.types import ProblemSpec

Backend = Literal["cpu", "cuda"]

BUILTIN_TOLERANCE = 1e-2  # the paper's generation of KernelBench
USER_TOLERANCE = 1e-4  # KernelBench now, fp32
_DIRECTORY: dict[Backend, str] = {"cpu": "cpu", "cuda": "gpu"}
_ROOT = Path(__file__).resolve().parent.parent / "problems"
_NEEDED = ("get_inputs", "get_init_inputs")
_FILE = re.compile(r"^KernelBench: (\S+\.py)\b", re.MULTILINE)


@dataclass(frozen=True)
class Builtin:
    """A problem that ships with SpecGen, as its files describe it."""

    name: str
    task: str
    file: str  # KernelBench's, such as level1/100_HingeLoss.py; empty where it has none
    backends: tuple[Backend, ...]
    tolerance: float = BUILTIN_TOLERANCE


def builtin_names(backend: Backend = "cpu") -> tuple[str, ...]:
    """Names of the problems that ship with SpecGen, in natural order (T1, T4, T12)."""

    def order(name: str) -> tuple[str, int]:
        match = re.fullmatch(r"([A-Z]+)(\d+)", name)
        return (match[1], int(match[2])) if match else (name, 0)

    files = (_ROOT / _DIRECTORY[backend]).glob("*.py")
    return tuple(sorted((file.stem for file in files if not file.stem.startswith("_")), key=order))


def builtins() -> tuple[Builtin, ...]:
    """All of them, described by the first lines of their files."""
    names = {backend: builtin_names(backend) for backend in _DIRECTORY}
    return tuple(
        _described(name, tuple(backend for backend in _DIRECTORY if name in names[backend])) for name in names["cpu"]
    )


def _described(name: str, backends: tuple[Backend, ...]) -> Builtin:
    text = ast.get_docstring(ast.parse(_builtin_path(name, backends[0]).read_text(encoding="utf-8"))) or ""
    task = re.sub(rf"^{name}, (.*)\. \w+ size\.$", r"\1", text.splitlines()[0])
    file = _FILE.search(text)
    return Builtin(name=name, task=task.replace("``", ""), file=file[1] if file else "", backends=backends)


def _builtin_path(name: str, backend: Backend) -> Path:
    return _ROOT / _DIRECTORY[backend] / f"{name}.py"


def backend_of(name: str) -> Backend:
    """``cpu`` or ``cuda``. Raises SettingsError for anything else."""
    if name not in get_args(Backend):
        raise SettingsError(f"no backend is called {name!r}", "cpu or cuda")
    return cast(Backend, name)


def load_problem(
    name_or_path: str,
    backend: Backend = "cpu",
    *,
    tolerance: float | None = None,
    checkout: Path | str | None = None,
) -> ProblemSpec:
    """A problem by built-in name (T4), by path, or of a KernelBench checkout (L1/12), checked statically.

    ``tolerance`` is absolute and relative; by default 1e-2 for built-in problems and 1e-4 for all others.
    ``checkout`` is a KernelBench checkout, by default the setting ``kernelbench``.
    Raises ProblemError: no such file or name, not Python, or no ``Model``, ``get_inputs`` or ``get_init_inputs``.
    """
    origin = ""
    if name_or_path in builtin_names(backend):
        name, path = name_or_path, _builtin_path(name_or_path, backend)
    elif (given := Path(name_or_path).expanduser()).is_file():
        name, path = given.stem, given
    elif kernelbench.is_name(name_or_path) or checkout:
        bench = kernelbench.checkout(checkout or get_settings().kernelbench)
        entry = bench.find(name_or_path)
        name, path, origin = entry.name, entry.path, bench.origin(entry)
    else:
        names = ", ".join(builtin_names(backend))
        raise ProblemError(
            f"no problem {name_or_path!r}",
            f"give the path of a KernelBench-format file, L1/12 with a KernelBench checkout, or one of: {names}",
        )
    source = _read(path)
    check_source(source, path.name)
    chosen = tolerance or (USER_TOLERANCE if path.parent.parent != _ROOT else BUILTIN_TOLERANCE)
    return ProblemSpec(name=name, source=source, backend=backend, tolerance=chosen, origin=origin)


def _read(path: Path) -> str:
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
            raise ProblemError(f"{label} defines no {needed}()", "see the KernelBench format in docs/problems.md")
