"""Attacks on the kernel, on rights, and on what there is only so much of. See :mod:`benchmarks.hostile.inside`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import os
import re
import resource
import signal
import socket
import stat
import struct
import time

from benchmarks.hostile.inside import Targets, attack, call, checked, libc, others, read, text, write

# ------------------------------------------------------------------------------------------------ kernel


@attack("remount the system writable")
def _remount(_: Targets) -> object:
    return checked(libc.mount(b"none", b"/proc", None, 32 | 4096, None)) == 0


@attack("a mount of its own")
def _mount(t: Targets) -> object:
    place = _mount_point(t)
    return checked(libc.mount(b"none", place, b"tmpfs", 0, None)) == 0


def _mount_point(t: Targets) -> bytes:
    place = os.path.join("/tmp" if t["walled"] else t["tripwire"], "mount")
    os.makedirs(place, exist_ok=True)
    return place.encode()


@attack("the new mount calls")
def _fsopen(_: Targets) -> object:
    return call("fsopen", b"tmpfs", 0)


@attack("a detached copy of the mounts")
def _open_tree(_: Targets) -> object:
    return call("open_tree", -100, b"/", 1)  # OPEN_TREE_CLONE


@attack("pivot_root")
def _pivot(t: Targets) -> object:
    with contextlib.suppress(OSError):
        _mount(t)
    return call("pivot_root", _mount_point(t), _mount_point(t)) == 0


@attack("chroot")
def _chroot(_: Targets) -> object:
    os.chroot("/tmp")
    return "chrooted"


@attack("enter the namespaces of another process")
def _setns(_: Targets) -> object:
    for pid in (1, *others()):
        for name in ("mnt", "net", "pid", "user", "ipc", "uts"):
            with contextlib.suppress(OSError):
                fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
                call("setns", fd, 0)
                return pid, name
    return None


@attack("a new user namespace")
def _unshare(_: Targets) -> object:
    return checked(libc.unshare(0x10000000)) == 0


@attack("a new user namespace by clone")
def _clone(_: Targets) -> object:
    child = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attack("a new user namespace by clone3")
def _clone3(_: Targets) -> object:
    arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, signal.SIGCHLD)
    child = call("clone3", arguments, 88)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attack("make a device node")
def _mknod(t: Targets) -> object:
    path = os.path.join("/tmp" if t["walled"] else t["tripwire"], "node")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 1))
    return path


@attack("open a file by its handle")
def _handle(_: Targets) -> object:
    handle, mount = ctypes.create_string_buffer(136), ctypes.c_int()
    struct.pack_into("I", handle, 0, 128)
    call("name_to_handle_at", -100, b"/usr/bin", handle, ctypes.byref(mount), 0)
    fd = os.open("/usr", os.O_RDONLY)
    return call("open_by_handle_at", fd, handle, os.O_RDONLY)


@attack("bpf")
def _bpf(_: Targets) -> object:
    return call("bpf", 0, (ctypes.c_uint32 * 16)(2, 4, 4, 1), 64)  # BPF_MAP_CREATE: an array


@attack("perf_event_open")
def _perf(_: Targets) -> object:
    event = (ctypes.c_uint64 * 16)(1 | 112 << 32, 1)
    return call("perf_event_open", event, -1, 0, -1, 0)


@attack("userfaultfd")
def _userfault(_: Targets) -> object:
    return call("userfaultfd", 0)


@attack("io_uring")
def _io_uring(_: Targets) -> object:
    return call("io_uring_setup", 4, (ctypes.c_uint32 * 30)())


@attack("fanotify")
def _fanotify(_: Targets) -> object:
    return call("fanotify_init", 0, 0)


@attack("load a kernel module")
def _module(_: Targets) -> object:
    fd = os.open("/dev/null", os.O_RDONLY)
    with contextlib.suppress(PermissionError):
        try:
            return call("finit_module", fd, b"", 0)
        except OSError as error:
            if error.errno == 1:
                raise
            return f"the kernel tried: {error}"
    return None


@attack("the kernel's log")
def _log(_: Targets) -> object:
    buffer = ctypes.create_string_buffer(4096)
    return call("syslog", 3, buffer, 4096) or read("/dev/kmsg")


@attack("process accounting")
def _acct(_: Targets) -> object:
    return call("acct", None) == 0


@attack("switch Ctrl-Alt-Del")
def _reboot(_: Targets) -> object:
    return call("reboot", 0xFEE1DEAD - (1 << 32), 672274793, 0, None) == 0  # CAD off: harmless, needs the same right


@attack("swap space of its own")
def _swap(t: Targets) -> object:
    path = os.path.join("/tmp" if t["walled"] else t["tripwire"], "swap")
    write(path)
    try:
        return call("swapon", path.encode(), 0) == 0
    except OSError as error:
        if error.errno != 22:  # EINVAL: the kernel read the file
            raise
        return "the kernel tried"


@attack("set the clock")
def _clock(_: Targets) -> object:
    now = time.clock_gettime_ns(time.CLOCK_REALTIME)
    return call("clock_settime", 0, (ctypes.c_long * 2)(now // 10**9, now % 10**9)) == 0


@attack("kernel addresses and memory")
def _kernel(_: Targets) -> object:
    table = read("/proc/kallsyms", 4000)
    return [line for line in table.splitlines()[:20] if line.split()[0].strip(b"0")] or read("/proc/kcore", 16)


@attack("the pattern of core dumps")
def _core_pattern(_: Targets) -> object:
    path = "/proc/sys/kernel/core_pattern"
    return write(path, text(path))


@attack("a core dump, or the host's handler of one")
def _core(_: Targets) -> object:
    if resource.getrlimit(resource.RLIMIT_CORE)[0] != 1:  # 1: the kernel neither writes one nor starts a handler
        return "a limit that starts handlers"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return "a limit that can be changed to one that starts handlers"


@attack("kernel parameters")
def _sysctl(_: Targets) -> object:
    return write("/proc/sys/kernel/domainname", text("/proc/sys/kernel/domainname"))


@attack("the magic system request")
def _sysrq(_: Targets) -> object:
    return write("/proc/sysrq-trigger", "h")


@attack("the hostname")
def _hostname(_: Targets) -> object:
    socket.sethostname(socket.gethostname())
    return "set"


@attack("the kernel's object tree")
def _sysfs(_: Targets) -> object:
    found = [name for name in os.listdir("/sys") if name != "devices"]
    return found or write("/sys/devices/system/cpu/cpu0/power/control", "auto")


@attack("control groups")
def _cgroups(_: Targets) -> object:
    return os.listdir("/sys/fs/cgroup")


@attack("devices of the host")
def _devices(_: Targets) -> object:
    usual = {
        *[
            "console",
            "core",
            "fd",
            "full",
            "mqueue",
            "null",
            "ptmx",
            "pts",
            "random",
            "shm",
            "stderr",
            "stdin",
            "stdout",
            "tty",
            "urandom",
            "zero",
        ]
    }
    return sorted(set(os.listdir("/dev")) - usual)


@attack("GPU nodes on the CPU backend")
def _gpu_nodes(_: Targets) -> object:
    return glob.glob("/dev/nvidia*") + glob.glob("/proc/driver/nvidia*") + glob.glob("/dev/dri/*")


@attack("type into the terminal (TIOCSTI)")
def _tiocsti(_: Targets) -> object:
    for path in ("/dev/tty", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
            if not os.isatty(fd):
                continue
            try:
                fcntl.ioctl(fd, 0x5412, b"x")
                return path
            except OSError as error:
                if error.errno == 5:  # EIO: the kernel has it switched off, not the sandbox
                    return f"{path}: a terminal"
    return None


# ------------------------------------------------------------------------------------------------ rights


@attack("become root")
def _setuid(_: Targets) -> object:
    if os.getuid() == 0:
        return "is root"
    os.setresuid(0, 0, 0)
    return "became root"


@attack("other groups")
def _groups(_: Targets) -> object:
    os.setgroups([0])
    return "set"


@attack("capabilities")
def _capabilities(_: Targets) -> object:
    status = text("/proc/self/status")
    return [row for row in re.findall(r"^(Cap(?:Prm|Eff|Amb|Inh)):\s+(\w+)", status, re.MULTILINE) if int(row[1], 16)]


@attack("set-uid programs")
def _suid(_: Targets) -> object:
    bound = re.findall(r"^NoNewPrivs:\s+(\d)", text("/proc/self/status"), re.MULTILINE) == ["1"]
    return [path for path in glob.glob("/usr/bin/*") if os.stat(path).st_mode & stat.S_ISUID] if not bound else []


@attack("higher limits")
def _limits(_: Targets) -> object:
    for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_MEMLOCK):
        with contextlib.suppress(OSError, ValueError):
            hard = resource.getrlimit(limit)[1]
            if hard == resource.RLIM_INFINITY:
                return limit, "unlimited"
            resource.setrlimit(limit, (hard + 1, hard + 1))
            return limit, "raised"
    return None


@attack("leave the core")
def _affinity(_: Targets) -> object:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return "moved"


@attack("real-time scheduling")
def _realtime(_: Targets) -> object:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return "set"


@attack("a higher priority")
def _nice(_: Targets) -> object:
    return os.nice(-5) or "set"


@attack("real-time disk priority")
def _ioprio(_: Targets) -> object:
    return call("ioprio_set", 1, 0, 1 << 13) == 0


@attack("be spared when memory runs out")
def _oom(_: Targets) -> object:
    before = int(text("/proc/self/oom_score_adj"))
    try:
        write("/proc/self/oom_score_adj", "-900")
    except PermissionError:
        return f"score {before}, as the host's services" if before < 1000 else None
    return "spared"


# ------------------------------------------------------------------------------------------------ exhaustion


@attack("more processes than a sandbox may have")
def _fork_bomb(_: Targets) -> object:
    children: list[int] = []
    wanted = 260
    try:
        while len(children) < wanted:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
        return f"{len(children)} processes"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@attack("more open files than a sandbox may have")
def _files(t: Targets) -> object:
    if not t["walled"]:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return len([os.dup(0) for _ in range(1500)])


@attack("a disk full of rubbish")
def _disk(t: Targets) -> object:
    """3 GiB: a sandbox holds 1.75 at most. Sparse outside: what counts is that nothing refuses it."""
    block, total = b"x" * (1 << 25), 0
    for folder in ("/tmp", "/cache", "/dev/shm") if t["walled"] else (t["tripwire"],):
        with contextlib.suppress(OSError):
            for number in range(96):
                with open(f"{folder}/rubbish{number}", "wb") as file:
                    if t["walled"]:
                        file.write(block)
                    else:
                        file.truncate(len(block))
                    total += len(block)
    for folder in ("/tmp", "/cache", "/dev/shm", t["tripwire"]):
        for path in glob.glob(f"{folder}/rubbish*"):
            os.unlink(path)
    return total if total >= 3 << 30 else None


@attack("one huge file")
def _huge(t: Targets) -> object:
    with open("/tmp/huge" if t["walled"] else os.path.join(t["tripwire"], "huge"), "wb") as file:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file.truncate(1 << 36)
    return "64 GiB"


@attack("memory that no process is charged for: memfd_create")
def _memfd(_: Targets) -> object:
    return call("memfd_create", b"x", 0)


@attack("memory that no process is charged for: System V")
def _sysv_memory(_: Targets) -> object:
    number = call("shmget", 0, 1 << 20, 0o1600)
    libc.shmctl(number, 0, None)
    return "a segment"


@attack("memory that no process is charged for: message queues")
def _messages(_: Targets) -> object:
    number = call("msgget", 0, 0o1600)
    libc.msgctl(number, 0, None)
    return "a queue"


@attack("memory that no process is charged for: secret memory")
def _secretmem(_: Targets) -> object:
    return call("memfd_secret", 0)


@attack("more locked memory than a sandbox may have")
def _mlock(_: Targets) -> object:
    size = 16 << 20
    memory = (ctypes.c_char * size)()
    libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return checked(libc.mlock(ctypes.addressof(memory), size)) == 0


@attack("a socket that lingers when another process closes it")
def _linger(_: Targets) -> object:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3000))
        return struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 3000)
