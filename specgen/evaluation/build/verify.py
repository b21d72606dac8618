"""Is a source that the façade could not compile wrong by torch's own headers too?

Stock spends 25 s of processor time before it says so, nearly all of it on headers that are right. The same compiler,
over those headers precompiled, with stock's own translation unit and stopped at its first error, says it in a tenth of
a second: an error of the front end is an error of the whole compile. Where it finds none, or cannot tell (CUDA,
another language standard, another compiler), the stock route is built in full and decides. Not here: that route.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from specgen.evaluation.build.toolchain import Completed, Deadline, cxx, run, standard, version_of

OPTIONS = ("-fPIC", "-O3", "-march=native", "-DTORCH_API_INCLUDE_EXTENSION_H")  # of the precompiled header
_TAKES_VALUE = ("-I", "-isystem", "-iquote", "-include", "-D", "-U")
_DROPPED = re.compile(r"-(?:O\w*|m[\w=.+-]+|f[\w=-]+|g\w*|W[\w=,+-]*|w|pthread|pipe|MMD|c)$")
_TARGET = re.compile(r"\b__(?:AVX|SSE|FMA|F16C|BMI|AMX|ARM|SVE)\w*")
_ERROR = re.compile(r"^\S+?:\d+:\d+: (?:fatal )?error: .*$", re.MULTILINE)


def precompile(directory: Path, includes: Sequence[Path], deadline: Deadline) -> None:
    """Make ``directory/torch/extension.h.gch`` (0.8 GB, half a minute). What fails is left out: it is a saving only."""
    if "Free Software Foundation" not in version_of(cxx()):
        return
    folder = directory / "torch"
    folder.mkdir(parents=True)
    (folder / "extension.h").write_text("#include_next <torch/extension.h>\n")
    system = [word for path in includes for word in ("-isystem", str(path))]
    (folder / "stock.h").write_text("#include <torch/extension.h>\n")
    header = ["-x", "c++-header", str(folder / "stock.h"), "-o", str(folder / "extension.h.gch")]
    run([cxx(), "-w", standard(), *OPTIONS, *system, *header], directory, deadline)


def check(commands: Sequence[Sequence[str]], source: str, header: Path, cwd: Path, deadline: Deadline) -> str | None:
    """The first error of stock's own compile commands in the compiler's words, or None where the full build decides."""
    if not (header / "torch" / "extension.h.gch").exists():
        return None
    for command in commands:
        quick = _front_end(command, header)
        if quick is None or _sees_other_macros(source, command):
            continue
        done: Completed = run(quick, cwd, deadline)
        if done.code != 0 and _ERROR.search(done.output):
            return done.output
    return None


def _sees_other_macros(source: str, command: Sequence[str]) -> bool:
    """Whether the source asks for a macro that the command's flags define otherwise than those of the header."""
    target = [word for word in command if word.startswith("-m") and word != "-march=native"]
    native = "-march=native" in command and not target
    fast = any(word in ("-ffast-math", "-Ofast") for word in command)
    optimised = any(re.fullmatch(r"-O(?:[1-3sgz]|fast)?", word) for word in command)
    return (
        (not native and _TARGET.search(source) is not None)
        or ("_OPENMP" in source and any(word.startswith("-fopenmp") for word in command))
        or ("__FAST_MATH__" in source and fast)
        or ("__OPTIMIZE__" in source and not optimised)
    )


def agree(first: str, facade: str) -> bool:
    """Whether two outputs begin with the same error at the same place (the façade's then shows the further ones)."""
    ours, theirs = _ERROR.search(facade), _ERROR.search(first)
    return ours is not None and theirs is not None and ours[0].replace("fatal error", "error") == theirs[0]


def _front_end(command: Sequence[str], header: Path) -> list[str] | None:
    """The command without code generation, over the precompiled header; None where that would not be the same code."""
    if Path(command[0]).name not in ("c++", "g++", Path(cxx()).name):
        return None
    kept: list[str] = []
    words = iter(command[1:])
    for word in words:
        if word in ("-o", "-MF", "-MT"):
            next(words, None)
        elif word in _TAKES_VALUE:
            kept += [word, next(words, "")]
        elif word.startswith(("-std=", "--std=")):
            if word != standard():
                return None
        elif word.startswith("-") and not word.startswith(_TAKES_VALUE):
            if not _DROPPED.match(word):
                return None
        elif word not in OPTIONS:
            kept.append(word)
    return [command[0], f"-I{header}", standard(), *OPTIONS, *kept, "-Wfatal-errors", "-fsyntax-only"]
