"""What came out of one LLM stream: its text, how it ended, and when, for the accounting and for the answer."""

from __future__ import annotations

import time
from dataclasses import dataclass

from specgen.controller.answers import Answer, FirstBlock, defines_model, extract
from specgen.controller.edits import applied
from specgen.controller.ports import Answered, GenerationRecord, Stream
from specgen.types import Status, Usage


@dataclass
class Receipt:
    """What came out of a stream, for the accounting and for the answer."""

    content: str = ""
    failure: str = ""
    block: str | None = None  # we closed it because this code block was complete
    loops_from: int | None = None  # we closed it because the reasoning repeats itself from that character on
    stream: Stream | None = None
    first_token_at: float | None = None
    longest_gap_s: float | None = None
    stored_reason: str = ""  # how it ended, where it is read from the store
    _last: float | None = None  # monotonic seconds of the last delta

    @classmethod
    def restored(cls, answered: Answered) -> Receipt:
        """Of a generation that an attempt which died had received."""
        block = FirstBlock().feed(answered.content) if answered.prefix_chars else None
        return cls(answered.content, block=block, stored_reason=answered.finish_reason)

    def add(self, kind: str, text: str) -> None:
        """One delta."""
        if self.first_token_at is None:
            self.first_token_at = time.time()
        now = time.monotonic()
        if self._last is not None:
            self.longest_gap_s = max(self.longest_gap_s or 0.0, now - self._last)
        self._last = now
        if kind == "content":
            self.content += text

    @property
    def finish_reason(self) -> str:
        """The stream's; ``stop`` where nothing more was wanted, ``repetition`` where it went round in circles,
        ``broken`` where it never opened."""
        if self.stored_reason:
            return self.stored_reason
        if self.stream is None or self.failure:
            return "broken"
        if self.loops_from is not None:
            return "repetition"
        return "stop" if self.block is not None else self.stream.finish_reason

    def answer(self, *, prefilled: bool, base: str = "") -> Answer:
        """What it says. ``prefilled``: the content started inside a block; ``base``: the kernel that it may edit."""
        if base and (edited := applied(base, self.block or self.content)) is not None:
            return Answer(edited, None) if defines_model(edited) else Answer(None, Status.NO_MODELNEW)
        return extract(self.block or self.content, truncated=self.finish_reason == "length", prefilled=prefilled)

    def record(self, reasoning: str) -> GenerationRecord:
        """For the store."""
        usage = self.stream.usage if self.stream is not None else Usage()
        return GenerationRecord(
            usage, self.finish_reason, reasoning, self.content, self.first_token_at, self.longest_gap_s
        )
