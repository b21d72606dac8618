"""Whole candidates that attack their evaluation: the judge, the host's memory, the caches, whoever comes next.

Each is a file as a model could write it, and the statuses that its evaluation may end with: never ``infra_error`` (it
would be tried again), and ``valid`` only where what is left of it is an honest kernel. Not here: running them
(:mod:`benchmarks.hostile.evaluations`).
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

_KERNEL = r'''
import torch
from torch.utils.cpp_extension import load_inline
{before}
SOURCE = r"""
#include <torch/extension.h>
torch::Tensor diag_mul(torch::Tensor a, torch::Tensor b) {{
    const int64_t n = b.size(0), m = b.size(1);
    auto out = torch::empty_like(b);
    const float* pa = a.data_ptr<float>();
    const float* pb = b.data_ptr<float>();
    float* po = out.data_ptr<float>();
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j)
            po[i * m + j] = pa[i] * pb[i * m + j];
    return out;
}}
"""
ext = load_inline(name="diag_ext", cpp_sources=SOURCE, functions=["diag_mul"], extra_cflags=["-O3"])
{after}

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
{forward}
'''


def kernel(before: str = "", after: str = "", forward: str = "") -> str:
    """An honest kernel for T4 (``diag(a) @ b``) with something before its build, after it, and in its forward."""
    body = dedent(forward).strip().replace("\n", "\n        ")
    lines = f"        {body}\n        return ext.diag_mul(a, b)"
    return _KERNEL.format(before=dedent(before), after=dedent(after), forward=lines)


@dataclass(frozen=True)
class Hostile:
    """One of them. ``again``: evaluated a second time, with what the first left in the host's cache."""

    name: str
    source: str
    ends: frozenset[str]
    again: bool = False
    long: bool = False  # takes more than ten seconds
    budget_s: float = 60.0


_FAILED = frozenset({"load_error", "runtime_error", "rejected"})
_CHANNEL = """
import os, socket, sys, json
frame = sys._getframe()
while "channel" not in frame.f_locals or "message" not in frame.f_locals:
    frame = frame.f_back
channel, number = frame.f_locals["channel"], frame.f_locals["message"]["n"]
"""
_TAR = """
import hashlib, io, os, tarfile
import specgen.evaluation.archive as archive
def evil(directory, fd, limit):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("/tmp/hostile-absolute", "../../../../../../tmp/hostile-parent", "ok/../../../tmp/hostile-inner"):
            member = tarfile.TarInfo(name); member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
        for name, kind, to in (("link", tarfile.SYMTYPE, "/tmp"), ("hard", tarfile.LNKTYPE, "/etc/passwd")):
            member = tarfile.TarInfo(name); member.type = kind; member.linkname = to
            tar.addfile(member)
        member = tarfile.TarInfo("link/hostile-through"); member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
        member = tarfile.TarInfo("device"); member.type = tarfile.CHRTYPE; member.devmajor = member.devminor = 1
        tar.addfile(member)
    data = hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()
    os.pwrite(fd, data, 0)
    return len(data)
archive.pack = evil
"""
_HUGE = """
import hashlib, io, os, tarfile
import specgen.evaluation.archive as archive
def evil(directory, fd, limit):
    header = bytearray(tarfile.TarInfo("huge").tobuf())
    member = tarfile.TarInfo("huge"); member.size = 1 << 40
    data = member.tobuf() + b"x" * 512
    data = hashlib.sha256(data).digest() + data
    os.pwrite(fd, data, 0)
    return {size}
archive.pack = evil
"""
_WRONG_LIBRARY = """
import glob, subprocess
for path in glob.glob("/cache/**/diag_ext.so", recursive=True):
    data = bytearray(open(path, "rb").read())
    open(path, "wb").write(b"\\x7fELF" + bytes(len(data) - 4))
"""
_FILL = """
import os, socket, time
sockets = []
for _ in range({children}):
    if os.fork() == 0:
        pairs = []
        try:
            while True:
                pairs.append(socket.socketpair())
                pairs[-1][0].setblocking(False)
                try:
                    while True: pairs[-1][0].send(b"x" * 65536)
                except BlockingIOError: pass
        except OSError: pass
        time.sleep(600)
time.sleep(600)
"""

