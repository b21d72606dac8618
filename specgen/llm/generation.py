"""One generation being received: the `Stream` of controller/ports over an SDK stream.

Not here: sending the request, retries (`openai_compatible`). What was received is counted, so that a cancelled stream,
which reports no usage, still has one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpx2
import openai
from openai import AsyncStream
from openai.types.chat import ChatCompletionChunk

from specgen.errors import ModelUnavailable
from specgen.llm.base import count_tokens, read_usage
from specgen.llm.failures import BrokenEarly
from specgen.llm.splitting import PrefillStripper, ThinkSplitter
from specgen.types import Delta, Usage

_FINISH: Final = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "stop",
    "length": "length",
    "max_tokens": "length",
}
"""What servers say -> what ports says. Anything else (a content filter, a server out of resources) is "broken"."""

_FAILURES: Final = (openai.OpenAIError, httpx2.HTTPError, ValueError)  # ValueError: an event that is not JSON


class Reader:
    """Turns the deltas of one stream into `Delta`s: reasoning fields, inline `<think>`, a repeated prefill."""

    def __init__(self, *, fork: bool, reasoning_is_content: bool = False) -> None:
        self._fork = fork
        self._merge = fork and reasoning_is_content
        self._strip = PrefillStripper()
        self._think: ThinkSplitter | None = None if fork else ThinkSplitter()

    def read(self, reasoning: str, content: str) -> list[Delta]:
        """The deltas of one chunk's two texts (either may be empty)."""
        out: list[Delta] = []
        if reasoning and self._merge:
            content, reasoning = reasoning + content, ""
        if reasoning:
            if self._think is not None:  # a server that separates reasoning: content is content
                out += self._think.finish()
                self._think = None
            out.append(Delta("reasoning", reasoning))
        if content:
            if self._fork:
                content = self._strip.feed(content)
            if self._think is not None:
                out += self._think.feed(content)
            elif content:
                out.append(Delta("content", content))
        return out

    def finish(self) -> list[Delta]:
        """The stream is over: what was held back."""
        if self._fork:
            rest = self._strip.finish()
            return [Delta("content", rest)] if rest else []
        return self._think.finish() if self._think is not None else []


class Generation:
    """The deltas of one generation, its usage, and how it ended. Iterate once; always close."""

    def __init__(
        self, chunks: AsyncStream[ChatCompletionChunk], reader: Reader, *, prompt_chars: int, token_timeout_s: float
    ) -> None:
        self._chunks = chunks
        self._reader = reader
        self._prompt_chars = prompt_chars
        self._token_timeout_s = token_timeout_s
        self._ready: deque[Delta] = deque()
        self._chars = {"reasoning": 0, "content": 0}
        self._reported: Usage | None = None
        self._reason = ""
        self._over = False

    @property
    def finish_reason(self) -> str:
        """``stop``, ``length``, ``cancelled``, ``broken``; empty while it runs."""
        return self._reason if self._over else ""

    @property
    def usage(self) -> Usage:
        """The server's figures, else a count of what was received (``reported`` says which). A server that does not
        tell reasoning from other tokens: divided by the characters received of each."""
        reasoning, content = self._chars["reasoning"], self._chars["content"]
        if self._reported is None:
            thought = count_tokens(reasoning)
            return Usage(
                prompt_tokens=count_tokens(self._prompt_chars),
                reasoning_tokens=thought,
                completion_tokens=thought + count_tokens(content),
            )
        known = self._reported
        if known.reasoning_tokens or not reasoning:
            return known
        share = round(known.completion_tokens * reasoning / (reasoning + content))
        return Usage(known.prompt_tokens, known.cached_tokens, share, known.completion_tokens, reported=True)

    async def begin(self) -> None:
        """Wait for the first text (or a regular end without any). Raises BrokenEarly, or the SDK's error."""
        while not self._ready and not self._over:
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                if not self._reason:
                    raise BrokenEarly("the stream ended before its first token") from None
                self._end()
            except openai.OpenAIError:
                raise
            except _FAILURES as exc:
                raise BrokenEarly(f"the stream broke before its first token ({type(exc).__name__})") from None
            else:
                self._take(chunk)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas. Raises ModelUnavailable when no chunk came for the time allowed between tokens; a stream that
        breaks just ends, with ``finish_reason`` ``broken``."""
        while True:
            while self._ready:
                yield self._ready.popleft()
            if self._over:
                return
            await self._receive()

    async def close(self) -> None:
        """Close it at the server. A generation that had not ended is ``cancelled``."""
        if not self._over:
            self._reason, self._over = self._reason or "cancelled", True
        with contextlib.suppress(openai.OpenAIError, httpx2.HTTPError):  # normal after one's own cancel
            await self._chunks.close()

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(self._token_timeout_s):
                chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._end()
        except TimeoutError:
            stalled = not self._reason
            self._end()
            if stalled:
                raise ModelUnavailable(f"the LLM sent nothing for {self._token_timeout_s:g} s") from None
        except _FAILURES:
            self._end()
        else:
            self._take(chunk)

    def _end(self) -> None:
        self._push(self._reader.finish())
        self._reason = self._reason or "broken"
        self._over = True

    def _push(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._chars[delta.kind] += len(delta.text)
            self._ready.append(delta)

    def _take(self, chunk: ChatCompletionChunk) -> None:
        extra = chunk.model_extra or {}
        usage: Mapping[str, Any] | None = chunk.usage.model_dump() if chunk.usage else None
        for choice in chunk.choices or ():
            delta = choice.delta
            if delta is not None:
                self._push(self._reader.read(_reasoning(delta.model_extra or {}), delta.content or ""))
            if choice.finish_reason:
                self._reason = _FINISH.get(choice.finish_reason, "broken")
            inner = (choice.model_extra or {}).get("usage")  # Moonshot's place for it
            usage = usage or (inner if isinstance(inner, Mapping) else None)
        if usage:
            self._reported = read_usage(usage, extra.get("timings"))


def _reasoning(extra: Mapping[str, Any]) -> str:
    for name in ("reasoning_content", "reasoning"):
        text = extra.get(name)
        if isinstance(text, str) and text:
            return text
    return ""
