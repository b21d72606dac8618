"""The support library of the façade: compiled once against the real ATen, loaded by every candidate's process.

``ensure_support`` runs outside the sandbox and makes one directory per (torch, compiler, façade): the library, the
façade's headers with the stubs that stand for torch's, and the index of operators. Inside the sandbox it is only read.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType

from specgen.errors import InfrastructureError
from specgen.evaluation.build import retention, verify
from specgen.evaluation.build.operators import Overloads, read_overloads
from specgen.evaluation.build.toolchain import Deadline, cuda_home, cxx, run, standard, version_of

_HERE = Path(__file__).parent
_MANIFEST = "manifest.json"
_BUILD_LIMIT_S = 900.0

# g++ flags for which the prelude is kept precompiled (66 MB each): those that candidates use most; -O1 to -O3 share
# one. It is a saving only: with any other flags g++ ignores the files and reads the header.
_PRECOMPILED = (
    (),
    ("-O3",),
    ("-O3", "-fopenmp"),
    ("-O3", "-march=native"),
    ("-O3", "-march=native", "-fopenmp"),
    ("-O3", "-march=native", "-ffast-math", "-fopenmp"),
)

# Headers of torch that a candidate may name, all standing for the same façade.
_STUBS = (
    *("torch/extension.h", "torch/all.h", "torch/torch.h", "torch/types.h", "torch/python.h", "torch/script.h"),
    *("torch/library.h", "torch/utils.h", "pybind11/pybind11.h", "pybind11/stl.h", "torch/csrc/utils/pybind.h"),
    *("ATen/ATen.h", "ATen/Tensor.h", "ATen/Functions.h", "ATen/Dispatch.h", "ATen/Parallel.h", "ATen/TensorUtils.h"),
    *("ATen/core/Tensor.h", "ATen/core/TensorAccessor.h", "ATen/AccumulateType.h", "ATen/DeviceGuard.h"),
    *("c10/core/ScalarType.h", "c10/core/Device.h", "c10/core/TensorOptions.h", "c10/core/DeviceGuard.h"),
    *("c10/util/Exception.h", "c10/util/Optional.h", "c10/util/ArrayRef.h", "c10/util/Half.h", "c10/util/BFloat16.h"),
    *("c10/macros/Macros.h", "c10/core/Scalar.h", "c10/core/MemoryFormat.h"),
)
_CUDA_STUBS = (
    *("ATen/cuda/CUDAContext.h", "ATen/cuda/CUDABlas.h", "ATen/cuda/Exceptions.h", "ATen/cuda/CUDAUtils.h"),
    *("c10/cuda/CUDAGuard.h", "c10/cuda/CUDAStream.h", "c10/cuda/CUDAException.h", "c10/cuda/CUDAFunctions.h"),
    *("c10/cuda/CUDAMacros.h", "ATen/cuda/CUDAContextLight.h"),
)


_CUDA_HEADERS = ("cuda_runtime_api.h", "cublas_v2.h", "cusparse.h", "cusolver_common.h")  # what ATen's own include


@dataclass(frozen=True)
class Support:
    """A finished support directory, as the façade route uses it."""

    directory: Path

    @property
    def include(self) -> Path:
        """First on a candidate's include path."""
        return self.directory / "include"

    @cached_property
    def manifest(self) -> dict[str, str]:
        """Key, library, torch, CUDA and compiler versions."""
        data: dict[str, str] = json.loads((self.directory / _MANIFEST).read_text())
        return data

    @property
    def library(self) -> Path:
        """The shared object that candidates' libraries are linked to."""
        return self.directory / self.manifest["library"]

    @property
    def has_cuda(self) -> bool:
        """True where torch is built with CUDA."""
        return bool(self.manifest["cuda"])

    @property
    def stock_header(self) -> Path:
        """torch's own header, precompiled (`verify`): first on the include path."""
        return self.directory / "stock"

    @cached_property
    def overloads(self) -> Overloads:
        """The operators of the torch it was built for."""
        return Overloads(**json.loads((self.directory / "operators.json").read_text()))

    def load(self) -> ModuleType:
        """Into this process, once; candidates' libraries then find it by its soname."""
        return _load(self.library)

    def fits(self) -> bool:
        """Whether it was made for the torch, the compiler and the façade of this process."""
        return self.manifest["key"] == support_key()


