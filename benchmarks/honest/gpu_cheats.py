"""CUDA cheats: those of the CPU whose Python does it, around CUDA kernels; and those that only a GPU allows.

What refuses them cannot be seen without a GPU, so only the outcome is expected: not valid.
"""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks.honest.base import HARNESS
from benchmarks.honest.cheats import CHEATS as ON_CPU
from benchmarks.honest.gpu_files import extension, hinge, product, row_sums, scale_rows
from benchmarks.honest.kinds import Cheat, Kind
from specgen.types import Phase, Status

# A GPU's refusals: by any rule, or as wrong values; a forged answer may also end the process.
REFUSED = (
    Status.REJECTED, Status.WRONG_VALUE, Status.NOT_FINITE, Status.WRONG_SHAPE, Status.RUNTIME_ERROR, Status.DEVICE_FAULT,
    Status.LOAD_ERROR, Status.HANG, Status.OUT_OF_MEMORY, Status.COMPILE_ERROR,
)  # fmt: skip

_SCALE = scale_rows(256, 1)
_PRODUCT = product("T2", 32)
_ROWDOT = row_sums("rowdot", "(double)v * w[j] * scale / 2", ", const float* w, double scale",
                   ", torch::Tensor w, double scale", ", w.contiguous().data_ptr<float>(), scale")  # fmt: skip
_HINGE = hinge(256, 1024)
_BLOCKS = {  # the exported function of a CPU cheat's file -> the same in CUDA
    "diag_mul": _SCALE, "multiply": _PRODUCT, "rowdot": _ROWDOT, "hinge": _HINGE,
}  # fmt: skip
_CPU_BLOCK = re.compile(r'SOURCE = r""".*?"""\next = load_inline\(.*?\)\n', re.DOTALL)
_FUNCTIONS = re.compile(r"functions=\[([^\]]*)\]")
_CPU_ONLY = re.compile(r"numpy|ctypes|watch\._clock|1024|sgemm|torch\.zeros\(shape\)")


def _converted(cheat: Cheat) -> Cheat | None:
    """A cheat whose kernels are honest and whose Python cheats, with CUDA kernels; None for others."""
    block = _CPU_BLOCK.search(cheat.source)
    if cheat.name == "memory of a freed result":
        return None  # torch gives the same block out again: the result was computed in this very call
    if block is None or cheat.problem not in ("T1", "T2", "T4", "T12"):
        return None
    named = [name.strip(" \"'") for name in _FUNCTIONS.search(block[0])[1].split(",")]  # type: ignore[index]
    rest = cheat.source[: block.start()] + cheat.source[block.end() :]
    if len(named) != 1 or named[0] not in _BLOCKS or block[0] not in _honest_blocks() or _CPU_ONLY.search(rest):
        return None
    body = cheat.source[block.end() :]
    head = cheat.source[: block.start()].replace("from torch.utils.cpp_extension import load_inline", "")
    source = head + extension(_BLOCKS[named[0]], (named[0],)) + body
    return replace(cheat, source=source, statuses=REFUSED, rules=(), quick=False)


def _honest_blocks() -> set[str]:
    from benchmarks.honest import cheats_results, cheats_values
    from benchmarks.honest.base import model, t2, t4

    sources = (
        t4(), t2(), model(cheats_results.SUMS, ("rowdot",), ""), model(cheats_results.HINGE, ("hinge",), ""),
        model(cheats_values.HINGE, ("hinge",), ""),
    )  # fmt: skip
    return {found[0] for source in sources if (found := _CPU_BLOCK.search(source))}


def _t4(forward: str, before: str = "", cuda: str = _SCALE, init: str = "pass") -> str:
    return (
        extension(cuda, ("diag_mul",))
        + f"""
{before}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        {init}

    def forward(self, a, b):
{forward}
"""
    )


def _t2(forward: str, before: str = "", cuda: str = _PRODUCT) -> str:
    return (
        extension(cuda, ("multiply",))
        + f"""
{before}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.graph = None

    def forward(self, a, b):
{forward}
"""
    )


_CALL = "        return ext.diag_mul(a, b)"
_EMPTY = _SCALE.replace("out[at] = v;", "")
_HALF_OF_IT = _SCALE.replace("if (at >= count) return;", "if (at >= count / 2) return;")
_TOO_MANY = _SCALE.replace(", 256, 0,", ", 4096, 0,").replace("C10_CUDA_KERNEL_LAUNCH_CHECK();", "cudaGetLastError();")
_OTHER_STREAM = scale_rows(256, 1, stream="other()").replace("\n__global__", """
static cudaStream_t other() {
    static cudaStream_t stream = nullptr;
    if (!stream) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return stream;
}
__global__""", 1)  # fmt: skip
_LIBRARY = """
torch::Tensor multiply(torch::Tensor a, torch::Tensor b) {
    return at::matmul(a, b);
}
"""
_IN_THREAD = """
#include <thread>
torch::Tensor multiply(torch::Tensor a, torch::Tensor b) {
    torch::Tensor out;
    std::thread([&] { out = at::matmul(a, b); }).join();
    return out;
}
"""
_ELAPSED = """
torch.cuda.Event.elapsed_time = torch._C._CudaEventBase.elapsed_time = lambda *given: 0.001
"""
_WATCH = (
    HARNESS
    + """
def tamper(name, value):
    me = harness()
    if me is not None:
        setattr(me.watch, name, value)
"""
)
_SYNCHRONIZE = """
torch.cuda.synchronize = lambda *given: None
torch._C._cuda_synchronize = lambda: None
"""
_STALE = """        if self.graph is None:
            self.a, self.b = a.clone(), b.clone()
            ext.multiply(self.a, self.b)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = ext.multiply(self.a, self.b)
        self.graph.replay()
        return self.out.clone()"""
