"""Cheats of the third and seventh kind: time that is not seen, and numbers that cannot be."""

from __future__ import annotations

from benchmarks.honest.base import BODY, HARNESS, PRODUCT, t2, t4
from benchmarks.honest.kinds import REJECTED, WRONG, Cheat, Kind
from specgen.types import Phase, Status

_TIME, _NUMBER = Kind.UNSEEN_TIME, Kind.IMPOSSIBLE
_DEAD = (Status.RUNTIME_ERROR, Status.DEVICE_FAULT)

SPINNING = """
import threading
def spin():
    while True:
        sum(range(1000))
threading.Thread(target=spin, daemon=True).start()
"""
CHILD = """
import os
if os.fork() == 0:
    while True:
        sum(range(1000))
"""
PATCHED_CLOCK = """
import gc, time
for name in ("perf_counter", "perf_counter_ns", "time", "process_time", "process_time_ns"):
    setattr(time, name, lambda: 1)
for item in gc.get_objects():
    if type(item).__name__ == "Harness":
        steps = iter(range(1, 10**9))
        item.watch._clock = lambda: next(steps)
"""
SLOW = BODY.replace("po[i * m + j] =", "for (int k = 0; k < 30; ++k) po[i * m + j] = k +").replace(
    "pa[i] * pb[i * m + j];", "pa[i] * pb[i * m + j] - k;"
)

# The product in a process that shares this one's memory: its CPU time is not this process's.
_CLONED = (
    """
#include <sched.h>
#include <sys/wait.h>
#include <cstdlib>
struct Job { const float *pa, *pb; float* po; int64_t n, m, k; };
static void product(const Job& job) {
    const float *pa = job.pa, *pb = job.pb;
    float* po = job.po;
    const int64_t n = job.n, m = job.m, k = job.k;
"""
    + PRODUCT
    + """
}
static int child(void* given) { product(*static_cast<Job*>(given)); return 0; }
"""
)
_CLONE = """
    Job job{pa, pb, po, n, m, k};
    static char* stack = static_cast<char*>(std::malloc(1 << 20));
    const int pid = clone(child, stack + (1 << 20), CLONE_VM | CLONE_VFORK | SIGCHLD, &job);
    if (pid < 0) product(job); else waitpid(pid, nullptr, 0);
"""
_FORKED = """
import mmap, os, struct
class Server:
    def __init__(self):
        self.memory = mmap.mmap(-1, 16 << 20)
        self.ask, self.told = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            a = torch.frombuffer(self.memory, dtype=torch.float32, count=4 * 256 * 512).view(4, 256, 512)
            b = torch.frombuffer(self.memory, dtype=torch.float32, count=512 * 384, offset=4 << 20).view(512, 384)
            out = torch.frombuffer(self.memory, dtype=torch.float32, count=4 * 256 * 384, offset=8 << 20)
            while os.read(self.ask[0], 1) == b"g":
                out.copy_(ext.multiply(a, b).view(-1))
                os.write(self.told[1], b"d")
            os._exit(0)
    def run(self, a, b):
        torch.frombuffer(self.memory, dtype=torch.float32, count=a.numel()).copy_(a.reshape(-1))
        torch.frombuffer(self.memory, dtype=torch.float32, count=b.numel(), offset=4 << 20).copy_(b.reshape(-1))
        os.write(self.ask[1], b"g")
        os.read(self.told[0], 1)
        out = torch.frombuffer(self.memory, dtype=torch.float32, count=4 * 256 * 384, offset=8 << 20)
        return out.view(4, 256, 384).clone()
    def end(self):
        os.write(self.ask[1], b"e")
        os.waitpid(self.pid, 0)
"""
_FORKED_FORWARD = """        self.calls += 1 if doing() == "time" else 0
        if self.calls == 1:
            self.server = Server()
        if 1 <= self.calls < 12 and doing() == "time":
            return self.server.run(a, b)
        if self.calls == 12 and self.server is not None:
            self.server.end()
            self.server = None
        return ext.multiply(a, b)"""
