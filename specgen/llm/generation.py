"""One generation being received: the `Stream` of controller/ports over an SDK stream.

Not here: sending the request, retries (`openai_compatible`). What was received is counted, so that a cancelled stream,
which reports no usage, still has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

import httpx2
import openai
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from specgen.errors import ModelUnavailable
from specgen.llm.base import believable, count_tokens, read_usage
from specgen.llm.failures import BrokenEarly
from specgen.llm.reading import Reader
from specgen.llm.sharing import Chunks
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

_FAILURES: Final = (openai.OpenAIError, httpx2.HTTPError, ValueError)  # ValueError: an event that cannot be read

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON can carry and no encoder takes: a fork's prompt, a file."""


class Generation:
    """The deltas of one generation, its usage, and how it ended. Iterate once; always close."""

    def __init__(
        self,
        chunks: Chunks,
        reader: Reader,
        *,
        prompt_chars: int,
        prompt_tokens: int = 0,
        token_timeout_s: float,
        max_tokens: int = 0,
    ) -> None:
        self._chunks = chunks
        self._reader = reader
        self._prompt_tokens = prompt_tokens or count_tokens(prompt_chars)
        self._token_timeout_s = token_timeout_s
        self._max_tokens = max_tokens
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
        """The server's figures as far as they can be true, else a count of what was received (``reported`` says which).
        A server that does not tell reasoning from other tokens: divided by the characters received of each."""
        reasoning, content = self._chars["reasoning"], self._chars["content"]
        thought = count_tokens(reasoning)
        counted = Usage(
            prompt_tokens=self._prompt_tokens,
            reasoning_tokens=thought,
            completion_tokens=thought + count_tokens(content),
        )
        if self._reported is None:
            return counted
        known = believable(self._reported, counted, self._max_tokens)
        if not self._reader.reasons:
            return replace(known, reasoning_tokens=0)
        if self._reader.thought is not None:
            return replace(known, reasoning_tokens=min(self._reader.thought, known.completion_tokens))
        if known.reasoning_tokens or not reasoning:
            return known
        return replace(known, reasoning_tokens=round(known.completion_tokens * reasoning / (reasoning + content)))

    async def begin(self) -> None:
        """Wait for the first text (or a regular end without any). Raises BrokenEarly, or the SDK's error."""
        while not self._ready and not self._over:
            try:
                self._take(await self._chunks.__anext__())
            except StopAsyncIteration:
                if not self._reason:
                    raise BrokenEarly("the stream ended before its first token") from None
                self._end()
            except openai.OpenAIError:
                raise
            except _FAILURES as exc:
                raise BrokenEarly(f"the stream broke before its first token ({type(exc).__name__})") from None

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
                chunk = await self._chunks.__anext__()
            self._take(chunk)
        except StopAsyncIteration:
            self._end()
        except TimeoutError:
            stalled = not self._reason
            self._end()
            if stalled:
                raise ModelUnavailable(f"the LLM sent nothing for {self._token_timeout_s:g} s") from None
        except _FAILURES:
            self._end()

    def _end(self) -> None:
        self._push(self._reader.finish())
        self._reason = self._reason or "broken"
        self._over = True

    def _push(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if _SURROGATE.search(delta.text):
                delta = replace(delta, text=_SURROGATE.sub("\ufffd", delta.text))
            self._chars[delta.kind] += len(delta.text)
            self._ready.append(delta)

    def _take(self, chunk: ChatCompletionChunk | Completion) -> None:
        """Raises ValueError for JSON of another shape: the SDK checks none."""
        try:
            self._read(chunk)
        except (AttributeError, TypeError, LookupError) as exc:
            raise ValueError(f"an event that cannot be read: {type(exc).__name__}") from exc

    def _read(self, chunk: ChatCompletionChunk | Completion) -> None:
        extra = chunk.model_extra or {}
        usage: Mapping[str, Any] | None = chunk.usage.model_dump(warnings=False) if chunk.usage else None
        for choice in chunk.choices or ():
            self._push(self._reader.take(choice, extra))
            if choice.finish_reason:
                self._reason = _FINISH.get(choice.finish_reason, "broken")
            inner = (choice.model_extra or {}).get("usage")  # Moonshot's place for it
            usage = usage or (inner if isinstance(inner, Mapping) else None)
        timings = extra.get("timings")
        if usage or timings:
            told, before = read_usage(usage or {}, timings), self._reported or Usage()
            self._reported = replace(told, cached_tokens=max(told.cached_tokens, before.cached_tokens))
