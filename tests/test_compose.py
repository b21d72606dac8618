"""docker-compose.yml: who is there, who holds which secret, and that what it starts exists.

The file is read, not run: there is no container engine here. Its settings are loaded by SpecGen's own `Settings`.
"""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgen.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
GIVEN = {"POSTGRES_PASSWORD": "pg-secret", "REDIS_PASSWORD": "redis-secret", "FLOWER_BASIC_AUTH": "a:flower-secret"}
GIVEN |= {"LLM_API_KEY": "llm-secret", "LLM_BASE_URL": "https://llm.test/v1", "LLM_MODEL": "glm"}
VARIABLE = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")
SERVICES = {"redis", "postgres", "migrate", "iterations", "scheduler", "device-cpu", "gpu0", "gpu1", "flower", "model"}
DEVICES = {"device-cpu", "gpu0", "gpu1"}
OWN = SERVICES - {"redis", "postgres"} | {"cli"}


def substituted(text: str) -> str:
    """The file with the variables of ``GIVEN``, and defaults for the others."""

    def value(match: re.Match[str]) -> str:
        name, rest = match[1], match[2] or ""
        if name in GIVEN:
            return GIVEN[name]
        assert rest.startswith(":-"), f"{name} has no default and is not in docker/env.example's list"
        return rest[2:]

    return VARIABLE.sub(value, text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load(substituted((ROOT / "docker-compose.yml").read_text()))
    assert isinstance(loaded, dict)
    return loaded


def words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def test_the_services(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == SERVICES | {"cli"}
    for gpu in ("gpu0", "gpu1"):
        assert compose["services"][gpu]["profiles"] == ["gpu"]
    assert compose["services"]["model"]["profiles"] == ["demo"]


def test_redis_forgets_nothing(compose: dict[str, Any]) -> None:
    command = words(compose["services"]["redis"]["command"])
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "everysec"
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--requirepass"] == "redis-secret"


@pytest.mark.parametrize("name", sorted(DEVICES | {"scheduler", "flower", "model"}))
def test_no_database_login_and_no_key_where_it_is_not_needed(compose: dict[str, Any], name: str) -> None:
    held = environment(compose["services"][name])
    assert not [variable for variable in held if "DATABASE" in variable or "POSTGRES" in variable]
    assert not [variable for variable in held if "LLM" in variable or "API_KEY" in variable]
    text = str(compose["services"][name])
    assert "pg-secret" not in text
    assert "llm-secret" not in text
    assert "env_file" not in compose["services"][name]
    assert "truth" not in compose["services"][name]["networks"]  # no way to Postgres either


def test_the_key_is_held_by_iterations_only(compose: dict[str, Any]) -> None:
    holders = {name for name, service in compose["services"].items() if "llm-secret" in str(service)}
    assert holders == {"iterations"}
    logins = {name for name, service in compose["services"].items() if "pg-secret" in str(service)}
    assert logins == {"postgres", "migrate", "iterations", "cli"}


def test_device_workers_reach_redis_and_nothing_else(compose: dict[str, Any]) -> None:
    for name in DEVICES:
        assert compose["services"][name]["networks"] == ["pool"]
    assert compose["networks"]["pool"]["internal"] is True
    on_pool = {name for name, service in compose["services"].items() if "pool" in service["networks"]}
    assert "postgres" not in on_pool


def test_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert set(ports) == {"flower"}
    assert all(port.startswith("127.0.0.1:") for port in ports["flower"])
    assert environment(compose["services"]["flower"])["FLOWER_BASIC_AUTH"] == "a:flower-secret"


def test_everything_that_stays_up_is_watched_restarted_and_given_time(compose: dict[str, Any]) -> None:
    for name in SERVICES - {"migrate"}:
        service = compose["services"][name]
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name
        assert "stop_grace_period" in service, name
    assert compose["services"]["migrate"]["restart"] == "no"


def test_order_of_start(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["iterations"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    for name in DEVICES | {"iterations", "scheduler", "flower"}:
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"


def test_the_grace_of_devices_covers_a_request(compose: dict[str, Any]) -> None:
    policy = Settings().evaluation
    for name in DEVICES:
        grace = int(compose["services"][name]["stop_grace_period"].removesuffix("s"))
        assert grace > max(policy.validate_budget_s, policy.profile_budget_s)


@pytest.mark.parametrize("name", sorted(OWN))
def test_settings_understand_the_environment(
    compose: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    variables = environment(compose["services"][name])
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
        if variable.startswith("SPECGEN_"):
            top = variable.removeprefix("SPECGEN_").split("__")[0].lower()
            assert top in Settings.model_fields, variable
    settings = Settings()
    assert settings.redis == variables.get("SPECGEN_REDIS_URL", settings.redis)
    if "SPECGEN_DATABASE_URL" in variables:
        assert settings.database == "postgresql+psycopg://specgen:pg-secret@postgres:5432/specgen"
    if name == "iterations":
        profile = settings.llm["default"]
        assert (profile.base_url, profile.model) == ("https://llm.test/v1", "glm")
        assert profile.api_key.get_secret_value() == "llm-secret"


def cli_commands() -> set[tuple[str, ...]]:
    from specgen.cli import history, operate, run
    from specgen.cli.main import app

    assert history, operate
    assert run

    def named(command: Any) -> str:
        return str(command.name or command.callback.__name__).replace("_", "-")

    found = {(named(command),) for command in app.registered_commands}
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        group_name = str(group.name or inner.info.name)
        found |= {(group_name, named(command)) for command in inner.registered_commands}
    return found


@pytest.mark.parametrize("name", sorted(OWN - {"cli"}))
def test_what_a_service_starts_exists(compose: dict[str, Any], name: str) -> None:
    match words(compose["services"][name]["command"]):
        case ["celery", "-A", module, "worker", *_] | ["python", "-m", module, *_]:
            assert find_spec(module) is not None
        case ["specgen", *rest]:
            known = cli_commands()
            assert any(tuple(rest[: len(command)]) == command for command in known), (rest, sorted(known))
        case other:
            pytest.fail(f"unknown command {other}")


def test_files_it_names_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
            target = service["build"].get("target")
            text = (ROOT / service["build"]["dockerfile"]).read_text()
            assert target is None or f"AS {target}\n" in text
        for word in words(service.get("healthcheck", {}).get("test", [])):
            if word.endswith(".py"):
                assert (ROOT / word).is_file()


def test_every_variable_is_in_the_example() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / "docker" / "env.example").read_text()
    required = {match[1] for match in VARIABLE.finditer(text) if (match[2] or "").startswith(":?")}
    assert required == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "Dockerfile.gpu"])
def test_dockerfiles_copy_what_exists_and_is_not_ignored(dockerfile: str) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "docker" / dockerfile).read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
        assert name in allowed