_EVERY_RUN = """        if doing() != "time":
            return ext.multiply(a, b)
        server = Server()
        out = server.run(a, b)
        server.end()
        return out"""

# Outputs are computed when the harness hands them over.
_DEFERRED = (
    HARNESS
    + """
def arrange(model, a, b, out):
    me = harness()
    if "_hand_over" not in vars(me):
        original = me._hand_over
        def later(message, fds):
            if model.todo:
                given, kept = model.todo
                model.todo = None
                kept.copy_(ext.multiply(*given))
            return original(message, fds)
        me._hand_over = later
    model.todo = ((a, b), out)
"""
)
_DEFERRED_FORWARD = """        if doing() != "time":
            return ext.multiply(a, b)
        out = a.new_empty(a.shape[0], a.shape[1], b.shape[1])
        arrange(self, a, b, out)
        return out"""

# Outputs are computed by the fault that reading them causes.
_LAZY = (
    """
#include <signal.h>
#include <sys/mman.h>
static const float *lazy_a, *lazy_b;
static char* lazy_at;
static int64_t lazy_n, lazy_m, lazy_k;
static size_t lazy_size;
static void compute(int, siginfo_t*, void*) {
    mprotect(lazy_at, lazy_size, PROT_READ | PROT_WRITE);
    const float *pa = lazy_a, *pb = lazy_b;
    float* po = reinterpret_cast<float*>(lazy_at);
    const int64_t n = lazy_n, m = lazy_m, k = lazy_k;
"""
    + PRODUCT
    + """
}
torch::Tensor later(torch::Tensor a, torch::Tensor b) {
    lazy_k = b.size(0), lazy_m = b.size(1), lazy_n = a.numel() / lazy_k;
    lazy_a = a.data_ptr<float>(), lazy_b = b.data_ptr<float>();
    lazy_size = (lazy_n * lazy_m * 4 + 4095) / 4096 * 4096;
    lazy_at = static_cast<char*>(mmap(nullptr, lazy_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction action = {};
    action.sa_sigaction = compute;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    return torch::from_blob(lazy_at, {a.size(0), a.size(1), lazy_m}, a.options());
}
"""
)
_ONLY_TIMED = "        if doing() != 'time':\n            return ext.multiply(a, b)\n"

# The answer is sent first, the work is done afterwards.
_EARLY_ANSWER = """        if doing() != "time":
            return ext.multiply(a, b)
        me = harness()
        if "finish" not in vars(me.channel):
            finish = me.channel.finish
            self.sent = set()
            def once(number, spent):
                if number not in self.sent:
                    finish(number, spent)
                self.sent.add(number)
            me.channel.finish = once
        frame = sys._getframe()
        while "message" not in frame.f_locals:
            frame = frame.f_back
        me.channel.finish(frame.f_locals["message"]["n"], 300_000)
        return ext.multiply(a, b)"""

# A thread sees the inputs change and computes before the starting shot.
_WATCHER = (
    HARNESS
    + """
import threading
class Watcher(threading.Thread):
    def __init__(self, model):
        super().__init__(daemon=True)
        self.model, self.slots = model, {}
        self.start()
    def run(self):
        while True:
            for key, (a, b, seen) in list(self.slots.items()):
                now = (float(a[0, 0, 0]), float(b[-1, -1]), float(a[-1, -1, -1]))
                if now != seen:
                    out = ext.multiply(a, b)
                    self.slots[key] = (a, b, now)
                    self.model.seen[key] = (now, out)
"""
)
_WATCHER_FORWARD = """        if doing() != "time":
            return ext.multiply(a, b)
        if not self.calls:
            self.calls = Watcher(self)
        key, now = a.data_ptr(), (float(a[0, 0, 0]), float(b[-1, -1]), float(a[-1, -1, -1]))
        found = self.seen.get(key)
        if found is not None and found[0] == now:
            return found[1].clone()
        out = ext.multiply(a, b)
        self.calls.slots[key] = (a, b, now)
        return out"""
