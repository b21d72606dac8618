"""The LLM client on real servers: how soon a closed stream is over, what forks find cached, how many streams it holds.

    python -m benchmarks.llm [--servers specgen,llamacpp,vllm] [--cancels 40] [--seconds 6]

Each server is started here (`scripts/llm-servers` installs the real ones; one that is not installed is skipped). Server
and client share this machine: a server's speed here says nothing of it elsewhere; what is measured is the client.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from benchmarks.figures import machine
from benchmarks.llm import measures, servers
from benchmarks.llm.servers import Server

RATE: Final = 33.5  # tokens/s of one stream of the project's own server: GLM-5.1's (docs/model-server.md)
STARTS: Final[dict[str, Callable[[], AbstractContextManager[Server]]]] = {
    "specgen": lambda: servers.own(tokens_per_s=RATE),
    "llamacpp": lambda: servers.llamacpp(slots=8, context=2048),
    "vllm": servers.vllm,
}
STREAMS: Final = {"specgen": (10, 25, 50, 100, 200), "llamacpp": (2, 4, 8), "vllm": (4, 8, 16, 32, 64)}


async def measure(server: Server, options: argparse.Namespace) -> None:
    """All figures of one server."""
    await measures.cancels(server, options.cancels)
    await measures.forks(server, reasoning=200 if server.kind != "llamacpp" else 60)
    rate = RATE if server.kind == "specgen" else None
    await measures.streams(server, STREAMS[server.kind], options.seconds, rate)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm", description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", default=",".join(STARTS))
    parser.add_argument("--cancels", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each step of the streams held at once")
    options = parser.parse_args()
    wanted = options.servers.split(",")
    if unknown := set(wanted) - set(STARTS):
        parser.error(f"no such server: {', '.join(sorted(unknown))}; there are {', '.join(STARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are stopped then too
    print(f"# {machine()}, load {os.getloadavg()[0]:.1f}", flush=True)
    for name in wanted:
        if name != "specgen" and servers.installed(name) is None:
            print(f"# {name} is not installed, skipped: {servers.how_to(name)}", flush=True)
            continue
        with STARTS[name]() as server:
            print(f"# {name}: {server.what}", flush=True)
            asyncio.run(measure(server, options))


if __name__ == "__main__":
    main()
