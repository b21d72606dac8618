"""The sandbox's system-call filter, as the bytes bubblewrap's ``--seccomp`` takes.

A deny list: what debugging, new namespaces, mounting, kernel keys, eBPF, other processes' memory, io_uring and
changing the CPU affinity need is answered EPERM; everything else passes. bubblewrap's namespaces are the wall, this
is the ditch before it; the affinity rule also keeps a candidate on the one core that is being timed. What no wall
stands around is refused here alone: socket families without a namespace (vsock reaches the hypervisor), memory that
no process is charged for (System V, and memfd on the CPU backend), sockets that make whoever closes them wait, and
the limit that keeps the host's handler of core dumps from being started. x86-64 and arm64; :func:`program` returns
None elsewhere.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_X86_64 = {
    "ptrace": 101, "keyctl": 250, "add_key": 248, "request_key": 249, "unshare": 272, "setns": 308, "mount": 165,
    "umount2": 166, "pivot_root": 155, "chroot": 161, "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "sched_setaffinity": 203, "sched_setscheduler": 144,
    "sched_setattr": 314, "open_by_handle_at": 304, "name_to_handle_at": 303, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "kcmp": 312, "acct": 163,
    "swapon": 167, "swapoff": 168, "reboot": 169, "quotactl": 179, "syslog": 103, "iopl": 172, "ioperm": 173,
    "modify_ldt": 154, "lookup_dcookie": 212, "move_pages": 279, "migrate_pages": 256, "fanotify_init": 300,
    "ioprio_set": 251,
}  # fmt: skip
_ARM64 = {
    "ptrace": 117, "keyctl": 219, "add_key": 217, "request_key": 218, "unshare": 97, "setns": 268, "mount": 40,
    "umount2": 39, "pivot_root": 41, "chroot": 51, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280,
    "perf_event_open": 241, "userfaultfd": 282, "sched_setaffinity": 122, "sched_setscheduler": 119,
    "sched_setattr": 274, "open_by_handle_at": 265, "name_to_handle_at": 264, "init_module": 105,
    "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294, "kcmp": 272, "acct": 89,
    "swapon": 224, "swapoff": 225, "reboot": 142, "quotactl": 60, "syslog": 116, "lookup_dcookie": 18,
    "move_pages": 239, "migrate_pages": 238, "fanotify_init": 262, "ioprio_set": 30,
}  # fmt: skip
# The same numbers on every architecture: io_uring, the new mount calls, pidfd_getfd, process_madvise, quotactl_fd,
# memfd_secret, statmount, listmount, open_tree_attr.
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 443, 447, 457, 458, 467)
_CLONE3 = 435
_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink: each sandbox has its own
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SOL_SOCKET, _SO_LINGER = 1, 13
_RLIMIT_CORE = 4
_SIGKILL = 9
_HARNESS = 2  # its pid inside: bubblewrap's own is 1
_TO_HARNESS = (_HARNESS, 0, 0xFFFFFFFF, 0x100000000 - _HARNESS)  # also all of its group, everybody


@dataclass(frozen=True)
class _Machine:
    """One architecture's numbers, those first whose arguments are looked at."""

    audit: int
    denied: dict[str, int]
    clone: int
    socket: int
    setsockopt: int
    ioctl: int
    prlimit: int
    setrlimit: int
    uncharged: tuple[int, ...]  # shmget, msgget, semget
    memfd_create: int
    kill: int
    tkill: int
    tgkill: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, _X86_64, 56, 41, 54, 16, 302, 160, (29, 68, 64), 319, 62, 200, 234),
    "aarch64": _Machine(0xC00000B7, _ARM64, 220, 198, 208, 29, 261, 164, (194, 186, 190), 279, 129, 130, 131),
}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _low(argument: int) -> int:
    """Where the low half of a system call's argument lies (the machines are little-endian)."""
    return 16 + 8 * argument


def _refuse(number: int, code: int, *tests: bytes) -> list[bytes]:
    """Answer ``code`` to a call if all tests on its arguments pass; a test is a load and a jump of no instruction if
    it does, to the end if not. The number is loaded again afterwards."""
    size = len(tests) * 2
    ops = [_op(_EQUAL, number, 0, size + 2)]
    for index, test in enumerate(tests):
        left = (len(tests) - index - 1) * 2 + 1  # to the reload
        load, jump = test[:8], test[8:]
        yes, no = jump[2], jump[3]
        ops += [load, jump[:2] + bytes([left if yes else 0, left if no else 0]) + jump[4:]]
    return [*ops, _op(_RETURN, _ERROR | code), _op(_LOAD, 0)]


def _is(argument: int, value: int) -> bytes:
    return _op(_LOAD, _low(argument)) + _op(_EQUAL, value, 0, 1)


def _is_not(argument: int, value: int) -> bytes:
    return _op(_LOAD, _low(argument)) + _op(_EQUAL, value, 1, 0)


def _has(argument: int, bits: int) -> bytes:
    return _op(_LOAD, _low(argument)) + _op(_ANY_BIT, bits, 0, 1)


def program(machine: str = "", backend: str = "cpu") -> bytes | None:
    """The filter's BPF program, or None where the architecture is not known."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    ops = [_op(_LOAD, 4), _op(_EQUAL, known.audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    ops += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]  # the x32 numbers
    for number in sorted({*known.denied.values(), *_COMMON}):
        ops += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ERROR | errno.EPERM)]
    # As a kernel without them would: clone3 hides its flags behind a pointer, and glibc falls back to clone. A GPU's
    # driver may need memory files.
    absent = (_CLONE3, *known.uncharged, *(() if backend == "cuda" else (known.memfd_create,)))
    for number in absent:
        ops += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    ops += _refuse(known.clone, errno.EPERM, _has(0, _NAMESPACES))
    ops += _refuse(known.socket, errno.EAFNOSUPPORT, *(_is_not(0, family) for family in _FAMILIES))
    for request in (_TIOCSTI, _TIOCLINUX):
        ops += _refuse(known.ioctl, errno.EPERM, _is(1, request))
    # Accepted and not done: whoever gets such a socket as a descriptor would wait for its peer when closing it.
    ops += _refuse(known.setsockopt, 0, _is(1, _SOL_SOCKET), _is(2, _SO_LINGER))
    for half in (0, 4):  # a new limit: the pointer is not null
        tests = (_is(1, _RLIMIT_CORE), _op(_LOAD, _low(2) + half) + _op(_EQUAL, 0, 1, 0))
        ops += _refuse(known.prlimit, errno.EPERM, *tests)
    ops += _refuse(known.setrlimit, errno.EPERM, _is(0, _RLIMIT_CORE))
    # A SIGKILL is then somebody else's: a candidate that is killed was killed by the machine.
    for target in _TO_HARNESS:
        ops += _refuse(known.kill, errno.EPERM, _is(1, _SIGKILL), _is(0, target))
    ops += _refuse(known.tkill, errno.EPERM, _is(1, _SIGKILL), _is(0, _HARNESS))
    ops += _refuse(known.tgkill, errno.EPERM, _is(2, _SIGKILL), _is(0, _HARNESS))
    return b"".join([*ops, _op(_RETURN, _ALLOW)])
