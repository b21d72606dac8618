"""Chunks of a stream into `Delta`s: where each kind of server puts reasoning, and what it repeats of a fork's prompt.

A reader belongs to one stream. Not here: receiving chunks (`generation`), the text rules (`splitting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from specgen.llm.dialects import ForkReasoning
from specgen.llm.splitting import PrefillStripper, ThinkSplitter
from specgen.llm.tokens import Trace
from specgen.types import Delta


class Reader(Protocol):
    """Reads one stream."""

    reasons: bool  # it may give reasoning; where not, a server that files tokens under reasoning is mistaken
    thought: int | None  # tokens of the reasoning, where it has counted them

    def take(self, choice: Any, extra: Mapping[str, Any]) -> list[Delta]:
        """The deltas of one choice of a chunk; ``extra``: the chunk's fields that the SDK does not know."""

    def finish(self) -> list[Delta]:
        """The stream is over: what was held back."""


class MainReader:
    """A chat's reasoning generation: `reasoning_content`, `reasoning`, or `<think>` at the beginning of the content.

    ``opened``: the chat template has opened the block; where the server splits nothing, content begins inside it.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.reasons = True
        self.thought: int | None = None
        self._think: ThinkSplitter | None = ThinkSplitter(thinking=opened)

    def take(self, choice: Any, extra: Mapping[str, Any]) -> list[Delta]:  # noqa: ARG002
        """One chunk."""
        reasoning, content = _texts(choice.delta)
        out: list[Delta] = []
        if reasoning:
            out += self.finish()  # a server that separates reasoning: content is content
            self._think = None
            out.append(Delta("reasoning", reasoning))
        if content:
            out += self._think.feed(content) if self._think is not None else [Delta("content", content)]
        return out

    def finish(self) -> list[Delta]:
        """What was held back."""
        return self._think.finish() if self._think is not None else []


class ForkReader:
    """A fork, whose content goes on in an opened block; a repeated opening fence is dropped."""

    def __init__(self, reasoning: ForkReasoning = "reasoning") -> None:
        self.reasons = reasoning == "reasoning"
        self.thought: int | None = None
        self._reasoning = reasoning
        self._strip = PrefillStripper()

    def take(self, choice: Any, extra: Mapping[str, Any]) -> list[Delta]:  # noqa: ARG002
        """One chunk, of a chat or a raw completion."""
        if hasattr(choice, "text"):
            return _content(self._strip.feed(choice.text or ""))
        reasoning, content = _texts(choice.delta)
        if self._reasoning == "content":
            reasoning, content = "", reasoning + content
        out = [Delta("reasoning", reasoning)] if reasoning and self._reasoning == "reasoning" else []
        return out + _content(self._strip.feed(content) if content else "")

    def finish(self) -> list[Delta]:
        """What was held back."""
        return _content(self._strip.finish())


class RawMainReader:
    """A raw completion that reasons: split at `</think>`, and its token ids kept in a `Trace` for its forks."""

    def __init__(self, trace: Trace) -> None:
        self.reasons = True
        self.thought: int | None = None
        self._trace = trace
        self._think = ThinkSplitter(thinking=trace.opened)
        self._told = 0  # ids that the server gave

    def take(self, choice: Any, extra: Mapping[str, Any]) -> list[Delta]:
        """One chunk."""
        text = choice.text or ""
        ids, made = _ids(choice, extra)
        out = self._think.feed(text) if text else []
        if not self._think.answering:
            self._keep(text, ids, made, "".join(delta.text for delta in out))
        return out

    def finish(self) -> list[Delta]:
        """What was held back."""
        return self._think.finish()

    def _keep(self, text: str, ids: list[int], made: int | None, reasoning: str) -> None:
        """llama.cpp keeps the ids of an unfinished character to itself: ``made`` (so many in all) tells.

        Several ids at once may end inside a character whose text is still held back: only a chunk of one id is certain.
        """
        self._told += len(ids)
        missing = made is not None and made > self._told
        if missing:
            self._told = made or 0
        self.thought = self._told or None
        whole = bool(text) and not self._think.holds
        if ids or text:
            self._trace.add(text if missing else ids, reasoning, whole=whole, certain=missing or len(ids) == 1)


def _content(text: str) -> list[Delta]:
    return [Delta("content", text)] if text else []


def _texts(delta: Any) -> tuple[str, str]:
    """Reasoning and content of a chat's delta."""
    if delta is None:
        return "", ""
    extra = delta.model_extra or {}
    found = (extra.get(name) for name in ("reasoning_content", "reasoning"))
    return next((text for text in found if isinstance(text, str) and text), ""), delta.content or ""


def _ids(choice: Any, extra: Mapping[str, Any]) -> tuple[list[int], int | None]:
    """Ids of a chunk of a raw completion, and how many the server has made so far where it says so."""
    ids = (choice.model_extra or {}).get("token_ids")  # vLLM
    if isinstance(ids, list):
        return ids, None
    verbose = extra.get("__verbose")  # llama.cpp
    if not isinstance(verbose, Mapping):
        return [], None
    tokens, made = verbose.get("tokens"), verbose.get("tokens_predicted")
    return (tokens if isinstance(tokens, list) else []), (made if isinstance(made, int) else None)