def ensure_support(cache_root: Path) -> Path:
    """Build what the façade needs unless it is there (about 30 s once); returns its directory under ``cache_root``.

    Idempotent and safe for concurrent processes; the directory stays while this process lives, and where one is made,
    old ones go (`retention`). Raises EnvironmentLacking without a C++ compiler, and InfrastructureError where the
    library does not compile.
    """
    key, cuda = support_key(), _cuda()
    final = cache_root / f"support-{key}{'-cuda' if cuda else ''}"
    while not ((final / _MANIFEST).exists() and retention.hold(final)):
        cache_root.mkdir(parents=True, exist_ok=True)
        with (cache_root / "support.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held by the process, so a killed builder leaves nothing locked
            if not (final / _MANIFEST).exists():
                retention.collect(cache_root, final)
                _make_in(final, key, cuda)
    return final


def _make_in(final: Path, key: str, cuda: str) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=retention.BUILDING, dir=final.parent))
    try:
        _make(scratch, key, cuda)
        scratch.chmod(0o755)  # the sandbox reads it under another uid
        os.replace(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@lru_cache(maxsize=1)
def facade_hash() -> str:
    """Of everything in this package that a built library depends on."""
    digest = hashlib.sha256()
    for path in sorted([*_HERE.glob("include/**/*"), *_HERE.glob("native/*"), _HERE / "operators.py"]):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr((_STUBS, _CUDA_STUBS, _PRECOMPILED, verify.OPTIONS)).encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def support_key() -> str:
    """Names the support directory: torch, Python, compiler, façade (16 hex digits)."""
    import torch

    parts = (torch.__version__, torch.version.cuda, sysconfig.get_config_var("SOABI"), version_of(cxx()), facade_hash())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cuda() -> str:
    """The version of torch's CUDA where sources of it can be compiled here; PyPI's torch has CUDA on any machine, and
    a machine without a toolkit evaluates on its CPU."""
    import torch

    home = cuda_home()
    whole = home is not None and all((home / "include" / name).exists() for name in _CUDA_HEADERS)
    return str(torch.version.cuda) if torch.version.cuda and whole else ""


def _make(directory: Path, key: str, cuda: str) -> None:
    import torch

    torch_root = Path(torch.__file__).parent
    started = time.monotonic()
    _write_includes(directory / "include", torch_root / "include")
    overloads = read_overloads(torch_root / "include")
    (directory / "operators.json").write_text(json.dumps(overloads.as_json()))
    library = f"specgen_support_{key}.so"
    includes = [torch_root / "include", torch_root / "include/torch/csrc/api/include"]
    includes += [Path(sysconfig.get_path("include"))]
    with ThreadPoolExecutor(1) as beside:  # a core each, half a minute each
        header = beside.submit(verify.precompile, directory / "stock", includes, Deadline.after(_BUILD_LIMIT_S))
        _compile(directory, torch_root, library, cuda)
        _precompile(directory / "include")
        header.result()
    manifest = {
        "key": key,
        "library": library,
        "torch": torch.__version__,
        "cuda": cuda,
        "compiler": version_of(cxx()).splitlines()[0],
        "seconds": f"{time.monotonic() - started:.1f}",
    }
    (directory / _MANIFEST).write_text(json.dumps(manifest, indent=1))


def _write_includes(include: Path, torch_include: Path) -> None:
    shutil.copytree(_HERE / "include" / "specgen", include / "specgen")
    for stub in _STUBS:
        _write_stub(include / stub, "specgen/facade.h")
    for stub in _CUDA_STUBS:
        _write_stub(include / stub, "specgen/cuda.h")
    # Half and BFloat16 are torch's own, free-standing headers.
    (include / "torch" / "headeronly").symlink_to(torch_include / "torch" / "headeronly")


def _write_stub(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#pragma once\n#include <{target}>\n")


def _compile(directory: Path, torch_root: Path, library: str, cuda: str) -> None:
    includes = [torch_root / "include", torch_root / "include/torch/csrc/api/include"]
    includes += [Path(sysconfig.get_path("include"))]
    home = cuda_home()
    if cuda and home is not None:
        includes.append(home / "include")
    flags = ["-O1", "-fPIC", "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-w"]
    flags += [f"-DTORCH_EXTENSION_NAME={Path(library).stem}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    flags += ["-DSPECGEN_SUPPORT_CUDA"] if cuda else []
    flags += [word for path in includes for word in ("-isystem", str(path))]
    # Not linked with -fopenmp: the OpenMP runtime is the one inside torch, of which there must be one.
    libraries = ["c10", "torch_cpu", "torch", "torch_python", *(["c10_cuda", "torch_cuda"] if cuda else [])]
    link = [f"-Wl,-soname,{library}", f"-L{torch_root / 'lib'}", *(f"-l{name}" for name in libraries)]
    deadline = Deadline.after(_BUILD_LIMIT_S)
    steps = (
        [cxx(), *flags, "-c", str(_HERE / "native" / "support.cpp"), "-o", "support.o"],
        [cxx(), "-shared", "support.o", *link, "-o", library],
    )
    for step in steps:
        done = run(step, directory, deadline)
        if done.code != 0:
            raise InfrastructureError(f"the façade's support library does not compile:\n{done.output[:4000]}")
    (directory / "support.o").unlink()


def _precompile(include: Path) -> None:
    """g++ looks in ``prelude.h.gch/`` for a file made with the flags at hand. What fails to compile is left out."""
    if "Free Software Foundation" not in version_of(cxx()):
        return  # another compiler's precompiled headers work differently
    target = include / "specgen" / "prelude.h.gch"
    target.mkdir()
    for index, flags in enumerate(_PRECOMPILED):
        header = ["-x", "c++-header", "specgen/prelude.h", "-o", f"specgen/prelude.h.gch/{index}.gch"]
        run([cxx(), "-w", "-fPIC", standard(), *flags, "-isystem", str(include), *header], include, Deadline.after(60))


@lru_cache(maxsize=4)
def _load(library: Path) -> ModuleType:
    return import_library(library.stem, library)


def import_library(name: str, library: Path) -> ModuleType:
    """Import a shared object as a Python module. Raises ImportError as the interpreter does."""
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {library}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
