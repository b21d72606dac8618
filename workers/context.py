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
        self._renderer = Renderer(self.job.spec.prompt_dir or None)

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
        memo = await asyncio.to_thread(self.store.side_call, self.job.id, key)
        if memo is not None:
            return memo.reply
        prompt = Prompt(self.render("shared/role.md.j2", role=role), self.render(template, **variables))
        reply: Json = None
        usage = Usage(reported=True)
        for attempt in range(ROLE_ATTEMPTS):
            answer = await self.model.complete(prompt, seed=attempt, max_tokens=ROLE_TOKENS, schema=schema)
            usage += answer.usage  # a reply that is refused is paid, too
            self.paid.append(answer.usage)
            try:
                fenced = FENCED.search(answer.text)
                reply = json.loads(fenced[1] if fenced else answer.text)
                jsonschema.validate(reply, schema)
                break
            except (ValueError, jsonschema.ValidationError) as exc:
                log.warning("role_reply_refused", role=role, key=key, attempt=attempt, error=str(exc)[:200])
                reply = None
        cost = self.price.cost(usage) if self.price else None
        saved = await asyncio.to_thread(
            self.store.save_side_call, self.job.id, key, reply, usage, cost=cost, token=self.token
        )
        return saved.reply
