"""All settings: environment (``SPECGEN_…``), then ``specgen.toml``, then defaults. Keys never leave iteration workers.

Nested fields are written ``SPECGEN_FORKS__SPACING_CHARS=1800``. The defaults of :class:`ForkPolicy` and
:class:`PoolPolicy` are the measured ones of docs/policy.md; ``paper()`` gives the paper's rules as written.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from specgen.errors import SettingsError
from specgen.types import Usage

TriggerName = Literal["decision", "fence", "kernel_body", "phrase"]


class Group(BaseModel):
    """A nested group of settings; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


class ForkPolicy(Group):
    """When SpecController forks (§6.1.1), and the brake on it."""

    spacing_chars: int = 1800  # of reasoning between two triggers that launch (about 15 s of GLM-5.1)
    outstanding: int = 2  # forks of one job that are generating, queued or running
    max_k: int = 2  # forks per trigger
    idle_after_s: float = 2.0  # a device idle that long launches a fork
    min_prefix_chars: int = 0
    plain: int = Field(default=0, ge=0, le=64)  # generations beside the main one, where the server cannot fork
    classes: tuple[TriggerName, ...] = ("decision", "fence", "kernel_body", "phrase")

    @classmethod
    def paper(cls) -> ForkPolicy:
        """No brake: every trigger launches K = max(1, min(C.val, C.prof))."""
        return cls(spacing_chars=0, outstanding=10_000, max_k=10_000, idle_after_s=0.0)


class PoolPolicy(Group):
    """How ElasticScheduler orders and splits (§6.2)."""

    # paper: Algorithm 2; service_time: the same with queues weighted by device seconds; flexible: every device both
    split: Literal["paper", "flexible", "service_time"] = "paper"
    # fair_laf: a main kernel before forks, then the newest of the job served longest ago; mains_first: without the
    # turns of jobs; paper: pure LAF and FIFO over all jobs
    order: Literal["fair_laf", "mains_first", "paper"] = "fair_laf"
    scheduler_interval_s: float = 0.5


class EvaluationPolicy(Group):
    """How candidates are judged."""

    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    warmups: int = 10
    timed_runs: int = 40
    validate_budget_s: float = 180.0
    profile_budget_s: float = 180.0
    build: Literal["auto", "stock"] = "auto"  # auto: the façade, stock where it does not compile
    cpu_devices: int = 0  # 0: one per core
    # share of fast-built candidates that stock judges too, until the façade is audited for this backend and torch
    audit_rate: float = Field(default=0.1, ge=0, le=1)
    # GPUs: compute-sanitizer's memcheck after a device fault, its report in the feedback (tens of seconds each)
    sanitize_on_fault: bool = False
    # one of its tools after every evaluation of a candidate that loads; what `specgen evaluate --sanitize` sets
    sanitize: Literal["", "memcheck", "racecheck", "initcheck", "synccheck"] = ""


PRICE_HINT = "for a million tokens, in specgen.toml: [llm.NAME.price] input = 0.6, cached = 0.1, output = 2.2"


class Price(Group):
    """What a provider takes for a million tokens, in dollars or any other unit."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)  # reasoning included
    cached: float | None = Field(default=None, ge=0)  # of the prompt, from the prefix cache; None: like other input

    def cost(self, usage: Usage) -> float:
        """Of one generation."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        return (fresh * self.input + usage.cached_tokens * cached + usage.completion_tokens * self.output) / 1e6


class Role(Group):
    """How a role of a search algorithm (judge, reflector) is asked, where it is not like the main generation."""

    model: str = ""  # at the same address; empty: the profile's, or the job's
    effort: str = ""  # ``reasoning_effort`` of the request, as the server names it; empty: not said
    price: Price | None = None  # None: the profile's


class ModelProfile(Group):
    """One LLM endpoint. ``api_key`` is read by iteration workers only."""

    base_url: str = ""
    model: str = ""
    api_key: SecretStr = SecretStr("none")
    dialect: Literal[
        "auto", "deepseek", "vllm", "llamacpp", "completions", "sglang", "openrouter", "specgen", "generic"
    ] = "auto"
    opens_think: bool = False  # sglang: the chat template opens <think> itself (DeepSeek R1, Qwen3-Thinking)
    # the first of K forks is sent alone, the others once it has begun; None: where the dialect's cache needs it
    first_fork_ahead: bool | None = None
    temperature: float = 0.1
    extra_body: dict[str, Any] = Field(default_factory=dict)  # more fields of every request, as the server names them
    first_token_timeout_s: float = 300.0
    token_timeout_s: float = 120.0
    retries: int = 4
    price: Price | None = None
    roles: dict[str, Role] = Field(default_factory=dict)
    # what the model takes, prompt and answer together: longer prompts are trimmed; 0: unknown
    context_tokens: int = Field(default=0, ge=0)
    # reasoning that repeats itself (numbers aside) over that many characters is cut; 0: never
    loop_chars: int = Field(default=4000, ge=0)


class Settings(BaseSettings):
    """The whole of it."""

    model_config = SettingsConfigDict(
        env_prefix="SPECGEN_", env_nested_delimiter="__", toml_file="specgen.toml", extra="ignore"
    )

    home: Path = Path(".specgen")  # embedded state: Valkey socket, SQLite, logs
    cache: Path = Path()  # builds, and what fast builds need (1.2 GB); empty: ``specgen`` in the user's cache folder
    kernelbench: str = ""  # a checkout of KernelBench, whose problems are then called L1/12; empty: none
    redis_url: str = ""  # empty: the embedded server's socket under ``home``
    database_url: str = ""  # empty: SQLite under ``home``
    prefix: str = "specgen"  # of every Redis key that is not a Celery queue
    visibility_timeout_s: float = 60.0
    llm: dict[str, ModelProfile] = Field(default_factory=dict)
    forks: ForkPolicy = Field(default_factory=ForkPolicy)
    pool: PoolPolicy = Field(default_factory=PoolPolicy)
    evaluation: EvaluationPolicy = Field(default_factory=EvaluationPolicy)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then environment, then the TOML file in the working directory."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def home_path(self) -> Path:
        """``home`` made absolute."""
        return self.home.expanduser().resolve()

    @property
    def cache_path(self) -> Path:
        """``cache`` made absolute. All systems of a user share it: what is in it is named by what it was made of."""
        if self.cache != Path():
            return self.cache.expanduser().resolve()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "specgen"

    @property
    def socket_path(self) -> Path:
        """The embedded server's unix socket; under the temporary folder where ``home`` is too deep (107 bytes)."""
        path = self.home_path / "valkey.sock"
        if len(str(path)) <= 100:
            return path
        return Path(tempfile.gettempdir()) / f"specgen-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.sock"

    @property
    def redis(self) -> str:
        """A redis-py URL."""
        return self.redis_url or f"unix://{self.socket_path}?db=0"

    @property
    def database(self) -> str:
        """An SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{self.home_path / 'specgen.db'}"


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The process's settings, read once. Raises SettingsError with the offending names."""
    try:
        return Settings()
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"setting {where}: {first['msg']}", "see docs/settings.md for the names") from exc
