"""Playing an answer at a token rate, as server-sent events or as one JSON body, until the client goes away.

One asyncio loop carries all streams, and they wake together, at multiples of the chunk's length: one turn of the loop
sends what is due in all of them, as a real server's decoding step does. A stream keeps to the time at which its request
came, so that a busy loop makes chunks larger, never the stream slower. Each choice is one *stream* in the ledger's
words; closing the connection cancels it at its next suspension point.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from specgen.llm.server_books import Ledger, SequenceWriter
from specgen.llm.server_types import CHARS_PER_TOKEN, Chat, Piece, count_tokens

Emit = Callable[[str, str], Awaitable[None]]  # (kind, text)


@dataclass(frozen=True)
class Pace:
    """Rates at speed 1, and the ``speed`` that divides all times. ``chunk_s`` is wall time."""

    tokens_per_s: float
    prefill_tokens_per_s: float
    speed: float
    chunk_s: float

    def seconds(self, piece: Piece) -> float:
        """Wall time that a piece takes."""
        own = count_tokens(piece.text) / self.tokens_per_s if piece.seconds is None else piece.seconds
        return own / self.speed

    def prefill_s(self, tokens: int) -> float:
        """Wall time to read ``tokens`` that no cache holds."""
        return tokens / self.prefill_tokens_per_s / self.speed


def limit(pieces: Sequence[Piece], max_tokens: int | None, stops: Sequence[str]) -> tuple[list[Piece], str]:
    """Cut an answer at the first stop sequence in its content and at ``max_tokens``; with the finish reason."""
    content = "".join(piece.text for piece in pieces if piece.kind == "content")
    places = [place for place in (content.find(stop) for stop in stops) if place >= 0]
    content_left = min(places, default=len(content))
    tokens_left = float("inf") if max_tokens is None else max_tokens
    kept: list[Piece] = []
    for piece in pieces:
        text = piece.text
        if piece.kind == "content":
            text = text[:content_left]
            content_left -= len(text)
        if count_tokens(text) > tokens_left:
            cut = text[: int(tokens_left) * CHARS_PER_TOKEN]
            return [*kept, Piece(piece.kind, cut, piece.seconds)], "length"
        tokens_left -= count_tokens(text)
        kept.append(Piece(piece.kind, text, piece.seconds))
        if piece.cut:
            return kept, "length"
    return kept, "stop"


async def play(pieces: Sequence[Piece], pace: Pace, emit: Emit, start: float) -> None:
    """Emit the pieces in chunks of whole tokens, each when it is due; a recorded one whole, when it had arrived.
    ``start``: the time of the loop's clock at which the first token is begun; it may have passed."""
    clock = asyncio.get_running_loop().time
    for piece in pieces:
        total, duration, sent = count_tokens(piece.text), pace.seconds(piece), 0
        if piece.seconds is not None:
            start += duration
            await asyncio.sleep(max(start - clock(), 0))
            if piece.text:
                await emit(piece.kind, piece.text)
            continue
        while sent < total:
            due = _tick(max(start + duration * (sent + 1) / total, clock()), pace.chunk_s)
            await asyncio.sleep(max(min(due, start + duration) - clock(), 0))
            done = (clock() - start) / duration if duration > 0 else 1.0
            ready = min(total, max(sent + 1, int(total * done)))
            await emit(piece.kind, piece.text[sent * CHARS_PER_TOKEN : ready * CHARS_PER_TOKEN])
            sent = ready
        start += duration


def _tick(due: float, chunk_s: float) -> float:
    """When the chunk is sent that holds the token due then: at the next multiple of the chunk's length."""
    return math.ceil(due / chunk_s) * chunk_s if chunk_s > 0 else due


@dataclass
class Choice:
    """One stream: what it will say, and what it has said so far (``tokens`` by kind)."""

    index: int
    chat: Chat
    pieces: list[Piece]
    finish_reason: str
    writer: SequenceWriter | None = None  # a reasoning stream's own sequence in the prefix cache
    tokens: dict[str, int] = field(default_factory=lambda: {"reasoning": 0, "content": 0})


