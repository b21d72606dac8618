"""One short real round trip with an LLM server: what it can do, seen and not believed (`specgen model check`).

A main generation is streamed and cut off, a fork continues its reasoning, and what came is looked at: is there
reasoning, does text arrive as it is made or all at once (a proxy that buffers), does the fork stay in its block, were
its prefix's tokens cached, how long does closing take, is usage told. Costs a few hundred tokens. Not here: HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from specgen.errors import ModelAccessError, ModelUnavailable
from specgen.llm.detection import connect
from specgen.llm.generation import Generation
from specgen.llm.openai_compatible import OpenAICompatible
from specgen.settings import ModelProfile
from specgen.types import Prompt, Usage

PROMPT = Prompt(
    "You write fast, correct kernels.",
    "Think step by step, at length, about how a CUDA kernel that adds two vectors should be tiled. Then write it as a "
    "Python file with `class ModelNew(nn.Module)` in one ```python block.",
)
CUT_CHARS = 1200  # of the main generation
MOST_TOKENS = 2048
FORK_TOKENS = 96
BURST_S = 0.02  # chunks closer together than that were held back by somebody
BUFFERED_SHARE = 0.9


@dataclass
class Seen:
    """One stream, as it arrived."""

    first_token_s: float = 0.0
    seconds: float = 0.0
    close_s: float = 0.0
    reasoning: str = ""
    content: str = ""
    finish: str = ""
    usage: Usage = field(default_factory=Usage)
    gaps_s: list[float] = field(default_factory=list)

    @property
    def buffered(self) -> bool:
        """It came in one go: as good as no time passed between its chunks, compared with the time before them."""
        if len(self.gaps_s) < 4:
            return False
        bursts = sum(gap < BURST_S for gap in self.gaps_s) / len(self.gaps_s)
        return bursts >= BUFFERED_SHARE and sum(self.gaps_s) < 0.1 * self.first_token_s


@dataclass(frozen=True)
class Line:
    """One finding. ``holds``: None where it is neither good nor bad."""

    what: str
    seen: str
    holds: bool | None = None


@dataclass(frozen=True)
class Report:
    """All findings, and whether jobs can speculate with this server."""

    lines: tuple[Line, ...]
    speculates: bool


async def check(profile: ModelProfile) -> Report:
    """Raises ModelAccessError or ModelUnavailable where there is nothing to talk to."""
    model = await connect(profile)
    try:
        return await _check(model)
    finally:
        await model.aclose()


async def _check(model: OpenAICompatible) -> Report:
    can = model.capabilities
    lines = [Line("server", f"{can.server or 'unknown'}, dialect {can.dialect}"), Line("model", can.model)]
    started = time.monotonic()
    async with model.main(PROMPT, seed=1, max_tokens=MOST_TOKENS) as stream:
        main = await _watch(stream, started, CUT_CHARS)
        closing = time.monotonic()
    main.close_s = time.monotonic() - closing
    lines += _main_lines(main)
    if not can.can_fork:
        return Report((*lines, Line("forks", f"none: {can.why_not}", False)), False)
    if not main.reasoning:
        return Report((*lines, Line("forks", "nothing to fork: no reasoning was seen", False)), False)
    try:
        fork = await _fork(model, main.reasoning)
    except (ModelAccessError, ModelUnavailable) as exc:
        return Report((*lines, Line("forks", f"refused: {exc.message}", False)), False)
    return Report((*lines, *_fork_lines(fork, main)), bool(fork.content.strip()))


async def _fork(model: OpenAICompatible, prefix: str) -> Seen:
    started = time.monotonic()
    async with model.fork(PROMPT, prefix, seed=2, max_tokens=FORK_TOKENS) as stream:
        return await _watch(stream, started, None)


async def _watch(stream: Generation, started: float, cut: int | None) -> Seen:
    seen, last = Seen(first_token_s=time.monotonic() - started), time.monotonic()
    async for delta in stream:
        now = time.monotonic()
        if seen.reasoning or seen.content:
            seen.gaps_s.append(now - last)
        last = now
        if delta.kind == "reasoning":
            seen.reasoning += delta.text
        else:
            seen.content += delta.text
        if cut is not None and len(seen.reasoning) + len(seen.content) >= cut:
            break
    seen.seconds, seen.usage, seen.finish = time.monotonic() - started, stream.usage, stream.finish_reason
    return seen


def _main_lines(main: Seen) -> list[Line]:
    chars, chunks = len(main.reasoning) + len(main.content), len(main.gaps_s) + 1
    after = max(main.seconds - main.first_token_s, 1e-9)
    shown = f"{len(main.reasoning)} characters" if main.reasoning else "none: hidden, or the model does not reason"
    flow = f"{chunks} chunks, {chars / after:.0f} characters/s"
    if main.buffered:
        flow = f"all at once after {main.first_token_s:.1f} s: something between here and the model buffers"
    return [
        Line("first token", f"{main.first_token_s:.2f} s"),
        Line("reasoning", shown, bool(main.reasoning)),
        Line("streaming", flow, not main.buffered),
        Line("cancel", f"closed in {main.close_s * 1e3:.0f} ms", main.close_s < 1.0),
    ]


def _fork_lines(fork: Seen, main: Seen) -> list[Line]:
    usage, wrote = fork.usage, bool(fork.content.strip())
    begins = " ".join(fork.content.split())[:60]
    lines = [
        Line("fork", f"begins {begins!r}" if wrote else "no text came", wrote),
        Line("usage", "reported" if usage.reported else "not reported: counted from what is received", usage.reported),
    ]
    if usage.reported:
        told = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens of the fork were cached"
        lines.append(Line("prefix cache", told, usage.cached_tokens > 0))
    if fork.reasoning:
        lines.append(Line("fork's reasoning", f"{len(fork.reasoning)} characters: it goes on thinking", False))
    paid = main.usage.prompt_tokens + main.usage.completion_tokens + usage.prompt_tokens + usage.completion_tokens
    return [*lines, Line("spent", f"{paid} tokens by this check")]
