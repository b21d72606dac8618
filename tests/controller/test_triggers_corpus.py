"""The corpus of real traces: what is committed of it, and how its texts are assembled from checkouts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trigger_corpus
from benchmarks.trigger_corpus import HALVES, CorpusError, Reference, build, extract, load, references

REASONING = "I'll use 64x64 tiles &\n\nLet me write the <kernel>.\n"
ARCHIVE = '<summary>reasoning (7 chars)</summary><div class="inner">nothing</div></details>\n'
PAGE = (
    ARCHIVE + '<div class="reasoning-block"><div class="reasoning-label">reasoning</div><div class="reasoning-line">'
    "I&#x27;ll use 64x64 tiles &amp;\n\nLet me write the &lt;kernel&gt;.\n</div></div>"
)


def reference(**changes: Any) -> Reference:
    digest = hashlib.sha256(REASONING.encode()).hexdigest()
    row = Reference(
        id="T0", half="tuning", repository="someone/traces", commit="0" * 40, path="run.html", block=1, sha256=digest,
        length=len(REASONING), start=0, end=len(REASONING), labels=((22, "d"), (50, "-p")),
    )  # fmt: skip
    return replace(row, **changes)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Reference]:
    rows = [reference()]
    monkeypatch.setattr(trigger_corpus, "references", lambda: rows)
    return rows


def test_each_label_lies_in_its_window_and_no_transcript_is_in_both_halves() -> None:
    rows = references()
    half_of: dict[tuple[str, str, str | None], str] = {}
    for row in rows:
        assert row.half in HALVES
        assert 0 <= row.start < row.end <= row.length
        assert all(row.start < at <= row.end and mark.lstrip("-") in "dfkp" for at, mark in row.labels)
        assert half_of.setdefault((row.repository, row.path, row.pointer), row.half) == row.half
    assert len({row.id for row in rows}) == len(rows)


def test_the_committed_file_holds_references_and_offsets_only() -> None:
    allowed = {"id", "half", "repository", "commit", "path", "pointer", "block", "sha256", "length", "start", "end"}
    for row in json.loads(trigger_corpus.REFERENCES.read_text(encoding="utf-8")):
        assert set(row) <= allowed | {"labels"}
        assert all(isinstance(at, int) and len(mark) <= 2 for at, mark in row["labels"])


def test_a_block_of_a_page_and_a_pointer_into_json_give_the_text() -> None:
    assert extract(reference(), PAGE) == REASONING
    row = reference(pointer="/3/thinking", block=0)
    assert extract(row, json.dumps([{}, {}, {}, {"thinking": REASONING}])) == REASONING


@pytest.mark.parametrize("source", [ARCHIVE, "", PAGE.replace("64x64", "32x32")])
def test_a_missing_or_changed_text_is_refused(source: str) -> None:
    with pytest.raises(CorpusError, match=r"someone/traces@0{12} run\.html block 1"):
        extract(reference(), source)


def test_built_texts_load_with_labels_counted_from_the_window(tmp_path: Path, listed: list[Reference]) -> None:
    listed[0] = reference(start=6, end=50)
    (tmp_path / "someone" / "traces").mkdir(parents=True)
    (tmp_path / "someone" / "traces" / "run.html").write_text(PAGE, encoding="utf-8")
    assert build(tmp_path, tmp_path / "corpus") == 1
    (trace,) = load(tmp_path / "corpus", "tuning")
    assert trace.text == REASONING[6:50]
    assert [at for _, at in trace.labels] == [16]
    assert [at for _, at in trace.decoys] == [44]
    assert load(tmp_path / "corpus", "held_out") == []


def test_the_commit_is_read_from_a_clone_not_what_is_checked_out(tmp_path: Path, listed: list[Reference]) -> None:
    clone = tmp_path / "someone" / "traces"
    clone.mkdir(parents=True)
    page = clone / "run.html"
    page.write_text(PAGE, encoding="utf-8")
    git = ["git", "-C", str(clone), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "traces"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    page.write_text("moved on", encoding="utf-8")
    listed[0] = reference(commit=commit)
    assert build(tmp_path, tmp_path / "corpus") == 1


def test_one_wrong_text_and_nothing_is_written(tmp_path: Path, listed: list[Reference]) -> None:
    (tmp_path / "someone" / "traces").mkdir(parents=True)
    (tmp_path / "someone" / "traces" / "run.html").write_text(PAGE, encoding="utf-8")
    listed.append(reference(id="T1", sha256="0" * 64))
    with pytest.raises(CorpusError):
        build(tmp_path, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_a_missing_checkout_is_one_line_with_the_command_that_helps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.trigger_corpus", "build", "--from", str(tmp_path), "--to", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "git clone https://github.com/" in done.stderr
    assert not Path("nowhere").exists()
