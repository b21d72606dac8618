"""What runs in a tool's sandbox: ``launch`` starts the tool, and that starts ``main``, which runs the candidate.

``launch`` gives up root before it starts the tool, keeps the judge's descriptors (ncu hands none on) and gives them to
``main`` through a socket. ``main`` loads the candidate from the build products it was packed with, runs its forward
to warm up, and once more between cudaProfilerStart and -Stop. Neither decides anything: that is
:mod:`specgen.evaluation.tools` and its callers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from specgen.evaluation.candidate import Failure, Harness, restrict
from specgen.evaluation.wire import Channel, Message

SAYS = "profiled:"  # how lines begin that tell the judge why there is nothing to count
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from specgen.evaluation import profiled; profiled.{}(*sys.argv[2:])"
)


def python(function: str, *words: str) -> list[str]:
    """The command that runs a function of this module, isolated from user site-packages."""
    return [sys.executable, "-I", "-c", _START.format(function), str(Path(__file__).resolve().parents[2]), *words]


def launch(config_text: str) -> NoReturn:
    """Limits first, then the tool as a child; exits as it does."""
    config: Message = json.loads(config_text)
    restrict(config)
    address = f"{config['tmp']}/specgen-profiled"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen(1)
        tool = subprocess.Popen(
            [*config["tool"], *python("main", address)], stdin=subprocess.DEVNULL,
            env={**os.environ, **config["environment"]},
        )  # fmt: skip
        while tool.poll() is None and not select.select([server], [], [], 0.2)[0]:
            pass
        if tool.poll() is None:
            taken, _ = server.accept()
            with contextlib.suppress(OSError):  # gone already: its exit says so
                Channel(taken).send(config["job"], config["fds"])
    os._exit(tool.wait() & 0xFF)


def main(address: str) -> None:
    """Under the tool: receive the job, then run it. What the candidate prints goes to stderr: stdout is the tool's."""
    os.dup2(2, 1)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(address)
    channel = Channel(sock)
    job, fds = channel.receive(60.0)
    try:
        _profile(job, fds, channel)
    except Failure as failure:
        lines = failure.text.strip().splitlines() or [""]
        sys.exit(f"\n{SAYS} {failure.status}: {lines[-1]}")
    except Exception as exc:
        sys.exit(f"\n{SAYS} {type(exc).__name__}: {' '.join(str(exc).split())}")


def _profile(job: Message, fds: list[int], channel: Channel) -> None:
    import torch

    profiler: Any = torch.cuda.profiler
    torch.set_num_threads(1)
    source, init, inputs, *build = fds
    harness = Harness(job["harness"], channel)
    harness.load(job["load"], [source, *build])
    harness.construct(job["construct"], [init])
    harness.inputs(job["inputs"] | {"slot": 1}, [inputs])
    given = _own_copy(harness.slots.pop(1), job["harness"]["backend"])
    with torch.no_grad():
        for _ in range(int(job["warmups"])):
            harness.model(*given)
        harness.watch.finish()
        if harness.on_gpu:
            profiler.start()
        harness.model(*given)
        harness.watch.finish()
        if harness.on_gpu:
            profiler.stop()


def _own_copy(value: Any, device: str) -> Any:
    """Inputs in memory of this process: ncu saves and restores what kernels write, which shared memory may refuse."""
    from specgen.evaluation.tensors import mapped

    return mapped(value, lambda leaf: leaf.to(device, copy=True))
