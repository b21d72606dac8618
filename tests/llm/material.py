"""Messages for the model server's tests: the project's own problem files, framed as a prompt frames them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import specgen.problems

PROBLEMS = Path(specgen.problems.__file__).parent / "cpu"


def reference(task: str) -> str:
    """The problem file's text."""
    return (PROBLEMS / f"{task}.py").read_text()


def messages(task: str, feedback: str = "") -> list[Any]:
    """System and user message of a main generation."""
    user = f"Replace this module with a faster one.\n\n```python\n{reference(task)}```\n{feedback}"
    return [{"role": "system", "content": "You write C++ kernels."}, {"role": "user", "content": user}]


def fork_messages(task: str, prefix: str, feedback: str = "") -> list[Any]:
    """The same, continued from a reasoning prefix inside an opened block."""
    opened = {"role": "assistant", "reasoning_content": prefix, "content": "```python\n", "prefix": True}
    return [*messages(task, feedback), opened]
