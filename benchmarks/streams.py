"""Many streams at once from the project's own model server: does it keep the token rate, and what does it cost?

    python -m benchmarks.streams [--streams 200,400] [--rate 100] [--chunk-ms 100] [--seconds 20]

The server is a process of its own; the clients are another (this one), over real HTTP, started within two seconds.
A stream's ideal is its request's start, the reading of its prompt, then ``rate`` tokens a second. *Lag* is how much
longer than the ideal a whole stream took; *lateness* is how far behind the ideal the last token of each chunk arrived.
On a machine that others use too both hold what the processes waited for a core, which is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import specgen.problems
from benchmarks.figures import figure, machine
from specgen.llm.base import count_tokens
from specgen.llm.server import ServerConfig
from specgen.llm.synthetic import MODEL_ID

RAMP_S = 2.0
MOST_LAG = 0.02
PROBLEM = Path(specgen.problems.__file__).parent / "cpu" / "T4.py"


@dataclass
class Received:
    """One stream. Times in seconds of the monotonic clock."""

    sent: float
    done: float = 0.0
    prompt_tokens: int = 0
    chunks: list[tuple[float, int]] = field(default_factory=list)  # (arrived, tokens so far)


async def stream(url: str, tokens: int, seed: int) -> Received:
    """One request over a connection of its own, read with as little work as can be."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    body = json.dumps(
        {
            "model": MODEL_ID,
            "messages": [{"role": "user", "content": f"Make it faster.\n```python\n{PROBLEM.read_text()}```\n{seed}"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
            "seed": seed,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    got = Received(time.monotonic())
    writer.write(head.encode() + body)
    so_far = 0
    with suppress(ConnectionError):
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                if line.startswith(b"data: [DONE]"):
                    break
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                got.prompt_tokens = event["usage"]["prompt_tokens"]
            for choice in event["choices"]:
                if text := choice["delta"].get("reasoning_content") or choice["delta"].get("content"):
                    so_far += count_tokens(len(text))
                    got.chunks.append((time.monotonic(), so_far))
                if choice["finish_reason"]:
                    got.done = time.monotonic()
    writer.close()
    if not got.done or so_far != tokens:
        raise RuntimeError(f"a stream broke after {so_far} of {tokens} tokens")
    return got


async def all_streams(url: str, count: int, tokens: int) -> list[Received]:
    """``count`` of them, started evenly over the ramp."""

    async def later(index: int) -> Received:
        await asyncio.sleep(RAMP_S * index / count)
        return await stream(url, tokens, index)

    return await asyncio.gather(*(later(index) for index in range(count)))


def _used_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _waited_s(pid: int) -> float:
    """How long a process was ready to run and had no core (the kernel's schedstat, all its threads)."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def measured(count: int, rate: float, chunk_ms: float, seconds: float) -> None:
    """One server, ``count`` streams: its figures."""
    tokens = round(rate * seconds)
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder) / "address"
        command = [sys.executable, "-m", "specgen.llm.server", "--port-file", str(address), "--tokens-per-s", str(rate)]
        command += ["--chunk-ms", str(chunk_ms), "--trace-tokens", str(3.5 * tokens)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not address.exists():
                if server.poll() is not None:
                    raise RuntimeError("the server did not start")
                time.sleep(0.02)
            before, waited, start = _used_s(server.pid), _waited_s(server.pid), time.monotonic()
            got = asyncio.run(all_streams(address.read_text().strip(), count, tokens))
            spent, wall = _used_s(server.pid) - before, time.monotonic() - start
            waited = _waited_s(server.pid) - waited
        finally:
            server.terminate()
            server.wait()
    prefill = 1 / ServerConfig.prefill_tokens_per_s
    lags, late, sizes = [], [], []
    for one in got:
        begin = one.sent + one.prompt_tokens * prefill
        lags.append((one.done - begin) / (tokens / rate) - 1)
        late += [1000 * (arrived - begin - so_far / rate) for arrived, so_far in one.chunks]
        sizes += [b - a for (_, a), (_, b) in zip([(0.0, 0), *one.chunks], one.chunks, strict=False)]
    lags.sort()
    late.sort()
    name, held = f"{count}_streams_{chunk_ms:g}_ms", lags[-1] <= MOST_LAG
    figure(f"{name}_slowest_lag", 100 * lags[-1], "%", f"<= {100 * MOST_LAG:g} (200 streams)", held)
    figure(f"{name}_rate_share", 100 * statistics.fmean(1 / (1 + lag) for lag in lags), "%", "", None)
    for share in (0.5, 0.99):
        figure(f"{name}_lateness_p{100 * share:g}", late[int(share * (len(late) - 1))], "ms", "", None)
    figure(f"{name}_tokens_a_chunk", statistics.fmean(sizes), "tokens", "", None)
    figure(f"{name}_server_waited", 100 * waited / wall, "% of the time", "", None)
    figure(f"{name}_server_cpu", 100 * spent / wall, "% of a core", "", None)
    figure(f"{name}_server_cpu_a_stream", 1000 * spent / (count * tokens / rate), "ms a second of stream", "", None)


def main() -> None:
    """Every number of streams with every chunk length, one server each."""
    parser = argparse.ArgumentParser(prog="benchmarks.streams", description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", default="200,400")
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second of each stream")
    parser.add_argument("--chunk-ms", default="100")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a stream ideally takes")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{machine()}; {options.rate:g} tokens/s a stream, {options.seconds:g} s each; load before: {load:.1f}")
    for chunk_ms in map(float, options.chunk_ms.split(",")):
        for count in map(int, options.streams.split(",")):
            measured(count, options.rate, chunk_ms, options.seconds)


if __name__ == "__main__":
    main()