CANDIDATES = (
    # a judge that lets another device's timed window go first stops and resumes its sandbox: it may wake up again
    Hostile("stops itself", kernel("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
            frozenset({"hang", "compile_timeout", "valid"}), budget_s=10),
    Hostile("closes its connection and goes on",
            kernel("import os, time; os.closerange(3, 512); time.sleep(600)"), frozenset({"runtime_error"})),
    Hostile("kills itself", kernel("import os; os.kill(os.getpid(), 9)"), _FAILED),
    Hostile("kills everybody", kernel("import os; os.kill(-1, 9)"), _FAILED),
    Hostile("kills the group", kernel("import os; os.killpg(0, 9)"), _FAILED),
    Hostile("leaves daemons behind", kernel("""
        import os, signal, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(600)
                os._exit(0)
        """), frozenset({"rejected"})),
    Hostile("a fork bomb", kernel("""
        import os, time
        while True:
            if os.fork() == 0: time.sleep(600)
        """), frozenset({"out_of_memory", *_FAILED})),
    Hostile("a fork bomb of fork bombs", kernel("""
        import os
        while True:
            try: os.fork()
            except OSError: pass
        """), frozenset({"hang", "out_of_memory", *_FAILED}), budget_s=8),
    Hostile("memory of many processes", kernel("""
        import os, time
        for _ in range(20):
            if os.fork() == 0:
                held = bytearray(200 << 20)
                for at in range(0, len(held), 4096): held[at] = 1
                time.sleep(600)
        time.sleep(600)
        """), frozenset({"out_of_memory"})),
    Hostile("memory in page tables", kernel("""
        import ctypes, mmap
        libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
        size = 1 << 42
        at = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, 0)
        libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), 15)
        for page in range(at, at + size, 1 << 21): ctypes.c_char.from_address(page).value
        """), frozenset({"out_of_memory"})),
    Hostile("memory in sockets", kernel(_FILL.format(children=100)), frozenset({"out_of_memory"})),
    Hostile("memory in files", kernel("""
        for folder in ("/tmp", "/cache", "/dev/shm"):
            try:
                for number in range(64):
                    with open(f"{folder}/{number}", "wb") as file: file.write(b"x" * (1 << 25))
            except OSError: pass
        import time; time.sleep(600)
        """), frozenset({"out_of_memory"})),
    Hostile("memory in names of files", kernel("""
        import os
        for folder in ("/tmp", "/cache", "/dev/shm"):
            for number in range(3_000_000): os.close(os.open(f"{folder}/{number}", os.O_CREAT))
        """), frozenset({"out_of_memory"}), long=True, budget_s=120),
    Hostile("fills its log", kernel("""
        import os
        for _ in range(200):
            try: os.write(1, b"x" * (1 << 24))
            except OSError: break
        """), frozenset({"valid", *_FAILED})),
    Hostile("truncates and maps its log", kernel("""
        import mmap, os
        os.ftruncate(1, 1 << 29)
        log = mmap.mmap(1, 1 << 29)
        log[-5:] = b"\\xff\\x00\\xfe\\x00\\x80"
        raise SystemExit(3)
        """), _FAILED),
    Hostile("floods the judge with messages", kernel(f"""{_CHANNEL}
try:
    channel.sock.setblocking(False)
    while True: channel.sock.send(b"x" * 100000)
except BlockingIOError: channel.sock.setblocking(True)
"""), _FAILED),
    Hostile("an answer with numbers that are none", kernel(f"""{_CHANNEL}
channel.sock.send(b'{{"n": %d, "route": "facade", "build_s": 1e999, "builds": [["x"]]}}' % number)
"""), _FAILED),
    Hostile("an answer with a number of 100 000 digits", kernel(f"""{_CHANNEL}
channel.sock.send(b'{{"n": %d, "route": "facade", "build_s": 1%s, "builds": []}}' % (number, b"0" * 100000))
"""), _FAILED),
    Hostile("an answer nested 50 000 deep", kernel(f"""{_CHANNEL}
channel.sock.send(b'{{"n": %d, "builds": %s%s}}' % (number, b"[" * 50000, b"]" * 50000))
"""), _FAILED),
    Hostile("an error text that no database holds", kernel("raise RuntimeError('\\x00 \\ud800 \\udfff')"), _FAILED),
    Hostile("hands the judge descriptors, one of a socket that lingers", kernel(f"""{_CHANNEL}
server = socket.create_server(("127.0.0.1", 0))
pairs = []
for _ in range(10):
    one = socket.create_connection(server.getsockname()); other, _ = server.accept()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + (3000).to_bytes(4, "little"))
    one.setblocking(False)
    try:
        while True: one.send(b"x" * 65536)
    except BlockingIOError: pass
    pairs.append((one, other))
try: socket.send_fds(channel.sock, [b'{{"n": 1}}'], [one.fileno() for one, _ in pairs])
except OSError: channel.sock.send(b'{{"n": 1}}')
for one, _ in pairs: one.close()
"""), _FAILED),
    Hostile("seals and punches the judge's memory", kernel("""
        import fcntl
        import specgen.evaluation.tensors as tensors
        plain = tensors.attach
        def attach(fd, size, place):
            for seals in (0x10, 0x8, 0x1):
                try: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
                except OSError: pass
                else: raise RuntimeError("sealed")
            return plain(fd, size, place)
        tensors.attach = attach
        """), frozenset({"valid"})),
    Hostile("build products that lead out of the sandbox", kernel(after=_TAR), frozenset({"valid", *_FAILED}),
            again=True),
    Hostile("build products of a terabyte", kernel(after=_HUGE.format(size="len(data)")),
            frozenset({"valid", *_FAILED}), again=True),
    Hostile("build products of a size that is none", kernel(after=_HUGE.format(size="1 << 62")), frozenset({"valid"})),
    Hostile("a library in its cache that is another", kernel(after=_WRONG_LIBRARY),
            frozenset({"valid", "device_fault", *_FAILED}), again=True),
    Hostile("works at the lowest priority", kernel("import os; os.nice(19)"), frozenset({"valid"})),
    Hostile("lowers its own limits", kernel("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
        """), frozenset({"valid", "compile_error", *_FAILED})),
)  # fmt: skip
HONEST = kernel()