@dataclass
class Exchange:
    """One request being answered."""

    model: str
    choices: list[Choice]
    prompt_tokens: int
    cached_tokens: int
    pace: Pace
    ledger: Ledger
    arrived: float  # of the loop's clock: when the request was read
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object, summed over the choices, with DeepSeek's cache fields beside it."""
        reasoning = sum(choice.tokens["reasoning"] for choice in self.choices)
        completion = reasoning + sum(choice.tokens["content"] for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "prompt_cache_hit_tokens": self.cached_tokens,
            "prompt_cache_miss_tokens": self.prompt_tokens - self.cached_tokens,
        }

    async def run(self, choice: Choice, emit: Emit) -> None:
        """Play one choice and keep the books, also when it is cancelled."""
        self.ledger.started(fork=choice.chat.fork)
        finished = False

        async def counted(kind: str, text: str) -> None:
            tokens = count_tokens(text)
            choice.tokens[kind] += tokens
            self.ledger.tokens.completion += tokens
            if kind == "reasoning":
                self.ledger.tokens.reasoning += tokens
                if choice.writer is not None:
                    choice.writer.add(text)
            await emit(kind, text)

        try:
            start = self.arrived + self.pace.prefill_s(self.prompt_tokens - self.cached_tokens)
            await asyncio.sleep(max(start - asyncio.get_running_loop().time(), 0))
            await play(choice.pieces, self.pace, counted, start)
            finished = True
        finally:
            self.ledger.running -= 1
            self.ledger.finished += finished
            self.ledger.cancelled += not finished

    async def run_all(self, emit: Callable[[Choice, str, str], Awaitable[None]]) -> None:
        """All choices at once."""

        def to(choice: Choice) -> Emit:
            return lambda kind, text: emit(choice, kind, text)

        async with asyncio.TaskGroup() as group:
            for choice in self.choices:
                group.create_task(self.run(choice, to(choice)))


_FIELD = {"reasoning": "reasoning_content", "content": "content"}


class CompletionResponse(Response):
    """Answers one exchange; generation stops as soon as the client disconnects."""

    def __init__(self, exchange: Exchange, *, stream: bool, include_usage: bool) -> None:
        super().__init__()
        self._exchange = exchange
        self._stream = stream
        self._include_usage = include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Race the work against the client's going away."""
        work = asyncio.ensure_future(self._events(send) if self._stream else self._body(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled = not work.done()
            work.cancel()
            gone.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        if not cancelled and isinstance(results[0], BaseException):
            raise results[0]

    async def _body(self, scope: Scope, receive: Receive, send: Send) -> None:
        said: dict[int, dict[str, list[str]]] = {
            c.index: {"reasoning": [], "content": []} for c in self._exchange.choices
        }

        async def collect(choice: Choice, kind: str, text: str) -> None:
            said[choice.index][kind].append(text)

        await self._exchange.run_all(collect)
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant"}
                | {
                    _FIELD[kind]: "".join(parts)
                    for kind, parts in said[choice.index].items()
                    if parts or kind == "content"
                },
                "finish_reason": choice.finish_reason,
                "logprobs": None,
            }
            for choice in self._exchange.choices
        ]
        body = self._head("chat.completion") | {"choices": choices, "usage": self._exchange.usage()}
        await JSONResponse(body)(scope, receive, send)

    async def _events(self, send: Send) -> None:
        lock = asyncio.Lock()  # choices share one connection
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        head = json.dumps(self._head("chat.completion.chunk")).removesuffix("}")

        async def event(data: str, *, more: bool = True) -> None:
            async with lock:
                await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": more})

        async def chunk(index: int, delta: str, finish: str = "null") -> None:
            """The SDK's fields in text: all but the delta is the same for every chunk."""
            choice = f'{{"index": {index}, "delta": {{{delta}}}, "finish_reason": {finish}, "logprobs": null}}'
            await event(f'{head}, "choices": [{choice}]}}')

        async def said(choice: Choice, kind: str, text: str) -> None:
            await chunk(choice.index, f'"{_FIELD[kind]}": {json.dumps(text)}')

        for choice in self._exchange.choices:
            await chunk(choice.index, '"role": "assistant", "content": ""')
        await self._exchange.run_all(said)
        for choice in self._exchange.choices:
            await chunk(choice.index, "", json.dumps(choice.finish_reason))
        if self._include_usage:
            await event(f'{head}, "choices": [], "usage": {json.dumps(self._exchange.usage())}}}')
        await event("[DONE]", more=False)

    def _head(self, kind: str) -> dict[str, Any]:
        exchange = self._exchange
        return {"id": exchange.id, "object": kind, "created": exchange.created, "model": exchange.model}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
