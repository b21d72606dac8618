"""The sandbox's system-call filter, as the bytes bubblewrap's ``--seccomp`` takes.

A deny list: what debugging, new namespaces, mounting, kernel keys, eBPF, other processes' memory, io_uring and
changing the CPU affinity need is answered EPERM; everything else passes. bubblewrap's namespaces are the wall, this
is the ditch before it; the affinity rule also keeps a candidate on the one core that is being timed. x86-64 and
arm64; :func:`program` returns None elsewhere.
"""

from __future__ import annotations

import errno
import platform
import struct

_X86_64 = {
    "ptrace": 101, "keyctl": 250, "add_key": 248, "request_key": 249, "unshare": 272, "setns": 308, "mount": 165,
    "umount2": 166, "pivot_root": 155, "chroot": 161, "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "sched_setaffinity": 203, "sched_setscheduler": 144,
    "sched_setattr": 314, "open_by_handle_at": 304, "name_to_handle_at": 303, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "kcmp": 312, "acct": 163,
    "swapon": 167, "swapoff": 168, "reboot": 169, "quotactl": 179, "syslog": 103, "iopl": 172, "ioperm": 173,
}  # fmt: skip
_ARM64 = {
    "ptrace": 117, "keyctl": 219, "add_key": 217, "request_key": 218, "unshare": 97, "setns": 268, "mount": 40,
    "umount2": 39, "pivot_root": 41, "chroot": 51, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280,
    "perf_event_open": 241, "userfaultfd": 282, "sched_setaffinity": 122, "sched_setscheduler": 119,
    "sched_setattr": 274, "open_by_handle_at": 265, "name_to_handle_at": 264, "init_module": 105,
    "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294, "kcmp": 272, "acct": 89,
    "swapon": 224, "swapoff": 225, "reboot": 142, "quotactl": 60, "syslog": 116,
}  # fmt: skip
# The same numbers on every architecture: io_uring, the new mount calls, pidfd_getfd, process_madvise.
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442)
_CLONE3 = 435
_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_MACHINES = {"x86_64": (0xC000003E, _X86_64, 56), "aarch64": (0xC00000B7, _ARM64, 220)}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def program(machine: str = "") -> bytes | None:
    """The filter's BPF program, or None where the architecture is not known."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    arch, table, clone = known
    denied = sorted({*table.values(), *_COMMON})
    ops = [_op(_LOAD, 4), _op(_EQUAL, arch, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    ops += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]  # the x32 numbers
    for number in denied:
        ops += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ERROR | errno.EPERM)]
    # clone3 hides its flags behind a pointer: glibc falls back to clone, whose flags can be read here.
    ops += [_op(_EQUAL, _CLONE3, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    ops += [_op(_EQUAL, clone, 0, 3), _op(_LOAD, 16), _op(_ANY_BIT, _NAMESPACES, 0, 1)]
    ops += [_op(_RETURN, _ERROR | errno.EPERM), _op(_RETURN, _ALLOW)]
    return b"".join(ops)
