"""Candidates that look for secrets in a whole evaluation: all attacks from within, and a search of what is readable."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile import evaluations, search
from benchmarks.hostile.candidates import kernel
from benchmarks.hostile.ground import ATTACKS, Ground, attack_files
from specgen.evaluation import sandbox
from specgen.evaluation.cell import close_zygote
from specgen.types import Status

_SECRETS = ("SPECGEN_LLM_API_KEY", "SPECGEN_DATABASE_URL", "SPECGEN_REDIS_URL", "OPENAI_API_KEY", "PGPASSWORD")
_SAID = re.compile(r"WORD (\{.*\}) END", re.DOTALL)

_ATTACK = """
import json, os, sys, types
for name in ("benchmarks", "benchmarks.hostile"):
    sys.modules[name] = types.ModuleType(name)
for name, text in json.loads({files!r}):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
inside = sys.modules["benchmarks.hostile.inside"]
targets = json.loads({targets!r})
fds = {{int(fd): os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{{fd}}")}}
sockets = [fd for fd, to in fds.items() if to.startswith("socket:")]
targets["given_fds"] = sockets[:1] + [fd for fd, to in fds.items() if to.startswith("/memfd:specgen")]
rows = list(inside.run({names!r}, targets))
raise RuntimeError("WORD " + json.dumps({{"run": len(rows), "got": [row for row in rows if row[1] == "got"]}}) + " END")
"""
_SEARCH = """
import json, sys, types
module = sys.modules["search"] = types.ModuleType("search")
exec(compile({text!r}, "search", "exec"), module.__dict__)
found = module.search({roots!r}, {skipped!r}, {sockets!r}, {ports!r})
raise RuntimeError("WORD " + json.dumps(found) + " END")
"""


@contextlib.contextmanager
def secret_environment(canary: str) -> Iterator[None]:
    """The worker's environment holds secrets; a zygote is started anew with them."""
    before = {name: os.environ.get(name) for name in _SECRETS}
    close_zygote()
    os.environ.update(dict.fromkeys(_SECRETS, canary))
    try:
        yield
    finally:
        close_zygote()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def attacked_from_within(ground: Ground, cache_root: Path) -> tuple[int, list[str]]:
    """All attacks by a candidate while it is imported: how many ran, and those that got something."""
    targets = ground.targets | {"walled": True, "name": "xwithin"}
    code = _ATTACK.format(files=json.dumps(attack_files()), targets=json.dumps(targets), names=list(ATTACKS))
    said = _word(code, cache_root)
    return int(said["run"]), [f"{row[0]}: {row[2]}" for row in said["got"]]


def searched_from_within(ground: Ground, cache_root: Path) -> dict[str, list[str]]:
    """Where a candidate found canaries, by kind."""
    trees = ["/usr", "/proc", "/sys", *sandbox.python_trees(), str(ground.support)]
    return {kind: list(found) for kind, found in _word(_search(ground, ["/"], trees), cache_root).items()}


def searched_outside(ground: Ground) -> dict[str, list[str]]:
    """The control: the same search by a process of the host's, as deep as the folder with the canaries."""
    code = _search(ground, [str(Path(ground.targets["secret"]).parent)], []).replace("raise RuntimeError(", "print(")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return _parsed(done.stdout)


def _search(ground: Ground, roots: list[str], skipped: list[str]) -> str:
    targets = ground.targets
    return _SEARCH.format(
        text=Path(str(search.__file__)).read_text(), roots=roots, skipped=skipped,
        sockets=[targets["valkey_socket"], targets["postgres_socket"]],
        ports=[targets["valkey_port"], targets["postgres_port"], targets["port"]],
    )  # fmt: skip


def _word(code: str, cache_root: Path) -> dict[str, Any]:
    """What a candidate says that runs this code and is then evaluated to its end: it fails with its word."""
    result = evaluations.evaluate(kernel(code), cache_root, 240.0)
    if result.status is not Status.LOAD_ERROR:
        raise RuntimeError(f"the candidate ended {result.status}: {result.error[:1000]}")
    return _parsed(result.error)


def _parsed(text: str) -> dict[str, Any]:
    match = _SAID.search(text)
    if match is None:
        raise RuntimeError(f"no word in {text[:1000]}")
    said: dict[str, Any] = json.loads(match[1])
    return said
