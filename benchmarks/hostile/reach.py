"""Attacks on what is not the candidate's: services, other processes, files. See :mod:`benchmarks.hostile.inside`."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

from benchmarks.hostile.inside import Targets, attack, attempt, call, checked, foreign, libc, others, read, text, write

# ------------------------------------------------------------------------------------------------ network


@attack("connect to a port of the host")
def _tcp(t: Targets) -> object:
    return socket.create_connection(("127.0.0.1", t["port"]), 2)


@attack("a network interface that leads out")
def _interfaces(_: Targets) -> object:
    return [name for _, name in socket.if_nameindex() if name != "lo"]


@attack("abstract socket of the host")
def _abstract(t: Targets) -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{t['abstract']}")
        return sock.recv(100)


@attack("sockets of the host in /proc/net")
def _proc_net(t: Targets) -> object:
    return t["abstract"].encode() in read("/proc/net/unix", 1 << 22)


@attack("a socket family without a namespace (vsock: the hypervisor)")
def _vsock(_: Targets) -> object:
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


@attack("raw packets")
def _packets(_: Targets) -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)


@attack("socket families that load kernel modules")
def _families(_: Targets) -> object:
    usual = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    found = []
    for family in range(46):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            with contextlib.suppress(OSError):
                socket.socket(family, kind).close()
                found.append(family)
    return sorted(set(found) - set(usual))


@attack("Valkey by its socket")
def _valkey(t: Targets) -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(t["valkey_socket"])
        sock.sendall(b"GET canary\r\n")
        return sock.recv(200)


@attack("Valkey by TCP")
def _valkey_tcp(t: Targets) -> object:
    with socket.create_connection(("127.0.0.1", t["valkey_port"]), 2) as sock:
        sock.sendall(b"GET canary\r\n")
        return sock.recv(200)


@attack("Postgres by its socket")
def _postgres(t: Targets) -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(t["postgres_socket"])
        return _postgres_says(sock)


@attack("Postgres by TCP")
def _postgres_tcp(t: Targets) -> object:
    with socket.create_connection(("127.0.0.1", t["postgres_port"]), 2) as sock:
        return _postgres_says(sock)


def _postgres_says(sock: socket.socket) -> bytes:
    words = b"user\0postgres\0database\0postgres\0\0"
    sock.sendall(struct.pack("!II", len(words) + 8, 196608) + words)
    said = b""
    while b"Z\0\0\0\5" not in said:  # ready for a query
        if not (part := sock.recv(4096)):
            return b""
        said += part
    query = b"SELECT word FROM canary\0"
    sock.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
    time.sleep(0.2)
    return sock.recv(4096)


# ------------------------------------------------------------------------------------------------ processes


@attack("secret in the own environment")
def _own_environment(t: Targets) -> object:
    return [name for name, value in os.environ.items() if t["canary"] in name + value]


@attack("secret in an environment")
def _environments(t: Targets) -> object:
    return [pid for pid in (1, *others()) if t["canary"].encode() in read(f"/proc/{pid}/environ")]


@attack("secret in a command line")
def _command_lines(t: Targets) -> object:
    found = [read(f"/proc/{pid}/{name}") for pid in (1, *others()) for name in ("cmdline", "comm")]
    return [words for words in found if t["canary"].encode() in words]


@attack("the host's processes")
def _processes(_: Targets) -> object:
    return [pid for pid in others() if read(f"/proc/{pid}/comm").strip() not in (b"bwrap", b"")]


@attack("secret in an open file of another process")
def _open_files(t: Targets) -> object:
    for pid in (1, *others()):
        for link in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.stat(link).st_mode) and t["canary"].encode() in read(link):
                    return link
    return None


@attack("a descriptor left open by the supervisor")
def _inherited(t: Targets) -> object:
    fds = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
           if os.path.lexists(f"/proc/self/fd/{name}")}  # fmt: skip
    return {fd: to for fd, to in fds.items() if fd > 2 and fd not in t["given_fds"] and "/proc/" not in to}


@attack("the host's files by another process's root")
def _roots(t: Targets) -> object:
    for pid in (1, *others()):
        for way in ("root", "cwd", "cwd/.."):
            for path in (t["secret"], "/etc/shadow"):
                if found := read(f"/proc/{pid}/{way}{path}"):
                    return pid, way, found[:20]
    return None


@attack("the host's files by another process's open directory")
def _directories(_: Targets) -> object:
    for pid in (1, *others()):
        for link in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError):
                if os.path.isdir(link) and (names := os.listdir(f"{link}/..")):
                    return link, names[:5]
    return None


@attack("memory of another process")
def _memory(_: Targets) -> object:
    for pid in foreign():
        with contextlib.suppress(OSError, ValueError, IndexError):
            start = int(text(f"/proc/{pid}/maps").split("-")[0], 16)
            with open(f"/proc/{pid}/mem", "rb") as file:
                file.seek(start)
                return pid, file.read(16)
    return None


@attack("process_vm_readv")
def _vm_read(_: Targets) -> object:
    buffer = ctypes.create_string_buffer(16)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    for pid in (1, *others()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            start = int(text(f"/proc/{pid}/maps").split("-")[0], 16)
            return call("process_vm_readv", pid, local, 1, (ctypes.c_void_p * 2)(start, 16), 1, 0)
    own = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.create_string_buffer(b"x" * 16)), 16)
    return call("process_vm_readv", os.getppid(), local, 1, own, 1, 0)


@attack("ptrace")
def _ptrace(t: Targets) -> object:
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return f"seized {t['host_pid']}" if checked(libc.ptrace(0x4206, t["host_pid"], None, None)) == 0 else None


@attack("ptrace of a sibling in the sandbox")
def _ptrace_sibling(_: Targets) -> object:
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    try:
        libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        return "seized" if checked(libc.ptrace(0x4206, child, None, None)) == 0 else None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@attack("a descriptor of another process (pidfd_getfd)")
def _pidfd_getfd(t: Targets) -> object:
    for pid in (t["host_pid"], 1, *others()):
        with contextlib.suppress(OSError):
            return call("pidfd_getfd", call("pidfd_open", pid, 0), 0, 0)
    return None


@attack("signal a process of the host")
def _signal(t: Targets) -> object:
    os.kill(t["host_pid"], 0)
    return "could signal"


@attack("signal everybody")
def _signal_all(_: Targets) -> object:
    for pid in foreign():
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return pid
    return None


@attack("stop or end the sandbox's first process")
def _signal_first(t: Targets) -> object:
    if not t["walled"]:
        os.kill(1, 0)
        return "could signal"
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):  # dead, it would not let us say so
        with contextlib.suppress(PermissionError):
            os.kill(1, number)
        time.sleep(0.05)
        if text("/proc/1/stat").rsplit(")", 1)[1].split()[0] == "T":
            return f"stopped by {number}"
    return None


@attack("compare kernel objects with another process")
def _kcmp(t: Targets) -> object:
    return call("kcmp", os.getpid(), t["host_pid"], 1, 0, 0) >= 0


@attack("move another process's memory between nodes")
def _move_pages(t: Targets) -> object:
    page, node, status = (ctypes.c_void_p * 1)(4096), (ctypes.c_int * 1)(0), (ctypes.c_int * 1)(0)
    return call("move_pages", t["host_pid"], 1, page, node, status, 2) == 0 or status[0]


@attack("a process that outlives the sandbox")
def _daemon(t: Targets) -> object:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            subprocess.Popen(["sleep", t["sleep_s"]], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
        os._exit(0)
    time.sleep(0.2)
    return None if t["walled"] else "started"  # inside, the host looks whether it still runs


# ------------------------------------------------------------------------------------------------ files


@attack("a file of the host")
def _secret(t: Targets) -> object:
    return text(t["secret"])


@attack("accounts and host keys")
def _accounts(_: Targets) -> object:
    places = ("/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/resolv.conf", "/etc/machine-id")
    return [path for path in places if os.path.exists(path)]


@attack("homes, service data and other checkouts")
def _homes(t: Targets) -> object:
    known = [*t["trees"], t["support"], "/usr"]
    found = []
    for top in ("/root", "/home", "/var", "/srv", "/run", "/opt", "/mnt", os.path.dirname(t["package"])):
        for folder, folders, files in os.walk(top):
            inside = any(folder == tree or folder.startswith(tree + "/") for tree in known)
            folders[:] = [] if inside else folders[:50]
            paths = [os.path.join(folder, name) for name in files[:3]]
            found += [] if inside else [path for path in paths if path not in known]
            if len(found) > 20:
                return found
    return found


@attack("shared memory of the host")
def _shared(t: Targets) -> object:
    return [name for name in os.listdir("/dev/shm") if t["shm"] in name]


@attack("System V memory of the host")
def _sysv(t: Targets) -> object:
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(checked(libc.shmget(t["sysv_key"], 0, 0)), None, 0o10000)
    return ctypes.string_at(address, 10) if address not in (None, 2**64 - 1) else None


@attack("message queue of the host")
def _queue(t: Targets) -> object:
    return call("mq_open", t["mqueue"].encode(), os.O_RDONLY, 0, None) + 1


@attack("the kernel's key rings")
def _keys(_: Targets) -> object:
    buffer = ctypes.create_string_buffer(4096)
    for ring in (-1, -2, -3, -4, -5):
        with contextlib.suppress(OSError):
            call("keyctl", 6, ring, buffer, 4096)  # KEYCTL_DESCRIBE
            return ring, buffer.value
    return None


@attack("a key for others to find")
def _add_key(_: Targets) -> object:
    return call("add_key", b"user", b"specgen-attack", b"x", 1, -4)


@attack("write into the interpreter")
def _interpreter(t: Targets) -> object:
    path = os.path.join(sys.prefix, f"{t['name']}.pth")
    return attempt(path, t)


@attack("write into the package")
def _package(t: Targets) -> object:
    path = os.path.join(t["package"], f"{t['name']}.txt")
    return attempt(path, t)


@attack("write into the system")
def _system(t: Targets) -> object:
    path = f"/usr/{t['name']}"
    return attempt(path, t)


@attack("write into the root directory")
def _root(t: Targets) -> object:
    path = f"/{t['name']}"
    return attempt(path, t)


@attack("change the build support that all candidates load")
def _support(t: Targets) -> object:
    path = os.path.join(t["support"], "manifest.json")
    os.chmod(path, 0o644)
    with open(path, "r+"):
        return f"could write {path}"


@attack("write into the host's build cache")
def _cache(t: Targets) -> object:
    os.makedirs(os.path.join(t["tripwire"], "candidates"), exist_ok=True)
    said = write(os.path.join(t["tripwire"], "candidates", "build.tar"))
    return None if t["walled"] else said  # inside, the host looks: its folder may be one of the sandbox's own


@attack("what an earlier candidate left", twice=True)
def _left(t: Targets) -> object:
    folders = ("/tmp", "/var/tmp", "/dev/shm", "/cache", os.path.expanduser("~/.cache"))
    found = []
    for folder in folders if t["walled"] else (t["tripwire"],):
        path = os.path.join(folder, f"left-{t['name']}")
        found += [path] if os.path.exists(path) else []
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            write(path)
    return found


@attack("links out of the sandbox")
def _links(t: Targets) -> object:
    folder = "/tmp" if t["walled"] else t["tripwire"]
    os.symlink(t["secret"], f"{folder}/link")
    with contextlib.suppress(OSError):
        return text(f"{folder}/link")
    os.link(t["secret"], f"{folder}/hard")
    return text(f"{folder}/hard")


@attack("a hard link to a file of the system")
def _hard_link(t: Targets) -> object:
    path = os.path.join("/usr" if t["walled"] else t["tripwire"], f"hard-{t['name']}")
    os.link("/usr/bin/env" if t["walled"] else t["secret"], path)
    return path
