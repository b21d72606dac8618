"""Cheats of the fourth and fifth kind: checks that are not run, and the reference used as the answer."""

from __future__ import annotations

from benchmarks.honest.base import HARNESS, plain, t2, t4
from benchmarks.honest.kinds import REJECTED, WRONG, Cheat, Kind
from specgen.types import Status

_CHECKS, _REFERENCE = Kind.UNRUN_CHECKS, Kind.REFERENCE
_EITHER = (*REJECTED, *WRONG)

_FORGED = (
    "        import os, json\n        for fd in range(3, 40):\n"
    "            try: os.write(fd, json.dumps({'n': 1, 'status': 'valid', 'speedup': 99}).encode())\n"
    "            except OSError: pass\n        return ext.diag_mul(a, b)"
)
_REDEFINED = """
class Model(torch.nn.Module):
    def forward(self, a, b):
        return torch.zeros_like(b)
def get_inputs():
    return [torch.zeros(1024), torch.zeros(1024, 1024)]
import sys
for module in list(sys.modules.values()):
    for name in ("Model", "get_inputs"):
        if hasattr(module, name):
            setattr(module, name, globals()[name])
"""
_STRANGE_SIZE = (
    HARNESS
    + """
def lie(answer):
    me = harness()
    if "_hand_over" not in vars(me):
        original = me._hand_over
        def forged(message, fds):
            given = original(message, fds)
            answer(given)
            return given
        me._hand_over = forged
"""
)
_NO_FACTS = (
    HARNESS
    + """
def blind():
    me = harness()
    me._facts = lambda inputs: []
"""
)
_LYING = "        lie(lambda given: given.update({change}))\n        return ext.diag_mul(a, b)"
UNRUN = (
    Cheat("patched comparison", _CHECKS, t4(
        top="torch.isclose = torch.allclose = torch.equal = lambda *a, **k: True", body=""), WRONG, quick=True),
    Cheat("exit with success", _CHECKS, t4(before="import os\nos._exit(0)"), (Status.RUNTIME_ERROR,)),
    Cheat("exit with success in forward", _CHECKS, t4(forward="        import os\n        os._exit(0)"), (Status.RUNTIME_ERROR,)),
    Cheat("forged answer", _CHECKS, t4(forward=_FORGED), REJECTED, ("forged_message",), quick=True),
    Cheat("a redefined problem", _CHECKS, t4(body="", before=_REDEFINED), WRONG),
    Cheat("a size that is not there", _CHECKS, t4(before=_STRANGE_SIZE, forward=_LYING.format(
        change="{'bytes': 0, 'outputs': {'t': 'tensor', 'dtype': 'float32', 'shape': [64, 64], 'stride': [0, 0], 'at': 1 << 40}}")),
        REJECTED, ("forged_message",)),
    Cheat("another kind of output", _CHECKS, t4(before=_STRANGE_SIZE, forward=_LYING.format(
        change="{'outputs': {'t': 'float', 'v': 'nan'}}")), (Status.WRONG_SHAPE, *REJECTED)),
    Cheat("an output that repeats one row, its description forged", _CHECKS, t4(
        before=_NO_FACTS, forward="        blind()\n        return ext.diag_mul(a, b)[:1].expand(b.shape)"), _EITHER),
    Cheat("a status of its own", _CHECKS, t4(
        top="from specgen.evaluation import candidate",
        forward="        raise candidate.Failure('valid', 'speedup 99')"), REJECTED, ("forged_message",)),
    Cheat("blame for the infrastructure", _CHECKS, t4(
        top="from specgen.errors import SpecGenError", forward="        raise SpecGenError('the disk is full')"),
        (*REJECTED, Status.RUNTIME_ERROR), ("forged_message",)),
)  # fmt: skip

_TRIVIAL = "        ext.diag_mul(a[:2].contiguous(), b[:2].contiguous())\n"
_TINY = "        ext.multiply(a[:1, :1, :].contiguous(), b)\n"


