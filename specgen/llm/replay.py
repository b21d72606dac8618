"""The recorded source: answers the model server's requests with recorded streams, chunk by chunk with their timing.

The answer to a request is the recording of what reads most like it: of the same kind (main, fork, JSON reply), the one
whose conversation has the longest beginning in common, then (forks) the prefix π; then the same seed. Prompts go from
what is stable to what changes, so this finds the same problem at a similar stage; measured numbers differ from run to
run, and an exact match alone would end a replay after its first iteration. ``exact`` asks for nothing less.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from specgen.llm.recordings import Recording, RecordingError, find, read
from specgen.llm.server_types import Chat, NoAnswer, Piece


class RecordedSource:
    """A `specgen.llm.server_types.Source` over recordings of one model. Its name says that it is a replay."""

    def __init__(self, recordings: Sequence[Recording], *, exact: bool = False) -> None:
        models = {recording.header.model for recording in recordings}
        if len(models) != 1:
            named = ", ".join(sorted(models)) or "none"
            raise RecordingError(f"recordings of one model are needed, found: {named}", "keep a folder for each model")
        self.model_id = f"{models.pop()}-replay"
        self._exact = exact
        self._recordings = [(recording, recording.header.chat()) for recording in recordings]

    @classmethod
    def load(cls, place: Path, *, exact: bool = False) -> RecordedSource:
        """All recordings of a directory. Raises RecordingError for the first that is damaged."""
        return cls([read(path) for path in find(place)], exact=exact)

    def __len__(self) -> int:
        return len(self._recordings)

    def answer(self, chat: Chat) -> list[Piece]:
        """The recorded chunks with the time each took; the first one's holds the time to the first token."""
        recording = self._closest(chat)
        before = 0.0
        pieces = []
        for chunk in recording.chunks:
            pieces.append(Piece(chunk.kind, chunk.text, chunk.t - before))
            before = chunk.t
        if not recording.whole:
            pieces.append(Piece("content", "", recording.ending.t - before, cut=True))
        return pieces

    def _closest(self, chat: Chat) -> Recording:
        alike = [(recording, asked) for recording, asked in self._recordings if _kind(asked) == _kind(chat)]
        if self._exact:
            alike = [(recording, asked) for recording, asked in alike if _text(asked) == _text(chat)]
        if not alike:
            what = "fork" if chat.fork else "main generation" if chat.thinking else "answer without reasoning"
            raise NoAnswer(f"no recording of such a {what}")
        scores = [(_common(asked.rendered, chat.rendered), _common(asked.prefix, chat.prefix)) for _, asked in alike]
        best = max(scores)
        ties = [recording for (recording, _), score in zip(alike, scores, strict=True) if score == best]
        same = [recording for recording in ties if recording.header.seed == chat.seed]
        drawn = int.from_bytes(hashlib.sha256(str(chat.seed).encode()).digest()[:8], "big")
        return (same or ties)[drawn % len(same or ties)]


def _kind(chat: Chat) -> tuple[bool, bool, bool]:
    return chat.fork, chat.thinking or chat.fork, chat.json_reply


def _text(chat: Chat) -> tuple[str, str, str]:
    return chat.rendered, chat.prefix, chat.opening


def _common(a: str, b: str) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
