"""What is measured on one server: cancels, forks, streams at once. Figures are printed as they are known."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2

import specgen.problems
from benchmarks.figures import figure
from benchmarks.llm.servers import Server
from specgen.llm import OpenAICompatible, connect
from specgen.llm.base import count_tokens
from specgen.llm.generation import Generation
from specgen.settings import ModelProfile
from specgen.types import Prompt, Usage

CANCEL_BAR_MS: Final = 100.0
LAG_BAR_S: Final = 0.5
BEGIN_S: Final = 60.0  # for all streams of a step to have begun
FORKS: Final = 4
_numbers = itertools.count(1)


def prompt(server: Server) -> Prompt:
    """One that the server has not read yet; a short one for llama.cpp, which reads slowly here."""
    system = f"You write kernels. Session {next(_numbers)} of {time.time_ns()}."
    if server.kind == "llamacpp":
        return Prompt(system, "Make the tiled matrix product of the device fast. " * 6)
    source = (Path(specgen.problems.__file__).parent / "cpu" / "T4.py").read_text()
    return Prompt(system, f"Replace this module with a faster one.\n\n```python\n{source}```\n")


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[OpenAICompatible]:
    """The client; generations do not end by themselves on the real servers."""
    extra = {} if server.kind == "specgen" else {"ignore_eos": True}
    model = await connect(ModelProfile(base_url=server.base_url, extra_body=extra))
    try:
        yield model
    finally:
        await model.aclose()


def longest(server: Server) -> int:
    """Tokens of a generation that is not to end."""
    return {"specgen": 30_000, "vllm": 12_000, "llamacpp": 1_500}[server.kind]


async def cancels(server: Server, count: int) -> None:
    """From leaving a stream until the server generates nothing: closed after some tokens, then watched."""
    waits, looks = [], []
    async with (
        connected(server) as model,
        httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as watcher,
    ):
        for _ in range(count):
            async with model.main(prompt(server), seed=1, max_tokens=longest(server)) as stream:
                received = 0
                async for _delta in stream:
                    received += 1
                    if received == 5:
                        break
                left = time.monotonic()
            while True:
                looked = time.monotonic()
                busy = await _busy(server, watcher)
                looks.append(time.monotonic() - looked)
                if not busy:
                    break
            waits.append(looked - left)
    waits.sort()
    for name, at in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        value = waits[math.ceil(len(waits) * at) - 1] * 1000
        bar = f"<= {CANCEL_BAR_MS:g}" if name != "p50" else "printed"
        holds = value <= CANCEL_BAR_MS if name != "p50" else None
        figure(f"{server.kind}: cancel to free {name} of {count}", value, "ms", bar, holds)
    look = sorted(looks)[len(looks) // 2] * 1000
    figure(f"{server.kind}: one look at the server", look, "ms", "printed", None)


async def _busy(server: Server, watcher: httpx2.AsyncClient) -> bool:
    if server.kind == "vllm":
        lines = (await watcher.get("/metrics")).text.splitlines()
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return any(float(line.rsplit(" ", 1)[1]) > 0 for line in lines if line.startswith(names))
    if server.kind == "llamacpp":
        return any(slot["is_processing"] for slot in (await watcher.get("/slots")).json())
    return int((await watcher.get("/stats")).json()["running"]) > 0


async def forks(server: Server, reasoning: int) -> None:
    """At three places of a reasoning that goes on, K forks at once: what share of P ⊕ π was cached."""
    usages: list[Usage] = []
    async with connected(server) as model:
        asked, prefix = prompt(server), ""
        async with model.main(asked, seed=1, max_tokens=longest(server)) as stream:
            for place in (1, 2, 3):
                async for delta in stream:
                    prefix += delta.text
                    if count_tokens(len(prefix)) >= place * reasoning:
                        break
                usages += await asyncio.gather(
                    *(_fork(model, asked, prefix, seed=place * 10 + k) for k in range(FORKS)),
                )
    share = sum(usage.cached_tokens for usage in usages) / sum(usage.prompt_tokens for usage in usages)
    where = f"{FORKS} forks at 3 places, {usages[0].prompt_tokens} to {usages[-1].prompt_tokens} tokens"
    figure(f"{server.kind}: prompt tokens of forks from the cache ({where})", share, "share", "printed", None)
    missed = max(usage.prompt_tokens - usage.cached_tokens for usage in usages)
    figure(f"{server.kind}: most tokens of a fork's prompt that were not", missed, "tokens", "printed", None)


async def _fork(model: OpenAICompatible, asked: Prompt, prefix: str, seed: int) -> Usage:
    async with model.fork(asked, prefix, seed=seed, max_tokens=24) as stream:
        async for _ in stream:
            pass
    return stream.usage


async def streams(server: Server, steps: Sequence[int], seconds: float, rate: float | None) -> None:
    """The most streams at once of which the client takes every token in time.

    On a server of a known ``rate`` (tokens/s a stream) by that rate, else by the server's own count of tokens: what the
    client has not received yet, in seconds of the whole's rate.
    """
    held = 0
    for count in steps:
        lag, speed = await _lag(server, count, seconds, rate)
        print(
            f"# {server.kind}: {count} streams, {speed:.0f} tokens/s together, client behind by {lag:.3f} s", flush=True
        )
        if lag > LAG_BAR_S:
            break
        held = count
        figure(f"{server.kind}: lag at {count} streams", lag, "s", f"<= {LAG_BAR_S:g}", lag <= LAG_BAR_S)
    figure(f"{server.kind}: streams held at once without falling behind", held, "streams", "printed", None)


async def _lag(server: Server, count: int, seconds: float, rate: float | None) -> tuple[float, float]:
    """(how far the client is behind at worst, in seconds; tokens/s of all streams together)."""
    async with connected(server) as model, httpx2.AsyncClient(base_url=server.url, trust_env=False) as watcher:
        asked = prompt(server)
        live: list[Generation] = []
        begun = asyncio.Event()

        async def take(seed: int) -> None:
            async with model.main(asked, seed=seed, max_tokens=longest(server)) as stream:
                live.append(stream)
                if len(live) == count:
                    begun.set()
                async for _ in stream:
                    pass

        tasks = [asyncio.create_task(take(seed)) for seed in range(1, count + 1)]
        try:
            try:
                await asyncio.wait_for(begun.wait(), BEGIN_S)
            except TimeoutError:
                return math.inf, 0.0
            try:
                return await _watched(server, watcher, live, seconds, rate)
            except httpx2.TransportError as exc:  # so busy that it does not tell how far it is
                print(f"# {server.kind}: {count} streams, and it does not answer: {exc!r}", flush=True)
                return math.inf, 0.0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _watched(
    server: Server, watcher: httpx2.AsyncClient, live: list[Generation], seconds: float, rate: float | None
) -> tuple[float, float]:
    def received() -> int:
        return sum(stream.usage.completion_tokens for stream in live)

    async def made() -> float:
        if rate is not None:
            return (time.monotonic() - start) * rate * len(live)
        return await _generated(server, watcher)

    start, worst = time.monotonic(), 0.0
    first_made, first_received = await made(), received()
    passed = 0.0
    while passed < seconds:
        await asyncio.sleep(0.25)
        passed = time.monotonic() - start
        behind = (await made() - first_made) - (received() - first_received)
        speed = max(1.0, (received() - first_received) / passed)
        worst = max(worst, behind / speed) if passed > 1 else 0.0
    return worst, (received() - first_received) / (time.monotonic() - start)


async def _generated(server: Server, watcher: httpx2.AsyncClient) -> float:
    """Tokens that the server has generated for the streams that run (vLLM: for all)."""
    if server.kind == "vllm":
        lines = (await watcher.get("/metrics")).text.splitlines()
        name = "vllm:generation_tokens_total{"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
    slots = (await watcher.get("/slots")).json()
    return float(sum(token["n_decoded"] for slot in slots if slot["is_processing"] for token in slot["next_token"]))