_GOT = """
#include <ctime>
#include <dlfcn.h>
#include <link.h>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
static int slow_clock(clockid_t id, struct timespec* at) {
    static long steps = 0;
    at->tv_sec = 1;
    at->tv_nsec = ++steps;
    return 0;
}
static int patch(struct dl_phdr_info* info, size_t, void*) {
    const ElfW(Dyn)* dynamic = nullptr;
    for (int i = 0; i < info->dlpi_phnum; ++i)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (!dynamic) return 0;
    const ElfW(Sym)* symbols = nullptr;
    const char* names = nullptr;
    const ElfW(Rela)* tables[2] = {nullptr, nullptr};
    size_t sizes[2] = {0, 0};
    auto at = [&](ElfW(Addr) p) { return p < info->dlpi_addr ? p + info->dlpi_addr : p; };
    for (const ElfW(Dyn)* d = dynamic; d->d_tag != DT_NULL; ++d) {
        if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at(d->d_un.d_ptr));
        if (d->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at(d->d_un.d_ptr));
        if (d->d_tag == DT_JMPREL) tables[0] = reinterpret_cast<const ElfW(Rela)*>(at(d->d_un.d_ptr));
        if (d->d_tag == DT_PLTRELSZ) sizes[0] = d->d_un.d_val;
        if (d->d_tag == DT_RELA) tables[1] = reinterpret_cast<const ElfW(Rela)*>(at(d->d_un.d_ptr));
        if (d->d_tag == DT_RELASZ) sizes[1] = d->d_un.d_val;
    }
    for (int t = 0; t < 2; ++t)
        for (size_t i = 0; symbols && names && tables[t] && i < sizes[t] / sizeof(ElfW(Rela)); ++i) {
            const auto& entry = tables[t][i];
            const auto index = ELF64_R_SYM(entry.r_info);
            if (!index || std::strcmp(names + symbols[index].st_name, "clock_gettime")) continue;
            void** slot = reinterpret_cast<void**>(info->dlpi_addr + entry.r_offset);
            void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~uintptr_t(4095));
            if (mprotect(page, 8192, PROT_READ | PROT_WRITE) == 0) *slot = reinterpret_cast<void*>(&slow_clock);
        }
    return 0;
}
void tamper() { dl_iterate_phdr(patch, nullptr); }
"""
_WRITTEN = (
    HARNESS
    + """
import ctypes, time
class Patch:
    done = False
def patched():
    me = harness()
    if Patch.done or me is None:
        return
    Patch.done = True
    clock = me.watch._clock
    me.watch._clock = lambda: clock() // 50
"""
)
UNSEEN = (
    Cheat("a thread that makes the reference slow", _TIME, t4(before=SPINNING), REJECTED, ("work_outside_window",),
          phase=Phase.PROFILE, warmups=2, timed_runs=12, quick=True),
    Cheat("a process that makes the reference slow", _TIME, t4(before=CHILD), REJECTED, ("background_process",),
          phase=Phase.PROFILE, warmups=2, timed_runs=12),
    Cheat("a patched clock", _TIME, t4(body=SLOW, before=PATCHED_CLOCK), REJECTED, ("clock_disagrees", "impossible_time"),
          phase=Phase.PROFILE, warmups=2, timed_runs=12, quick=True),
    Cheat("a clock that runs at a fiftieth", _TIME, t2(before=_WRITTEN, forward="        patched()\n        return ext.multiply(a, b)"),
          REJECTED, ("clock_disagrees",)),
    Cheat("clock_gettime replaced in every library", _TIME, t2(
        cpp=_GOT, more=', "tamper"', before="ext.tamper()"), (*REJECTED, *_DEAD, Status.HANG), ()),
    Cheat("the work in a process that shares memory", _TIME, t2(body=_CLONE, cpp=_CLONED), REJECTED, ("asleep",), quick=True),
    Cheat("a server process, started in the window and gone before its end", _TIME, t2(
        before=HARNESS + _FORKED, forward=_FORKED_FORWARD), REJECTED, ("background_process", "asleep")),
    Cheat("a server process for each run", _TIME, t2(before=HARNESS + _FORKED, forward=_EVERY_RUN), REJECTED,
          ("asleep", "background_process", "work_outside_window")),
    Cheat("computed when it is handed over", _TIME, t2(before=_DEFERRED, forward=_DEFERRED_FORWARD), REJECTED,
          ("deferred_work",), quick=True),
    Cheat("computed by the fault of reading it", _TIME, t2(
        cpp=_LAZY, more=', "later"', before=HARNESS, forward=_ONLY_TIMED + "        return ext.later(a, b)"),
        (*REJECTED, *_DEAD), ()),
    Cheat("answered first, computed afterwards", _TIME, t2(before=HARNESS, forward=_EARLY_ANSWER), REJECTED,
          ("work_outside_window", "deferred_work", "clock_disagrees", "forged_message")),
    Cheat("computed by a thread before the starting shot", _TIME, t2(before=_WATCHER, forward=_WATCHER_FORWARD),
          (*REJECTED, *WRONG), ("work_outside_window", "timed_output")),
    Cheat("work in a timer's signal handler", _TIME, t4(before="""
import signal
signal.signal(signal.SIGALRM, lambda *_: sum(range(20000)))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
"""), REJECTED, ("work_outside_window", "deferred_work", "clock_disagrees"), phase=Phase.PROFILE, warmups=2, timed_runs=12),
)  # fmt: skip

