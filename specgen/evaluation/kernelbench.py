"""KernelBench's problems in a checkout of the user's own: listing, finding, loading. Nothing of it ships with SpecGen.

A checkout is the repository, its ``KernelBench`` folder, or any folder that holds ``level1`` to ``level4`` with files
named ``<number>_<title>.py``. Nothing is executed and torch is not imported.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path

from specgen.errors import ProblemError

LEVELS = (1, 2, 3, 4)
_FILE = re.compile(r"(\d+)_(.+)\.py")
_NAME = re.compile(r"(?:L|level)([1-9])/(.+?)(?:\.py)?", re.IGNORECASE)
_HINT = "give --kernelbench DIR or set SPECGEN_KERNELBENCH: a checkout of github.com/ScalingIntelligence/KernelBench"


@dataclass(frozen=True)
class Needs:
    """What a problem asks for beside torch."""

    packages: tuple[str, ...]  # not part of Python
    downloads: tuple[str, ...]  # pretrained models, by their names where the file states them
    objects: tuple[str, ...] = ()  # init inputs that are objects of such a package: they cannot reach a candidate

    @property
    def text(self) -> str:
        """``packages transformers; downloads gpt2``; empty where nothing is needed."""
        parts = [f"packages {', '.join(self.packages)}"] if self.packages else []
        parts += [f"downloads {', '.join(self.downloads)}"] if self.downloads else []
        return "; ".join(parts)

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that are not installed here."""
        return tuple(name for name in self.packages if find_spec(name) is None)


@dataclass(frozen=True)
class Entry:
    """One problem's file."""

    level: int
    number: int
    title: str
    path: Path

    @property
    def name(self) -> str:
        """``L1/12``."""
        return f"L{self.level}/{self.number}"

    @property
    def file(self) -> str:
        """``level1/12_Matmul_with_diagonal_matrices_.py``."""
        return f"{self.path.parent.name}/{self.path.name}"


class Checkout:
    """A folder with the levels. Raises ProblemError where there are none."""

    def __init__(self, directory: Path | str) -> None:
        given = Path(directory).expanduser()
        roots = (given, given / "KernelBench")
        self.root = next((root for root in roots if any(_level(root, level).is_dir() for level in LEVELS)), given)
        if self.root is given and not any(_level(given, level).is_dir() for level in LEVELS):
            raise ProblemError(
                f"no KernelBench levels in {given}", "the folder that holds level1, level2, level3, level4"
            )

    def entries(self, level: int | None = None, match: str = "", number: int | None = None) -> tuple[Entry, ...]:
        """Problems by level and number; ``match`` is a part of name or file, upper or lower case."""
        found = [entry for each in LEVELS if level in (None, each) for entry in self._of(each)]
        word = match.lower()
        found = [entry for entry in found if number in (None, entry.number)]
        return tuple(entry for entry in found if word in entry.file.lower() or word == entry.name.lower())

    def _of(self, level: int) -> list[Entry]:
        found = []
        for path in _level(self.root, level).glob("*.py"):
            parts = _FILE.fullmatch(path.name)
            if parts is not None:
                found.append(Entry(level, int(parts[1]), parts[2].strip("_").replace("_", " "), path))
        return sorted(found, key=lambda entry: (entry.number, entry.path.name))

    def find(self, name: str) -> Entry:
        """By ``L1/12``, ``level1/12_Title.py`` or ``12_Title.py``. Raises ProblemError: none, or several."""
        parts = _NAME.fullmatch(name)
        level, rest = (int(parts[1]), parts[2]) if parts else (None, name.removesuffix(".py"))
        found = [entry for entry in self.entries(level) if rest in (str(entry.number), entry.path.stem)]
        if parts is None:
            found = [entry for entry in found if entry.path.stem == rest]
        if len(found) == 1:
            return found[0]
        if not found:
            raise ProblemError(
                f"no problem {name!r} in {self.root}", "`specgen problems --kernelbench DIR` lists them, such as L1/12"
            )
        raise ProblemError(f"{name!r} names {len(found)} problems", "such as " + ", ".join(e.file for e in found[:3]))

    @cached_property
    def commit(self) -> str:
        """The checkout's commit, ``+`` behind it where problem files differ from it; empty without git."""
        tracked = _git(self.root, "ls-files", "--", "level*")
        head = _git(self.root, "rev-parse", "HEAD")
        if not head or not tracked:
            return ""
        return head + ("+" if _git(self.root, "status", "--porcelain", "--", "level*") else "")

    def origin(self, entry: Entry) -> str:
        """What results record: ``KernelBench 423217d… level1/12_….py``."""
        return f"KernelBench {self.commit or 'without a commit'} {entry.file}"


def checkout(directory: Path | str | None) -> Checkout:
    """The checkout of an option or setting. Raises ProblemError where neither names one."""
    if not directory:
        raise ProblemError("no KernelBench checkout is known", _HINT)
    return _checkout(str(directory))


@lru_cache(maxsize=4)
def _checkout(directory: str) -> Checkout:
    return Checkout(directory)


def is_name(name: str) -> bool:
    """Whether a name is meant for KernelBench: ``L1/12``, ``level1/12_Title.py``."""
    return _NAME.fullmatch(name) is not None


@lru_cache(maxsize=512)
def needs(source: str) -> Needs:
    """What a file imports beside torch and Python's own modules, and which pretrained models it asks for."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Needs((), ())
    packages: set[str] = set()
    imported: dict[str, str] = {}  # a name in the file: the package it comes from
    downloads: set[str] = set()
    constants: dict[str, object] = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
            imported |= {(alias.asname or alias.name).partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
            imported |= {alias.asname or alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained":
            downloads.add(_model(node, constants))
    if len(downloads) > 1:
        downloads.discard("")  # a call inside Model names it by a parameter
    outside = packages - set(sys.stdlib_module_names) - {"torch", "numpy"}
    foreign = {name for name, origin in imported.items() if origin.partition(".")[0] in outside}
    return Needs(
        tuple(sorted(outside)),
        tuple(sorted(name or "a pretrained model" for name in downloads)),
        tuple(_objects(tree, foreign)),
    )


def _objects(tree: ast.Module, foreign: set[str]) -> list[str]:
    """What ``get_init_inputs`` gives that a package made: ``config`` of ``config = AutoConfig(...)``."""
    made = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _root(node.value.func) in foreign
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "get_init_inputs"]
    values = [node.value for function in given for node in ast.walk(function) if isinstance(node, ast.Return)]
    words = [name for value in values if value is not None for name in ast.walk(value) if isinstance(name, ast.Name)]
    return sorted({name.id for name in words if name.id in made})


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _model(call: ast.Call, constants: dict[str, object]) -> str:
    first = call.args[0] if call.args else None
    value = constants.get(first.id) if isinstance(first, ast.Name) else getattr(first, "value", None)
    return value if isinstance(value, str) else ""


def _level(root: Path, level: int) -> Path:
    return root / f"level{level}"


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