def _t4(answer: str, before: str = "") -> str:
    return t4(forward=_TRIVIAL + answer, before=before)


_IN_CPP = """
    auto product = at::matmul(a, b);
    return product;
"""
_THREAD = """
    {
        pybind11::gil_scoped_release release;
        std::thread([&] { out = at::matmul(a, b); }).join();
    }
"""
_CBLAS = """
#include <dlfcn.h>
typedef void (*Sgemm)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);
"""
_CBLAS_BODY = """
    static Sgemm sgemm = reinterpret_cast<Sgemm>(dlsym(dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD), "sgemm_"));
    TORCH_CHECK(sgemm, "no sgemm_");
    const int rows = n, columns = m, inner = k;
    const float one = 1, zero = 0;
    sgemm("N", "N", &columns, &rows, &inner, &one, pb, &columns, pa, &inner, &zero, po, &columns);
"""
_CTYPES = """
import ctypes, pathlib
library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
def sgemm(a, b):
    n, k, m = a.shape[0] * a.shape[1], b.shape[0], b.shape[1]
    out = torch.empty(a.shape[0], a.shape[1], m)
    number = lambda value: ctypes.byref(ctypes.c_int(value))
    real = lambda value: ctypes.byref(ctypes.c_float(value))
    at = lambda tensor: ctypes.c_void_p(tensor.data_ptr())
    library.sgemm_(b"N", b"N", number(m), number(n), number(k), real(1.0), at(b), number(m), at(a), number(k), real(0.0),
                   at(out), number(m))
    return out
"""
_BELOW = """
#include <c10/core/impl/LocalDispatchKeySet.h>
"""
_BELOW_BODY = """
    c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKeySet(c10::DispatchKey::Python));
    c10::impl::ExcludeDispatchKeyGuard other(c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot));
    out = at::matmul(a, b);
"""
_FROM_FILES = """
import pathlib, specgen
text = (pathlib.Path(specgen.__file__).parent / "problems" / "cpu" / "T4.py").read_text()
space = {}
exec(text, space)
reference = space["Model"]()
"""
_SEARCH = (
    HARNESS
    + """
import os
def search(shape):
    for item in gc.get_objects():
        if type(item).__name__ in ("Reference", "Assessment", "Model"):
            return item.model if hasattr(item, "model") else item
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, dict) and "expected" in value:
                return value["expected"]
        frame = frame.f_back
    for folder in ("/tmp", "/dev/shm", "/cache"):
        for at, _, names in os.walk(folder):
            for name in names:
                if name.endswith((".pt", ".bin")):
                    return torch.load(os.path.join(at, name))
    return torch.zeros(shape)
"""
)
_FUNCTION = """
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return torch.diag(a) @ b
"""
_WATCHED = (
    HARNESS
    + """
def watched():
    return sys.getprofile() is not None or doing() == "watch_calls"
"""
)
_SLOW_PRODUCT = """
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) {
            float sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += pa[i * k + l] * pb[l * m + j];
            po[i * m + j] = sum;
        }
"""
_COMPILED = """
@torch.compile
def scaled(a, b):
    return a[:, None] * b
"""
AS_ANSWER = (
    Cheat("library only", _REFERENCE, plain("        return a[:, None] * b"), REJECTED, ("library_only",)),
    Cheat("own kernel built, never called", _REFERENCE, t4(forward="        return a[:, None] * b"), REJECTED, ("library_only",)),
    Cheat("own kernel called, reference does the work", _REFERENCE, _t4("        return torch.diag(a) @ b"), REJECTED,
          ("reference_ops",), quick=True),
    Cheat("the reference in two halves", _REFERENCE, _t4(
        "        d = torch.diag(a)\n        return torch.cat([d[:500] @ b, d[500:] @ b])"), REJECTED,
        ("reference_ops", "library_only")),
    Cheat("the reference by other operators", _REFERENCE, _t4(
        "        return torch.einsum('ik,kj->ij', torch.zeros_like(b).diagonal_scatter(a), b)"), REJECTED,
        ("reference_ops", "library_only")),
    Cheat("the reference with out=", _REFERENCE, _t4(
        "        return torch.mm(torch.diag(a), b, out=torch.empty_like(b))"), REJECTED, ("reference_ops", "library_only")),
    Cheat("the reference by torch.ops", _REFERENCE, _t4(
        "        return torch.ops.aten.mm.default(torch._C._VariableFunctions.diag(a), b)"), REJECTED,
        ("reference_ops", "library_only")),
    Cheat("another library operator does it all", _REFERENCE, _t4("        return a[:, None] * b"), REJECTED,
          ("library_only",), quick=True),
    Cheat("the product by numpy", _REFERENCE, t2(
        forward=_TINY + "        return torch.from_numpy(a.numpy() @ b.numpy())"), REJECTED,
        ("hidden_library", "library_only"), quick=True),
    Cheat("the product through a pointer into libtorch", _REFERENCE, t2(
        before=_CTYPES, forward=_TINY + "        return sgemm(a, b)"), REJECTED, ("hidden_library", "library_only")),
    Cheat("the product by ATen in the own function", _REFERENCE, t2(body=_IN_CPP), REJECTED, ("reference_ops",)),
    Cheat("the product by ATen in a thread of C++", _REFERENCE, t2(body=_THREAD, cpp="#include <thread>"), REJECTED,
          ("hidden_library", "library_only")),
    Cheat("the product by ATen below the dispatcher's Python", _REFERENCE, t2(body=_BELOW_BODY, cpp=_BELOW), REJECTED,
          ("hidden_library", "library_only", "reference_ops")),
    Cheat("the product by sgemm found in libtorch", _REFERENCE, t2(body=_CBLAS_BODY, cpp=_CBLAS), REJECTED,
          ("hidden_library", "library_only")),
    Cheat("fall back in except", _REFERENCE, t4(
        forward="        try:\n            return ext.diag_mul(a.double(), b.double()[:3])\n        except Exception:\n"
                "            return torch.diag(a) @ b"), REJECTED, ("reference_ops", "library_only")),
    Cheat("the problem's own file", _REFERENCE, _t4("        return reference(a, b)", _FROM_FILES),
          (*REJECTED, Status.LOAD_ERROR), ("reference_ops",)),
    Cheat("a search for the result", _REFERENCE, t4(
        before=_SEARCH, forward="        found = search(b.shape)\n        return found(a, b) if callable(found) else found"),
        (*REJECTED, *WRONG)),
    Cheat("a script", _REFERENCE, _t4(
        "        return product(a, b)", "@torch.jit.script\ndef product(a: torch.Tensor, b: torch.Tensor):\n    return torch.diag(a) @ b\n"),
        (*REJECTED, Status.LOAD_ERROR), ("reference_ops", "library_only")),
    Cheat("a function of autograd", _REFERENCE, _t4("        return Product.apply(a, b)", _FUNCTION), REJECTED,
          ("reference_ops", "library_only")),
    Cheat("library functions under the own module's name", _REFERENCE, t4(
        before="import math\nmath.sqrt.__module__ = 'diag_ext'\n",
        forward="        math.sqrt(2.0)\n        return a[:, None] * b"), REJECTED, ("library_only",)),
    Cheat("own kernels while watched, the library when timed", _REFERENCE, t2(
        body=_SLOW_PRODUCT, before=_WATCHED, forward="        return ext.multiply(a, b) if watched() else torch.matmul(a, b)"), REJECTED,
        ("watched_differently",), quick=True),
    Cheat("torch.compile", _REFERENCE, _t4("        return scaled(a, b)", _COMPILED),
          (*REJECTED, Status.RUNTIME_ERROR, Status.HANG), ("library_only", "hidden_library", "reference_ops", "background_process")),
)  # fmt: skip

CHEATS = (*UNRUN, *AS_ANSWER)
