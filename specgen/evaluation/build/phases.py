"""One CUDA unit by nvcc's own steps, with the host's and the device's side by side.

nvcc runs them one after another: its front end for the host, then the compiler for each architecture, at last the
host's compiler. The first two share no more than a name for the unit, which the first makes up; here both are given
one. It is a saving only: where nvcc plans anything else than the known steps, and where one fails without naming a line
of the source, nvcc itself is run and decides. Not here: nvcc's arguments.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path

from specgen.evaluation.build.toolchain import Completed, Deadline, builds_at_once, run, threads_of

_PLAIN = re.compile(r"[\w@%+=:,./-]+")  # words that no shell and no quoting of nvcc's changes
_SETTING = re.compile(r"(\w+)=(.*)")
_SHAPE = re.compile(r"PF(?:PDA*)+BC")
_STEPS = {"cudafe++": "F", "cicc": "D", "ptxas": "A", "fatbinary": "B"}
_MAKES_ID = "--gen_module_id_file"
_ID_FILE = "--module_id_file_name"
_AT_A_LINE = re.compile(r"(?:\(\d+\)|:\d+): (?:\w+ )?error\b")


@dataclass(frozen=True)
class _Plan:
    environment: dict[str, str]
    host: list[list[str]]
    device: list[list[str]]
    last: list[str]
    id_file: Path


def compile_side_by_side(command: Sequence[str], source: Path, deadline: Deadline) -> Completed | None:
    """What ``nvcc … -c source -o …`` does, run where the source lies; None where nvcc itself must be run.

    Raises BuildTimeout as :func:`toolchain.run` does.
    """
    if builds_at_once() < 2 or threads_of(command) > 1 or not all(_PLAIN.fullmatch(word) for word in command):
        return None
    cwd = source.parent
    scratch = Path(tempfile.mkdtemp(prefix="nvcc-", dir=cwd))
    try:
        # nvcc names its files after its process, which is gone when they are made: a folder of their own
        told = run([*command, "--dryrun"], cwd, deadline, {**environ, "TMPDIR": str(scratch)})
        plan = _plan(told.output, scratch) if told.code == 0 else None
        if plan is None:
            return None
        plan.id_file.write_text(_unit_name(source))
        script = ["sh", "-c", _script(plan, scratch)]
        done = run(script, cwd, deadline, {**environ, **plan.environment, "TMPDIR": str(scratch)})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sure = done.code == 0 or (not done.killed and _AT_A_LINE.search(done.output) is not None)
    return Completed(" ".join(command), done.code, done.output) if sure else None


def _plan(text: str, scratch: Path) -> _Plan | None:
    """nvcc's own steps, or None where they are not those that are known here."""
    settings: dict[str, str] = {}
    steps: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if not line.startswith("#$ "):
            return None
        setting = _SETTING.fullmatch(line[3:])
        if setting:
            settings[setting[1]] = setting[2]
        else:
            words = _words(line[3:], settings)
            if words is None:
                return None
            if Path(words[0]).name != "rm":  # of what an earlier run may have left
                steps.append((_kind(words), words))
    if not _SHAPE.fullmatch("".join(kind for kind, _ in steps)):
        return None
    commands = [words for _, words in steps]
    front = commands[1]
    files = {_after(words, _ID_FILE) for kind, words in steps if kind in "FD"}
    id_file = Path(files.pop() or "/")
    if files or id_file.parent != scratch or front.count(_MAKES_ID) != 1:
        return None
    front.remove(_MAKES_ID)
    return _Plan(settings, commands[:2], commands[2:-1], commands[-1], id_file)


def _words(line: str, settings: dict[str, str]) -> list[str] | None:
    """A step as nvcc's shell would read it; None where it asks more of the shell than quotes and a variable."""
    if re.search(r"[\\`;|&<>()*?\[\]{}~!']", line):
        return None
    words = shlex.split(re.sub(r"\$(\w+)", lambda found: settings.get(found[1], found[0]), line))
    return words if words and not any("$" in word for word in words) else None


def _kind(words: list[str]) -> str:
    """A letter for a step: those of nvcc's own programs, P and C for the host compiler's two uses, ? for others."""
    name = Path(words[0]).name
    if name in _STEPS:
        return _STEPS[name]
    if "-x" not in words:
        return "?"
    return "P" if "-E" in words else "C" if "-c" in words else "?"


def _after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words[:-1] else ""


def _unit_name(source: Path) -> str:
    """In nvcc's form. It tells apart the units of one library, so it is made of the place and the text."""
    digest = hashlib.sha256(str(source).encode() + b"\0" + source.read_bytes()).hexdigest()
    name = re.sub(r"\W", "_", source.name)
    return f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}"


def _script(plan: _Plan, scratch: Path) -> str:
    """Both halves at once, then the last step; what they print in nvcc's order, and not what follows an error."""
    host, device = scratch / "host.log", scratch / "device.log"

    def chain(commands: list[list[str]]) -> str:
        return " && ".join(shlex.join(words) for words in commands)

    def show(log: Path) -> str:
        return f"cat {shlex.quote(str(log))}"

    return "\n".join(
        [
            f"{{ {chain(plan.host)}; }} >{shlex.quote(str(host))} 2>&1 & host=$!",
            f"{{ {chain(plan.device)}; }} >{shlex.quote(str(device))} 2>&1 & device=$!",
            f"wait $host; host=$?; {show(host)}",
            "if [ $host -ne 0 ]; then wait; exit $host; fi",
            f"wait $device; device=$?; {show(device)}",
            "if [ $device -ne 0 ]; then exit $device; fi",
            f"exec {shlex.join(plan.last)}",
        ]
    )
