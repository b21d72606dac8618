"""Recorded streams as files: the format, its reader with all its checks, and a writer that leaves no half file.

One JSON-lines file for one choice of one chat completion: a header (what was asked, of which model, when), a line for
each chunk as it arrived (seconds since the request was sent), an ending. Keys of providers are never in it: they
travel in headers, which are not recorded. Not here: recording (`specgen.llm.recorder`), answering (`replay`).
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specgen.errors import UserError
from specgen.llm.server_types import Chat

FORMAT: Final = "specgen-recording"
VERSION = 1
SUFFIX = ".jsonl"
PARTIAL = ".partial"  # while it is being written; left behind by a recorder that was killed


class RecordingError(UserError):
    """A file that is no recording, or one of another version. The message names file and line."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Header(_Line):
    """The first line: where it comes from, and the request as far as an answer depends on it."""

    format: Literal["specgen-recording"] = "specgen-recording"
    version: int = VERSION
    recorded_at: datetime
    server: str  # host of the provider, without path or key
    model: str = Field(min_length=1)
    streamed: bool = True
    conversation: tuple[tuple[str, str], ...]
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: bool = True
    fork: bool = False
    prefix: str = ""
    opening: str = ""
    json_reply: bool = False

    def chat(self) -> Chat:
        """The request as the model server's sources see one."""
        return Chat(
            self.conversation, self.seed or 0, self.thinking, self.fork, self.prefix, self.opening, self.json_reply
        )


class Chunk(_Line):
    """Text that arrived together, ``t`` seconds after the request was sent."""

    t: float = Field(ge=0, allow_inf_nan=False)
    kind: Literal["reasoning", "content"]
    text: str = Field(min_length=1)


class Ending(_Line):
    """The last line. ``stop``, ``length`` and the like are the provider's words; ``cancelled``: the client left;
    ``broken``: the connection did. ``usage``: the provider's object as it was, None where it told none."""

    t: float = Field(ge=0, allow_inf_nan=False)
    finish: str = Field(min_length=1)
    usage: dict[str, object] | None = None


class Recording(BaseModel):
    """One stream."""

    model_config = ConfigDict(frozen=True)

    header: Header
    chunks: tuple[Chunk, ...]
    ending: Ending

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        """Time does not run backwards."""
        before = 0.0
        for number, t in enumerate([*(chunk.t for chunk in self.chunks), self.ending.t], 2):
            if t < before:
                raise ValueError(f"line {number}: t = {t} comes after t = {before}")
            before = t
        return self

    @property
    def whole(self) -> bool:
        """The model came to its own end."""
        return self.ending.finish not in ("length", "cancelled", "broken")


def read(path: Path) -> Recording:
    """Raises RecordingError with file, line and reason."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise RecordingError(f"{path}: {getattr(exc, 'strerror', None) or exc}") from exc
    _check_version(path, lines)
    if len(lines) < 2:
        raise RecordingError(f"{path}: no ending: it was cut off")
    if not lines[-1].endswith("}"):
        raise RecordingError(f"{path}:{len(lines)}: no ending: it was cut off in this line")
    header, *chunks, ending = (
        _line(path, number, text, _kind(number, len(lines))) for number, text in enumerate(lines, 1)
    )
    try:
        return Recording.model_validate({"header": header, "chunks": tuple(chunks), "ending": ending})
    except ValidationError as exc:
        raise RecordingError(f"{path}: {exc.errors()[0]['msg'].removeprefix('Value error, ')}") from exc


def _kind(number: int, lines: int) -> type[_Line]:
    return Header if number == 1 else Ending if number == lines else Chunk


def _check_version(path: Path, lines: list[str]) -> None:
    try:
        first = json.loads(lines[0]) if lines else None
    except ValueError:
        first = None
    if not isinstance(first, dict) or first.get("format") != FORMAT:
        raise RecordingError(f"{path}: not a recording", "`specgen model record` makes them")
    if first.get("version") != VERSION:
        found = first.get("version")
        raise RecordingError(f"{path}: version {found}, this SpecGen reads version {VERSION}", "record it again")


def _line(path: Path, number: int, text: str, kind: type[_Line]) -> _Line:
    try:
        return kind.model_validate_json(text)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordingError(f"{path}:{number}: {where}: {first['msg']}".replace(": : ", ": ")) from exc


def find(place: Path) -> list[Path]:
    """The recordings of a directory (or the one file), by name. Raises RecordingError where there are none."""
    files = sorted(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]
    if not place.exists():
        raise RecordingError(f"{place}: not there", "`specgen model record` makes recordings")
    if not files:
        raise RecordingError(f"{place}: no recordings (*{SUFFIX})", "`specgen model record` makes them")
    return files


@dataclass(frozen=True)
class Finding:
    """One file looked at: a recording, or the reason why it is none."""

    path: Path
    recording: Recording | None
    error: str = ""


def check(place: Path) -> Iterator[Finding]:
    """All recordings of a directory, one after another."""
    for path in find(place):
        try:
            yield Finding(path, read(path))
        except RecordingError as exc:
            yield Finding(path, None, exc.message)


class Writer:
    """Writes one recording; the file has its name once it is whole. Leaving without :meth:`end` removes it."""

    def __init__(self, directory: Path, header: Header) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        self._path = directory / f"{stamp}-{uuid.uuid4().hex[:12]}{SUFFIX}"
        self._partial = self._path.with_suffix(PARTIAL)
        self._file: IO[str] = self._partial.open("w", encoding="utf-8")
        self._write(header)

    def _write(self, line: _Line) -> None:
        self._file.write(line.model_dump_json() + "\n")

    def chunk(self, chunk: Chunk) -> None:
        """Append."""
        self._write(chunk)

    def end(self, ending: Ending) -> Path:
        """Finish; returns where it lies. Raises OSError where the disk is full, and leaves nothing."""
        try:
            self._write(ending)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError:
            self._abandon()
            raise
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            self._abandon()

    def _abandon(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full, and closing flushes
            self._file.close()
        self._partial.unlink(missing_ok=True)
