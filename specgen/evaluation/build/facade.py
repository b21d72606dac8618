"""The fast route: the candidate's source over the façade, compiled in a second, linked to the support library.

Raises FacadeRefused wherever it cannot be sure; it never decides that a candidate is wrong. Not here: the stock route,
the cache, loading.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specgen.evaluation.build.errors import FacadeRefused
from specgen.evaluation.build.phases import compile_side_by_side
from specgen.evaluation.build.request import BuildRequest, Unit
from specgen.evaluation.build.screen import lean, prelude, refusal, without_comments
from specgen.evaluation.build.support import Support
from specgen.evaluation.build.toolchain import Completed, Deadline, cuda_home, cxx, run, run_all, standard

DOES_NOT_COMPILE = "it does not compile with the façade"
_BINDINGS = "bindings.cpp"


@dataclass(frozen=True)
class Compiled:
    """A finished library and what the compilers printed."""

    library: Path
    output: str


@dataclass(frozen=True)
class _Translation:
    file: str  # in the build directory
    language: str
    text: str


def build(request: BuildRequest, directory: Path, support: Support, deadline: Deadline) -> Compiled:
    """Compile and link in ``directory``. Raises FacadeRefused, BuildTimeout, CompilerKilled."""
    _check(request, support)
    objects, output = compile_units(request, directory, support, deadline)
    library = f"{request.name}.so"
    flags = [*request.ldflags, *_link_flags(request, support)]
    link = run([cxx(), *objects, "-shared", *flags, "-o", library], directory, deadline)
    if link.code != 0:
        raise FacadeRefused("it does not link with the façade", link.output)
    return Compiled(directory / library, output + link.output)


def compile_units(
    request: BuildRequest, directory: Path, support: Support, deadline: Deadline
) -> tuple[list[str], str]:
    """The object files (names in ``directory``) and what the compilers printed. Raises as :func:`build`."""
    for name, text in support.overloads.includes(request.source).items():
        (directory / name).write_text(text)
    for unit in request.units:
        unit.write_sources(directory)

    def attempt(**how: bool) -> tuple[list[str], str, bool]:
        return _compile(request, list(translate(request, **how)), directory, support, deadline)

    few = request.uses_cuda and lean(request.source)
    objects, output, failed = attempt(few=few)
    if failed and few:
        objects, output, failed = attempt()
    if failed and len(objects) < len(request.units) and _BINDINGS in output:
        # nvcc declares functions that g++ does not, such as norm(): a prototype of that name stands better alone
        objects, output, failed = attempt(join=False)
    if failed:
        raise FacadeRefused(DOES_NOT_COMPILE, output)
    return objects, output


def _compile(
    request: BuildRequest, translations: list[_Translation], directory: Path, support: Support, deadline: Deadline
) -> tuple[list[str], str, bool]:
    for one in translations:
        (directory / one.file).write_text(one.text)
    done = _run(request, translations, directory, support, deadline)
    output = "\n".join(one.output for one in done if one.output)
    return [f"{one.file}.o" for one in translations], output, any(one.code != 0 for one in done)


def _run(
    request: BuildRequest, translations: list[_Translation], directory: Path, support: Support, deadline: Deadline
) -> list[Completed]:
    commands = [_command(request, one, directory, support) for one in translations]
    if len(translations) == 1 and translations[0].language == "cuda":
        done = compile_side_by_side(commands[0], directory / translations[0].file, deadline)
        if done is not None:
            return [done]
    return run_all(commands, directory, deadline)


def translate(request: BuildRequest, *, join: bool = True, few: bool = False) -> Iterator[_Translation]:
    """The files to compile. Prototypes and bindings join the CUDA unit; definitions get a unit of their own.

    ``few``: CUDA units get few standard headers.
    """
    cuda = [unit for unit in request.units if unit.language == "cuda"]
    plain = [unit for unit in request.units if unit.language == "cpp"]
    if join and request.kind == "load_inline" and cuda and _only_prototypes(plain):
        yield _translation(request, "unit0.cu", "cuda", [*cuda, *plain], request.bindings, few=few)
        return
    for index, unit in enumerate([*plain, *cuda]):
        bindings = request.bindings if index == 0 else ""
        suffix = "cu" if unit.language == "cuda" else "cpp"
        yield _translation(request, f"unit{index}.{suffix}", unit.language, [unit], bindings, few=few)


def _translation(
    request: BuildRequest, file: str, language: str, units: list[Unit], bindings: str, *, few: bool
) -> _Translation:
    cuda = language == "cuda"
    parts = [prelude(request.source, cuda=cuda, few=cuda and few)]
    if any(unit.implicit for unit in units):
        parts.append("#include <specgen/facade.h>\n" + ("#include <cuda.h>\n" if cuda else ""))
    parts += [f"{source}\n" for unit in units for source in unit.numbered]
    if bindings:
        parts.append(f'#line 1 "{_BINDINGS}"\n{bindings}')
    return _Translation(file, language, "".join(parts))


def _only_prototypes(units: list[Unit]) -> bool:
    """No bodies, and no default arguments (which the definition in the CUDA source may repeat)."""
    code = without_comments("\n".join(text for unit in units for text in unit.sources))
    return "{" not in code and "=" not in code


def _check(request: BuildRequest, support: Support) -> None:
    if request.special:
        raise FacadeRefused(f"the argument {request.special}")
    if not request.name.isidentifier():
        raise FacadeRefused("the module's name is not an identifier")
    if request.uses_cuda and not support.has_cuda:
        raise FacadeRefused("this torch has no CUDA")
    why = refusal(request.source)
    if why:
        raise FacadeRefused(why)


def _command(request: BuildRequest, one: _Translation, directory: Path, support: Support) -> list[str]:
    """Stock's flags in stock's order; only the include path is ours."""
    includes = [f"-I{path}" for path in request.include_paths]
    if request.kind == "load":  # a file finds its neighbours, as it does where it lies
        folders = dict.fromkeys(f"-iquote{Path(unit.file).parent}" for unit in request.units)
        passed_on = ("-Xcompiler",) if one.language == "cuda" else ()  # nvcc has no such option of its own
        includes += [word for folder in folders for word in (*passed_on, folder)]
    defines = [f"-DTORCH_EXTENSION_NAME={request.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    system = [directory, support.include]
    common = [*defines, *includes]
    if request.uses_cuda:
        system += [_cuda_home() / "include"]
    system += [Path(sysconfig.get_path("include"))]
    common += [word for path in system for word in ("-isystem", str(path))]
    if one.language == "cuda":
        return [*nvcc_command(common, request.cuda_cflags), "-c", one.file, "-o", f"{one.file}.o"]
    return [cxx(), *common, "-fPIC", standard(), *request.cflags, "-c", one.file, "-o", f"{one.file}.o"]


def nvcc_command(common: list[str], cuda_cflags: tuple[str, ...]) -> list[str]:
    """nvcc with the flags that stock gives it; the architecture from TORCH_CUDA_ARCH_LIST or the visible devices."""
    from torch.utils import cpp_extension

    flags = [*common, *cpp_extension.COMMON_NVCC_FLAGS, *cpp_extension._get_cuda_arch_flags(list(cuda_cflags))]
    flags += ["--compiler-options", "-fPIC", *cuda_cflags]
    if not any(flag.startswith("-std=") for flag in flags):
        flags.append(standard())
    return [str(_cuda_home() / "bin" / "nvcc"), *flags]


def _cuda_home() -> Path:
    home = cuda_home()
    if home is None:
        raise FacadeRefused("no CUDA toolkit was found")
    return home


def _link_flags(request: BuildRequest, support: Support) -> list[str]:
    """The support library stands for torch's; CUDA's runtime is linked as stock links it."""
    flags = [str(support.library)]
    if request.uses_cuda:
        flags += [f"-L{_cuda_home() / 'lib64'}", "-lcudart"]
    return flags