_KEPT_IN_BURSTS = """        if doing() == "burst":
            if self.calls == 0:
                self.calls = ext.multiply(a, b)
            return self.calls
        self.calls = 0
        return ext.multiply(a, b)"""
_THREAD_LATER = """        out = torch.empty_like(b)
        def later():
            time.sleep(0.0005)
            out.copy_(ext.diag_mul(a, b))
        threading.Thread(target=later).start()
        return out"""
_LAZY_TENSOR = """
class Later(torch.Tensor):
    @staticmethod
    def __new__(cls, like, make):
        out = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        out.make = make
        return out
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        real = [arg.make() if isinstance(arg, Later) else arg for arg in args]
        return func(*real, **(kwargs or {}))
"""
_OWN = (
    Cheat("uninitialised memory (CUDA)", Kind.NOT_COMPUTED, _t4(_CALL, cuda=_EMPTY)),
    Cheat("memory of the last result (CUDA)", Kind.NOT_COMPUTED, _t4(
        "        self.calls += 1\n        return ext.diag_mul(a, b) if self.calls % 2 else torch.empty_like(b)")),
    Cheat("half of it (CUDA)", Kind.NOT_COMPUTED, _t4(_CALL, cuda=_HALF_OF_IT)),
    Cheat("a launch that fails silently", Kind.NOT_COMPUTED, _t4(_CALL, cuda=_TOO_MANY)),
    Cheat("a graph of old inputs", Kind.REMEMBERED, _t2(_STALE)),
    Cheat("a side stream that is not joined", Kind.UNSEEN_TIME, _t4(_CALL, cuda=_OTHER_STREAM)),
    Cheat("torch's side stream, not joined", Kind.UNSEEN_TIME, _t2(
        "        with torch.cuda.stream(SIDE):\n            return ext.multiply(a, b)", "SIDE = torch.cuda.Stream()")),
    Cheat("a thread that computes later", Kind.UNSEEN_TIME, _t4(_THREAD_LATER, "import threading, time")),
    Cheat("a tensor that computes when it is read", Kind.UNSEEN_TIME, _t4(
        "        return Later(b, lambda: ext.diag_mul(a, b))", _LAZY_TENSOR)),
    Cheat("patched events", Kind.UNSEEN_TIME, _t2(
        "        tamper('_elapsed', lambda *given: 0.001)\n        return ext.multiply(a, b)", _ELAPSED + _WATCH)),
    Cheat("a patched end event", Kind.UNSEEN_TIME, _t2(
        "        tamper('_record', lambda *given: None)\n        return ext.multiply(a, b)", _WATCH)),
    Cheat("patched synchronisation", Kind.UNSEEN_TIME, _t4(_CALL, _SYNCHRONIZE, cuda=_OTHER_STREAM)),
    Cheat("the harness's synchronisation patched", Kind.UNSEEN_TIME, _t4(
        "        tamper('_synchronize', lambda: None)\n" + _CALL, _WATCH, cuda=_OTHER_STREAM)),
    Cheat("patched events, and results kept in bursts", Kind.UNSEEN_TIME, _t2(
        "        tamper('_elapsed', lambda *given: 0.001)\n" + _KEPT_IN_BURSTS, _WATCH)),
    Cheat("a thread that computes on the device between runs", Kind.UNSEEN_TIME, _t4(_CALL, """
import threading
def busy():
    x = torch.rand(4096, 4096, device="cuda")
    while True:
        x = (x @ x).clamp(0, 1)
threading.Thread(target=busy, daemon=True).start()
""")),
    Cheat("the product by ATen in the own function (CUDA)", Kind.REFERENCE, _t2("        return ext.multiply(a, b)", cuda=_LIBRARY)),
    Cheat("TF32 switched on behind the own function", Kind.REFERENCE, _t2(
        "        torch.backends.cuda.matmul.allow_tf32 = True\n        ext.multiply(a[:1, :1].contiguous(), b)\n        return torch.matmul(a, b)")),
    Cheat("a time that is no number (CUDA)", Kind.IMPOSSIBLE, _t2(
        "        tamper('_elapsed', lambda *given: float('nan'))\n        return ext.multiply(a, b)", _WATCH)),
    Cheat("negative time (CUDA)", Kind.IMPOSSIBLE, _t2(
        "        tamper('_elapsed', lambda *given: -1.0)\n        return ext.multiply(a, b)", _WATCH)),
)  # fmt: skip
# Seen only by what Nsight Compute counts, which decides nothing (docs/integrity.md): not among the cheats that are held.
NOT_HELD = (
    Cheat(
        "the product by ATen in a thread of C++ (CUDA)",
        Kind.REFERENCE,
        _t2("        return ext.multiply(a, b)", cuda=_IN_THREAD),
    ),
)

CHEATS = (
    *(found for cheat in ON_CPU if (found := _converted(cheat)) is not None),
    *(replace(cheat, statuses=REFUSED, rules=(), problem="T2" if "multiply" in cheat.source else "T4", phase=Phase.VALIDATE)
      for cheat in _OWN),
)  # fmt: skip
