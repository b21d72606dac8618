"""One trusted process per worker that has imported torch and run nothing: judges are forked from it in milliseconds.

It never sees a candidate; candidates are exec'd fresh, each with its own import of torch. It ends when its worker's
end of the socket closes. Not here: what a forked cell does (:mod:`specgen.evaluation.supervisor`).
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from pathlib import Path

from specgen.errors import SpecGenError
from specgen.evaluation import processes
from specgen.evaluation.supervisor import CellSpec, supervise
from specgen.evaluation.wire import Channel, Message, close_all


def _support(cache_root: str, mode: str) -> tuple[str, str]:
    """The façade's support library, built on first use; or why there is none."""
    if mode == "stock":
        return "", ""
    from specgen.evaluation.build import ensure_support

    try:
        return str(ensure_support(Path(cache_root))), ""
    except (SpecGenError, OSError) as exc:
        return "", f"the build support library cannot be made: {exc}"


def _prepare() -> None:
    """Import what a judge needs, with one thread and nothing run (a fork would lose threads)."""
    import torch

    torch.set_num_threads(1)
    import specgen.evaluation.judge  # noqa: F401 - forked judges find it imported

    gc.collect()
    gc.freeze()  # a judge's collection before its timed window would walk all of torch: 0.15 s


def _end(*_: object) -> None:
    """With the compilers that are making the build support; cells, in sessions of their own, end by themselves."""
    os.killpg(0, signal.SIGKILL)


def main(argv: list[str]) -> None:
    """Serve one worker: each message carries a cell's spec, its watch pipe and its judge's socket."""
    signal.signal(signal.SIGTERM, _end)
    processes.die_with_parent(signal.SIGTERM)
    # cpp_extension asks on import whether there is a GPU; asked of the CUDA runtime, no fork could use it any more
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    channel = Channel(socket.socket(fileno=int(argv[0])))
    support, error = _support(argv[1], argv[2])
    _prepare()
    from specgen.evaluation import alibi

    alibi.remember(support)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # cells are reaped by the kernel
    while True:
        try:
            message, fds = channel.receive()
        except EOFError:
            return
        if alibi.renew(support):  # removed or damaged under us: every cell from now on would fail
            support, error = _support(argv[1], argv[2])
            alibi.remember(support)
        _fork_cell(message, fds, channel, support, error)
        close_all(fds)


def _fork_cell(message: Message, fds: list[int], channel: Channel, support: str, error: str) -> None:
    if os.fork():
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        channel.sock.close()
        supervise(CellSpec.of(message), fds[0], socket.socket(fileno=fds[1]), support, error)
    finally:
        os._exit(70)


if __name__ == "__main__":
    main(sys.argv[1:])
