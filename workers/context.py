"""What a search algorithm may use while it composes a prompt: `specgen.search.Context` for one job.

Renders templates (and remembers which), and asks LLM roles for JSON: checked against a schema, asked again once,
stored under its key before it is used, so that it is never paid twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import jsonschema
import structlog
from pydantic import TypeAdapter

from specgen.llm import OpenAICompatible
from specgen.prompts import CpuFacts, GpuFacts, Renderer, cpu_facts
from specgen.scheduler.pool import PoolView
from specgen.search import Evaluated, History
from specgen.settings import Price
from specgen.store import EvaluatedRecord, JobRecord, Store
from specgen.types import Json, Prompt, Usage

FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n```", re.DOTALL)
ROLE_TOKENS = 8_192
ROLE_ATTEMPTS = 2
REFUSED = "#refused"  # in the key of a reply that did not fit, and was asked for again

log = structlog.get_logger(__name__)


def entry(record: EvaluatedRecord) -> Evaluated:
    """A stored outcome as an algorithm sees it."""
    return Evaluated(
        candidate_id=record.candidate.candidate_id,
        source=record.candidate.source,
        origin=record.origin,
        iteration=record.iteration,
        status=record.result.status,
        error=record.result.error,
        speedup=record.result.speedup,
        profile=record.result.profile,
    )


def device_facts(view: PoolView, backend: str, label: str) -> CpuFacts | GpuFacts:
    """What the pool's first device with that label says of itself; for a CPU, else this machine's."""
    for device in view.devices:
        facts = device.info.get("facts")
        if label in device.labels and device.info.get("backend") == backend and isinstance(facts, dict):
            return TypeAdapter(CpuFacts if backend == "cpu" else GpuFacts).validate_python(facts)
    return cpu_facts() if backend == "cpu" else GpuFacts("unknown")


@lru_cache(maxsize=32)
def renderer(prompt_dir: str) -> Renderer:
    """Kept by the process: compiling templates holds up all streams of its event loop. Files are looked at each time."""
    return Renderer(prompt_dir or None)


@dataclass
class JobContext:
    """`Context` over the store and the job's model."""

    job: JobRecord
    store: Store
    model: OpenAICompatible
    history: History
    token: int
    device: CpuFacts | GpuFacts
    price: Price | None = None
    paid: list[Usage] = field(default_factory=list)  # what roles were asked, added to as it happens
    hashes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._renderer = renderer(self.job.spec.prompt_dir)

    def render(self, template: str, **variables: object) -> str:
        """A template with ``problem`` and ``device`` given already."""
        text, digest = self._renderer.render(template, problem=self.job.spec.problem, device=self.device, **variables)
        self.hashes.append(digest)
        return text

    def stamped(self, prompt: Prompt) -> Prompt:
        """The prompt with the hash of every template that was rendered for it."""
        return replace(prompt, template_hash=hashlib.sha256("".join(self.hashes).encode()).hexdigest()[:16])

    async def ask(self, role: str, key: str, template: str, schema: Mapping[str, Json], **variables: object) -> Json:
        """A role's JSON reply; None where none fits the schema. Memoised by ``key`` in the store."""
        # rendered also where the reply is known: the prompt's hash must not depend on when the role was asked
        prompt = Prompt(self.render("shared/role.md.j2", role=role), self.render(template, **variables))
        memo = await asyncio.to_thread(self.store.side_call, self.job.id, key)
        if memo is not None:
            return memo.reply
        for attempt in range(ROLE_ATTEMPTS):
            last = attempt == ROLE_ATTEMPTS - 1
            under = key if last else f"{key}{REFUSED}{attempt}"
            if await asyncio.to_thread(self.store.side_call, self.job.id, under) is not None:
                continue  # asked, and refused, before a crash
            answer = await self.model.complete(prompt, seed=attempt, max_tokens=ROLE_TOKENS, schema=schema)
            self.paid.append(answer.usage)
            reply = parsed(answer.text, schema)
            if isinstance(reply, Refusal):
                log.warning("role_reply_refused", role=role, key=key, attempt=attempt, error=reply.why)
                await self._save(under, None, answer.usage)
            else:
                return await self._save(key, reply, answer.usage)
        return None

    async def _save(self, key: str, reply: Json, usage: Usage) -> Json:
        """Before it is used: what was paid is known, whatever happens next."""
        cost = self.price.cost(usage) if self.price else None
        saved = await asyncio.to_thread(
            self.store.save_side_call, self.job.id, key, reply, usage, cost=cost, token=self.token
        )
        return saved.reply


@dataclass(frozen=True)
class Refusal:
    """Why a reply cannot be used."""

    why: str


def parsed(text: str, schema: Mapping[str, Json]) -> Json | Refusal:
    """The JSON of a reply, fenced or bare, where it fits the schema."""
    try:
        fenced = FENCED.search(text)
        reply: Json = json.loads(fenced[1] if fenced else text)
        jsonschema.validate(reply, schema)
    except (ValueError, jsonschema.ValidationError) as exc:
        return Refusal(str(exc)[:200])
    return reply
