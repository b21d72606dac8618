"""Token ids: P as a server's chat template renders it, text to ids, and the ids of a reasoning that is being received.

For servers that take a prompt as ids (vLLM, llama.cpp): a fork on the very ids that the main generation was given and
gave is in the KV cache whatever the chat template does with reasoning, and however its text would be tokenised again.
Not here: requests of generations (`raw`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any, Final

import httpx2
from openai import AsyncOpenAI

THINK: Final = "<think>"


class Tokens:
    """A server's tokenizer and chat template, over HTTP. ``kind``: ``vllm`` or ``llamacpp``.

    Raises the SDK's errors; ValueError where the answer is not what these servers give.
    """

    def __init__(self, client: AsyncOpenAI, kind: str, model: str) -> None:
        root = str(client.base_url).rstrip("/").removesuffix("/v1")
        self._client = client.with_options(base_url=root)
        self._kind = kind
        self._model = model

    async def rendered(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The text of a chat as the template makes it; ``options`` as in a chat request."""
        if self._kind == "llamacpp":
            return _text(await self._post("/apply-template", messages=list(messages), **options), "prompt")
        return await self.decoded(await self._chat(messages, **options))

    async def prompt(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
        """Ids of a chat whose answer is to be generated."""
        if self._kind == "llamacpp":
            text = await self.rendered(messages, **options)
            answer = await self._post("/tokenize", content=text, add_special=True, parse_special=True)
            return _ids(answer)
        return await self._chat(messages, **options)

    async def encoded(self, text: str) -> list[int]:
        """Ids of a piece of text that stands in the middle."""
        if not text:
            return []
        if self._kind == "llamacpp":
            answer = await self._post("/tokenize", content=text, add_special=False, parse_special=True)
        else:
            answer = await self._post("/tokenize", prompt=text, add_special_tokens=False)
        return _ids(answer)

    async def decoded(self, ids: Sequence[int]) -> str:
        """The text of ids, markers included."""
        key = "content" if self._kind == "llamacpp" else "prompt"
        return _text(await self._post("/detokenize", tokens=list(ids)), key)

    async def _chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
        return _ids(await self._post("/tokenize", messages=list(messages), **options))

    async def _post(self, path: str, **body: Any) -> Any:
        response = await self._client.post(path, cast_to=httpx2.Response, body={"model": self._model, **body})
        return response.json()


def _text(answer: Any, key: str) -> str:
    value = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(value, str):
        raise ValueError(f"no {key!r} in the answer")
    return value


def _ids(answer: Any) -> list[int]:
    value = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(value, list):
        raise ValueError("no 'tokens' in the answer")
    return value


class Trace:
    """What a main generation was given and gave: ids of P, ids and text of the reasoning.

    A *part* is a run of ids, or a piece of text whose ids the server did not all tell. A *mark* says how many parts
    make how many characters; where a chunk of several ids may end inside a character, it is checked before it is used.
    """

    def __init__(self, prompt_ids: list[int], *, opened: bool) -> None:
        self.prompt_ids = prompt_ids
        self.opened = opened  # P ends inside an opened <think>
        self._parts: list[list[int] | str] = []
        self._text: list[str] = []
        self._sure: list[tuple[int, int]] = [(0, 0)]
        self._maybe: list[tuple[int, int]] = []
        self._chars = 0

    @property
    def text(self) -> str:
        """The reasoning so far."""
        if len(self._text) > 1:
            self._text = ["".join(self._text)]
        return self._text[0] if self._text else ""

    def add(self, part: list[int] | str, reasoning: str, *, whole: bool, certain: bool) -> None:
        """A chunk: its ids (or its text, where ids are missing), and the reasoning that became sure with it.
        ``whole``: no text is held back on this side; ``certain``: nor can it be at the server."""
        self._parts.append(part)
        if reasoning:
            self._text.append(reasoning)
            self._chars += len(reasoning)
        if whole:
            (self._sure if certain else self._maybe).append((self._chars, len(self._parts)))

    async def ids(self, prefix: str, tokens: Tokens) -> tuple[list[int], str]:
        """Ids of the reasoning up to ``prefix``'s end, and the rest of ``prefix`` that no mark covers (or that is
        another text). Texts that came without ids are tokenised once."""
        shared = _common(self.text, prefix)
        chars, count = self._last(self._sure, shared)
        out = await self._run(0, count, tokens)
        further, more = self._last(self._maybe, shared)
        if further > chars:
            run = await self._run(count, more, tokens)
            if await tokens.decoded(run) == prefix[chars:further]:
                chars, out = further, out + run
                insort(self._sure, (further, more))
        return out, prefix[chars:]

    def _last(self, marks: list[tuple[int, int]], chars: int) -> tuple[int, int]:
        """The last mark at or before ``chars``."""
        at = bisect_right(marks, (chars, len(self._parts)))
        return marks[at - 1] if at else (0, 0)

    async def _run(self, start: int, end: int, tokens: Tokens) -> list[int]:
        """Ids of some parts."""
        out: list[int] = []
        for at in range(start, end):
            part = self._parts[at]
            if isinstance(part, str):
                part = self._parts[at] = await tokens.encoded(part)
            out += part
        return out


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    if one.startswith(other):
        return len(other)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
