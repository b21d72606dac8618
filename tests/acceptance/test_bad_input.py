"""Bad input: one clear line, a hint, a non-zero exit, and nothing half-written. The real command, in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

GOOD = """
import torch, torch.nn as nn
N = 64
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(N, N)]
def get_init_inputs():
    return []
"""


def specgen(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPECGEN_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, "-m", "specgen", *arguments],
        env={**clean, "SPECGEN_HOME": str(home), **env},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code, one line, a hint, no traceback."""
    told = done.stderr.strip()
    assert done.returncode == 2, (done.returncode, done.stdout, told)
    assert told.startswith("specgen: ")
    assert "\n  hint: " in told
    assert len(told.splitlines()) == 2, told
    for word in words:
        assert word in told, told


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.py"
    path.write_text(GOOD)
    return path


def left(home: Path) -> set[str]:
    return {p.name for p in home.iterdir()} - {"problem.py"}


ENDPOINT = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")


def test_no_such_file(tmp_path: Path) -> None:
    refused(specgen(tmp_path, "run", "nowhere.py", *ENDPOINT), "nowhere.py")
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("class Model(", "class Other(", "Model"),
        ("def get_inputs", "def get_some", "get_inputs"),
        ("N = 64", "N = = 64", "line"),
    ],
)
def test_a_file_that_is_no_problem(problem: Path, old: str, new: str, word: str) -> None:
    problem.write_text(GOOD.replace(old, new))
    refused(specgen(problem.parent, "run", "problem.py", *ENDPOINT), word)
    assert not left(problem.parent)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("return torch.relu(x)", "raise ValueError('broken inside')", "broken inside"),
        ("[torch.rand(N, N)]", "[torch.rand(N, N), 3]", "forward"),
        ("return []", "return [1, 2]", "Model"),
    ],
)
def test_a_reference_that_cannot_run(problem: Path, old: str, new: str, word: str) -> None:
    problem.write_text(GOOD.replace(old, new, 1))
    refused(specgen(problem.parent, "run", "problem.py", "--synthetic", "60"), word)
    assert not (problem.parent / "specgen.db").exists()


def test_an_llm_that_is_not_there(problem: Path) -> None:
    refused(specgen(problem.parent, "run", "problem.py", *ENDPOINT), "127.0.0.1:9")
    assert not left(problem.parent)


@pytest.fixture
def model_server(tmp_path: Path) -> Iterator[str]:
    """The project's own server, which wants a key."""
    url = tmp_path / "url"
    command = ["-m", "specgen.llm.server", "--port", "0", "--port-file", str(url), "--api-key", "right"]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 30
        while not url.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield url.read_text().strip()
        url.unlink()
        server.terminate()


def test_a_wrong_key_and_an_unknown_model(problem: Path, model_server: str) -> None:
    wrong = specgen(problem.parent, "run", "problem.py", "--base-url", model_server, "--api-key", "wrong-key-4711")
    refused(wrong, "key")
    assert "4711" not in wrong.stderr + wrong.stdout
    arguments = ("--base-url", model_server, "--api-key", "right", "--model", "gpt-0")
    refused(specgen(problem.parent, "run", "problem.py", *arguments), "gpt-0", "specgen-synthetic")
    assert not (problem.parent / "specgen.db").exists()


def test_no_llm_at_all(problem: Path) -> None:
    refused(specgen(problem.parent, "run", "problem.py"), "--base-url")


def test_wrong_names_are_told_with_the_list(problem: Path) -> None:
    refused(
        specgen(problem.parent, "run", "problem.py", "--search", "evolve", *ENDPOINT), "evolve", "refine", "best_of_n"
    )
    refused(specgen(problem.parent, "run", "problem.py", "--termination", "soon", *ENDPOINT), "soon", "historical_mean")
    refused(specgen(problem.parent, "run", "problem.py", "--profile", "mine"), "mine")
    refused(specgen(problem.parent, "run", "problem.py", "--sandbox", "jail", *ENDPOINT), "jail")
    refused(specgen(problem.parent, "run", "problem.py", "--iterations", "0", *ENDPOINT), "--iterations")
    refused(specgen(problem.parent, "walk"), "walk")
    assert not left(problem.parent)


def test_a_wrong_setting_names_itself(problem: Path) -> None:
    refused(specgen(problem.parent, "jobs", SPECGEN_POOL__SPLIT="half"), "pool.split")


def test_a_database_that_is_not_migrated(tmp_path: Path) -> None:
    refused(specgen(tmp_path, "jobs"), "migrat")
    (tmp_path / "specgen.db").touch()
    refused(specgen(tmp_path, "jobs"), "specgen migrate")
    assert specgen(tmp_path, "migrate").returncode == 0
    assert specgen(tmp_path, "jobs").returncode == 0


def test_an_unknown_job(tmp_path: Path) -> None:
    assert specgen(tmp_path, "migrate").returncode == 0
    for command in ("show", "best", "resume", "pause", "cancel"):
        refused(specgen(tmp_path, command, "t4-nothing"), "t4-nothing")
    refused(specgen(tmp_path, "priority", "t4-nothing", "10"), "-9")


def test_no_compiler(problem: Path) -> None:
    bare = problem.parent / "bin"
    bare.mkdir()
    refused(specgen(problem.parent, "run", "problem.py", "--synthetic", "60", PATH=str(bare)), "g++")
    assert not (problem.parent / "specgen.db").exists()


def test_no_device(problem: Path) -> None:
    done = specgen(problem.parent, "run", "problem.py", "--synthetic", "60", "--backend", "cuda")
    refused(done, "GPU")
    assert not (problem.parent / "specgen.db").exists()
