"""The stock route: torch's own ``load_inline`` or ``load``, with its flags and its words, in a directory of its own.

torch writes the build file; its commands are run here instead of by ninja, because ninja puts each compiler into a
process group of its own, where it outlives the candidate's process, and knows no deadline. Not here: the façade.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specgen.evaluation.build import verify
from specgen.evaluation.build.errors import BuildFailed
from specgen.evaluation.build.facade import Compiled
from specgen.evaluation.build.request import BuildRequest
from specgen.evaluation.build.toolchain import Completed, Deadline, ninja_on_path, run_all


@dataclass(frozen=True)
class Suspect:
    """A source that the façade could not compile: torch's headers, precompiled, may settle it at once."""

    header: Path
    facade_output: str


def build(
    request: BuildRequest,
    directory: Path,
    original: Callable[..., Any],
    deadline: Deadline,
    suspect: Suspect | None = None,
) -> Compiled:
    """Build in ``directory`` with torch's ``original``. Raises BuildFailed, BuildTimeout, CompilerKilled."""
    from torch.utils import cpp_extension

    outputs: list[str] = []

    def run_build(build_directory: str, verbose: bool, error_prefix: str) -> None:
        del verbose
        commands = _commands(Path(build_directory))
        if suspect is not None:
            _settle(suspect, commands, request.source, Path(build_directory), error_prefix, deadline)
        outputs.append(_run(commands, Path(build_directory), error_prefix, deadline))

    def library(module_name: str, path: str, is_python_module: bool) -> Path:
        del is_python_module
        return Path(path) / f"{module_name}.so"

    # A name seen before in this process would become name_v1, and a failed build would count as done.
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(request.name, None)
    with (
        ninja_on_path(),
        patch.object(cpp_extension, "_run_ninja_build", run_build),
        patch.object(cpp_extension, "_import_module_from_library", library),
    ):
        built = original(**_arguments(request, directory))
    return Compiled(Path(built), "\n".join(outputs))


def _arguments(request: BuildRequest, directory: Path) -> dict[str, Any]:
    """The candidate's own, in our directory, with sources that count their own lines; lists are copies (torch's
    function changes them in place)."""
    arguments = {name: list(value) if isinstance(value, list) else value for name, value in request.arguments.items()}
    arguments.update(build_directory=str(directory), verbose=False)
    if request.kind == "load_inline":
        for unit in request.units:
            unit.write_sources(directory)
            arguments[f"{unit.language}_sources"] = unit.numbered
    return arguments


def _commands(directory: Path) -> list[list[str]]:
    """What ninja would run, the link last."""
    listed = subprocess.run(["ninja", "-t", "commands"], cwd=directory, capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in listed.stdout.splitlines()]


def _settle(
    suspect: Suspect, commands: list[list[str]], source: str, directory: Path, error_prefix: str, deadline: Deadline
) -> None:
    """Raises BuildFailed where the front end finds an error; the messages are stock's, or the façade's where its first
    is the same (it names the further ones too)."""
    first = verify.check(commands[:-1], source, suspect.header, directory, deadline)
    if first is not None:
        facade_output = suspect.facade_output.replace("specgen_v1::", "")  # the façade's inline namespace
        output = facade_output if verify.agree(first, facade_output) else first
        failed = Completed(" ".join(commands[0]), 1, output)
        raise BuildFailed(f"{error_prefix}: {_as_ninja(failed, 1, len(commands))}\nninja: build stopped.\n")


def _run(commands: list[list[str]], directory: Path, error_prefix: str, deadline: Deadline) -> str:
    """Compile everything, then link, and report as ninja does. Returns what the compilers printed."""
    done = run_all(commands[:-1], directory, deadline)
    if all(one.code == 0 for one in done):
        done += run_all(commands[-1:], directory, deadline)
    report = "\n".join(_as_ninja(one, index + 1, len(commands)) for index, one in enumerate(done))
    if any(one.code != 0 for one in done):
        raise BuildFailed(f"{error_prefix}: {report}\nninja: build stopped: subcommand failed.\n")
    return "\n".join(one.output for one in done if one.output)


def _as_ninja(one: Completed, index: int, total: int) -> str:
    failed = f"FAILED: [code={one.code}] {one.command}\n" if one.code != 0 else ""
    return f"[{index}/{total}] {one.command}\n{failed}{one.output}"
