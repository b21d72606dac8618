"""What a process that is near candidates' code must not hold: keys of LLMs, logins of databases."""

from __future__ import annotations

import os

SECRETS = ("SPECGEN_LLM", "SPECGEN_DATABASE_URL", "OPENAI_", "ANTHROPIC_", "DEEPSEEK_", "PGPASS", "POSTGRES_")


def forget_secrets() -> None:
    """Out of this process's environment, and so out of its children's."""
    for name in [name for name in os.environ if name.startswith(SECRETS)]:
        del os.environ[name]
