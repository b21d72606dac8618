"""What may be imported where: torch never in the client, the command line or a Celery parent (a forked child could not
use CUDA), the database and the LLM client never in a device worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def loaded(statement: str, **env: str) -> set[str]:
    """Top-level names of the modules that are loaded after ``statement``, in a fresh interpreter."""
    code = f"{statement}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import specgen",
        "import specgen.client",
        "import specgen.cli.run, specgen.cli.operate, specgen.cli.history",
        "import specgen.llm.server, specgen.llm.synthetic",
        "import workers.iteration",
        "import workers.scheduler",
    ],
)
def test_torch_stays_on_the_evaluation_side(statement: str) -> None:
    assert "torch" not in loaded(statement)


def test_a_device_worker_loads_neither_torch_nor_the_database_nor_the_llm_client() -> None:
    names = loaded(
        "import workers.device, workers.app; workers.app.app.loader.import_default_modules()", SPECGEN_WORKER="d"
    )
    assert "celery" in names
    assert not {"torch", "sqlalchemy", "openai"} & names


def test_the_package_itself_loads_next_to_nothing() -> None:
    assert not {"celery", "redis", "sqlalchemy", "openai", "pydantic"} & loaded("import specgen")
