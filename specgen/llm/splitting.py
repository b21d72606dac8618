"""Two incremental splitters of streamed content: `<think>` blocks, and a prefill that the server repeats.

Pure; the result does not depend on how the text was cut into pieces (empty deltas aside).
"""

from __future__ import annotations

import re
from typing import Final

from specgen.types import Delta

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class ThinkSplitter:
    """Splits content that carries its reasoning inline: `<think>…</think>` at the very beginning, then the answer.

    A `<think>` further on is content. ``thinking``: the chat template has opened the block already, so the stream
    begins inside it.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self._state = "reasoning" if thinking else "start"
        self._held = ""
        self._strip = False  # line ends between </think> and the answer

    @property
    def answering(self) -> bool:
        """The reasoning is over."""
        return self._state == "content"

    @property
    def holds(self) -> bool:
        """Something is held back."""
        return bool(self._held)

    def feed(self, text: str) -> list[Delta]:
        """Take content; returns what is certain of it."""
        self._held += text
        out: list[Delta] = []
        if self._state == "start":
            head = self._held.lstrip()
            if head.startswith(_OPEN):
                self._state, self._held = "reasoning", head[len(_OPEN) :]
            elif _OPEN.startswith(head):
                return out
            else:
                self._state = "content"
        if self._state == "reasoning":
            self._reason(out)
        if self._state == "content":
            self._answer(out)
        return out

    def finish(self) -> list[Delta]:
        """The stream is over: what was held back."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [Delta("reasoning" if self._state == "reasoning" else "content", held)]

    def _reason(self, out: list[Delta]) -> None:
        text, found, rest = self._held.partition(_CLOSE)
        if found:
            self._state, self._held, self._strip = "content", rest, True
        else:
            keep = _partial(text, _CLOSE)
            text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        if text:
            out.append(Delta("reasoning", text))

    def _answer(self, out: list[Delta]) -> None:
        text, self._held = self._held, ""
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        if text:
            out.append(Delta("content", text))


def _partial(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``mark``."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


class PrefillStripper:
    """Drops the opening fence where a server repeats the prefill at the beginning of its answer."""

    _WHOLE = re.compile(r"\s{0,16}```(?:python|py)?[ \t]{0,16}\n")
    _PART = re.compile(r"\s{0,16}(?:`{1,2}|```(?:p|pyt|pyth|pytho|(?:py|python)?[ \t]{0,16}))?\Z")

    def __init__(self) -> None:
        self._held = ""
        self._open = True

    def feed(self, text: str) -> str:
        """Take content; returns what is certain of it."""
        if not self._open:
            return text
        self._held += text
        if self._PART.match(self._held):
            return ""
        return self.finish()

    def finish(self) -> str:
        """What was held back, without the repeated fence."""
        held, self._held, self._open = self._held, "", False
        match = self._WHOLE.match(held)
        return held[match.end() :] if match else held