_SAYS = (
    HARNESS
    + """
def say(nanoseconds):
    me = harness()
    if "finish" not in vars(me.channel):
        finish = me.channel.finish
        me.channel.finish = lambda number, spent: finish(number, nanoseconds)
"""
)
_ROWS = """
#include <sched.h>
#include <sys/wait.h>
#include <cstdlib>
struct Rows { const float *pa, *pb; float* po; int64_t n, m; };
static int scale(void* given) {
    const Rows& r = *static_cast<Rows*>(given);
    for (int64_t i = 0; i < r.n; ++i)
        for (int64_t j = 0; j < r.m; ++j) r.po[i * r.m + j] = r.pa[i] * r.pb[i * r.m + j];
    return 0;
}
"""
_ROWS_CLONED = """
    Rows rows{a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n, m};
    static char* stack = static_cast<char*>(std::malloc(1 << 20));
    const int pid = clone(scale, stack + (1 << 20), CLONE_VM | CLONE_VFORK | SIGCHLD, &rows);
    if (pid < 0) scale(&rows); else waitpid(pid, nullptr, 0);
"""
IMPOSSIBLE = (
    Cheat("no time at all", _NUMBER, t4(before=_SAYS, forward="        say(0)\n        return ext.diag_mul(a, b)"), REJECTED,
          ("impossible_time",), quick=True),
    Cheat("negative time", _NUMBER, t4(before=_SAYS, forward="        say(-5_000_000)\n        return ext.diag_mul(a, b)"),
          REJECTED, ("impossible_time",)),
    Cheat("a millionth of the time", _NUMBER, t2(before=_SAYS, forward="        say(1)\n        return ext.multiply(a, b)"),
          REJECTED, ("clock_disagrees",)),
    Cheat("a time that is no number", _NUMBER, t4(
        before=_SAYS.replace("finish(number, nanoseconds)", "me.channel.send({'n': number, 'ns': nanoseconds})"),
        forward="        say(1e-9)\n        return ext.diag_mul(a, b)"), REJECTED, ("impossible_time",)),
    Cheat("faster than memory", _NUMBER, t4(cpp=_ROWS, body=_ROWS_CLONED), REJECTED, ("faster_than_memory", "asleep")),
)  # fmt: skip

CHEATS = (*UNSEEN, *IMPOSSIBLE)
