"""The compose files as Compose reads them: variables put in, anchors merged. For the tests of deployment."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
MAIN, HOSTS, DEVICE = "docker-compose.yml", "docker/compose.hosts.yml", "docker/compose.device.yml"
GIVEN = {"POSTGRES_PASSWORD": "pg-secret", "REDIS_PASSWORD": "redis-secret", "FLOWER_BASIC_AUTH": "a:flower-secret"}
GIVEN |= {"LLM_API_KEY": "llm-secret", "LLM_BASE_URL": "https://llm.test/v1", "LLM_MODEL": "glm"}
GIVEN |= {"POOL_REDIS_URL": "redis://:redis-secret@10.0.0.1:6379/0", "POOL_ADDRESS": "10.0.0.1"}
VARIABLE = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")
SECONDS = {"s": 1, "m": 60}


def read(name: str, given: dict[str, str]) -> dict[str, Any]:
    """A file with the variables of ``given``, and defaults for the others."""

    def value(match: re.Match[str]) -> str:
        variable, rest = match[1], match[2] or ""
        if variable in given:
            return given[variable]
        assert rest.startswith(":-"), f"{variable} has no default and is not in docker/env.example's list"
        return rest[2:]

    loaded = yaml.safe_load(VARIABLE.sub(value, (ROOT / name).read_text()))
    assert isinstance(loaded, dict)
    return loaded


def required(name: str) -> set[str]:
    """Variables that must be set (``:?``), or are needed by a secret."""
    text = (ROOT / name).read_text()
    found = {match[1] for match in VARIABLE.finditer(text) if (match[2] or "").startswith(":?")}
    return found | {secret["environment"] for secret in yaml.safe_load(text).get("secrets", {}).values()}


def words(command: str | list[str]) -> list[str]:
    """A command's words; Compose writes ``$$`` for a dollar."""
    found = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    return [word.replace("$$", "$") for word in found]


def environment(service: dict[str, Any]) -> dict[str, str]:
    """A service's variables."""
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def seconds(duration: str) -> float:
    """``90s`` or ``2m``."""
    return float(duration[:-1]) * SECONDS[duration[-1]]
