"""The labelled corpus of real reasoning traces: where each trace is, its checksum and labels; never its words.

``python -m benchmarks.trigger_corpus build --from DIR --to DIR`` assembles the texts from checkouts the user has made
(``git clone https://github.com/OWNER/NAME DIR/OWNER/NAME``) and checks each sha256; ``list`` says which are needed.
benchmarks/data/triggers/README.md gives the format and how the labels were made.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgen.types import TriggerClass

REFERENCES: Final = Path(__file__).parent / "data" / "triggers" / "corpus.json"
CLASSES: Final = {
    "d": TriggerClass.DECISION,
    "f": TriggerClass.FENCE,
    "k": TriggerClass.KERNEL_BODY,
    "p": TriggerClass.PHRASE,
}
HALVES: Final = ("tuning", "held_out")

_BLOCKS: Final = (  # how the two page formats of the transcripts hold a block of reasoning
    re.compile(r'<summary>reasoning \(\d+ chars\)</summary><div class="inner">(.*?)</div></details>', re.DOTALL),
    re.compile(
        r'<div class="reasoning-block"><div class="reasoning-label">reasoning</div>'
        r'<div class="reasoning-line">(.*?)</div></div>',
        re.DOTALL,
    ),
)


class CorpusError(Exception):
    """A source is missing, or is not the text that was labelled. The message says which and what to do."""


@dataclass(frozen=True)
class Trace:
    """A labelled text. ``labels`` and ``decoys``: (class, characters from the start to the end of the place)."""

    name: str
    text: str
    labels: tuple[tuple[TriggerClass, int], ...]
    decoys: tuple[tuple[TriggerClass, int], ...]


@dataclass(frozen=True)
class Reference:
    """A window ``[start:end]`` of one reasoning text of a public repository, with its labels.

    ``pointer``: JSON pointer of the text in the file; None: it is the ``block``-th reasoning block of an HTML
    transcript. ``sha256``, ``length``: of the whole text, in UTF-8 and in characters. Labels count from its start.
    """

    id: str
    half: str
    repository: str
    commit: str
    path: str
    sha256: str
    length: int
    start: int
    end: int
    labels: tuple[tuple[int, str], ...]
    pointer: str | None = None
    block: int = 0


def references(path: Path = REFERENCES) -> list[Reference]:
    """Every labelled window."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [Reference(**{**row, "labels": tuple((at, mark) for at, mark in row["labels"])}) for row in rows]


def extract(reference: Reference, source: str) -> str:
    """The reasoning text of ``reference`` out of its file. Raises CorpusError if it is not there or another."""
    try:
        if reference.pointer is not None:
            text = json.loads(source)
            for key in reference.pointer.split("/")[1:]:
                text = text[int(key)] if isinstance(text, list) else text[key]
        else:
            found = [match for pattern in _BLOCKS for match in pattern.finditer(source)]
            text = html.unescape(sorted(found, key=lambda match: match.start())[reference.block][1])
    except (ValueError, LookupError, TypeError) as error:
        raise CorpusError(f"{_where(reference)}: no reasoning text there") from error
    return _checked(reference, str(text))


def load(directory: Path, half: str) -> list[Trace]:
    """The traces of one half from a directory that ``build`` has filled. Raises CorpusError on a wrong checksum."""
    return [_trace(row, _stored(row, directory)) for row in references() if row.half == half]


def _stored(reference: Reference, directory: Path) -> str:
    path = directory / f"{reference.id}.txt"
    try:
        return _checked(reference, path.read_bytes().decode())
    except OSError as error:
        raise CorpusError(f"{path} is missing; fill it with: python -m benchmarks.trigger_corpus build") from error


def _trace(row: Reference, text: str) -> Trace:
    marks = [(CLASSES[mark[-1]], at - row.start, mark[0] == "-") for at, mark in row.labels]
    labels = tuple((kind, at) for kind, at, decoy in marks if not decoy)
    decoys = tuple((kind, at) for kind, at, decoy in marks if decoy)
    return Trace(row.id, text[row.start : row.end], labels, decoys)


def _checked(reference: Reference, text: str) -> str:
    if hashlib.sha256(text.encode()).hexdigest() != reference.sha256:
        raise CorpusError(f"{_where(reference)}: not the text that was labelled (sha256 differs)")
    return text


def _where(row: Reference) -> str:
    place = row.pointer if row.pointer is not None else f"block {row.block}"
    return f"{row.id}: {row.repository}@{row.commit[:12]} {row.path} {place}"


def _source(row: Reference, checkouts: Path) -> str:
    """The file as committed, from a clone (bare or not), else from the folder itself."""
    folder = checkouts / row.repository
    shown = subprocess.run(
        ["git", "-C", str(folder), "show", f"{row.commit}:{row.path}"], capture_output=True, check=False
    )
    if shown.returncode == 0:
        return shown.stdout.decode("utf-8", "replace")
    try:
        return (folder / row.path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CorpusError(
            f"{_where(row)} is not in {folder}; git clone https://github.com/{row.repository} {folder}"
        ) from error


def build(checkouts: Path, target: Path) -> int:
    """Write every text to ``target``; all are extracted and checked before the first is written."""
    sources: dict[tuple[str, str], str] = {}
    texts = {}
    for row in references():
        key = (row.repository, row.path)
        if key not in sources:
            sources[key] = _source(row, checkouts)
        texts[row.id] = extract(row, sources[key])
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (target / f"{name}.txt").write_bytes(text.encode())
    return len(texts)


def main() -> int:
    """``build`` or ``list``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="assemble the texts and check them")
    command.add_argument("--from", dest="checkouts", type=Path, required=True, help="holds OWNER/NAME checkouts")
    command.add_argument("--to", dest="target", type=Path, required=True, help="where the texts go")
    commands.add_parser("list", help="the repositories, commits and files that are needed")
    options = parser.parse_args()
    if options.command == "list":
        for line in sorted({f"{row.repository} {row.commit} {row.path}" for row in references()}):
            print(line)
        return 0
    try:
        count = build(options.checkouts, options.target)
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{count} texts, all checksums right, in {options.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
