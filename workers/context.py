"""What a search algorithm may use while it composes a prompt: `specgen.search.Context` for one job.

Renders templates (and remembers which), and asks LLM roles for JSON: checked against a schema, asked again once,
stored under its key before it is used, so that it is never paid twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import jsonschema
import structlog
from pydantic import TypeAdapter

from specgen.errors import ContextTooLong
from specgen.llm import OpenAICompatible
from specgen.prompts import TRIMS, CpuFacts, GpuFacts, Rendered, Renderer, cpu_facts, described
from specgen.scheduler.pool import PoolView
from specgen.search import Evaluated, History
from specgen.settings import ModelProfile, Price
from specgen.store import EvaluatedRecord, JobRecord, Store
from specgen.types import Json, Prompt, Usage

FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n```", re.DOTALL)
ROLE_TOKENS = 8_192
CHARS_PER_TOKEN = 3  # of code, on the safe side
MARGIN_TOKENS = 512  # for the system prompt and what a chat template adds
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
            if backend == "cpu":
                return TypeAdapter(CpuFacts).validate_python(facts)
            return described(TypeAdapter(GpuFacts).validate_python(facts))
    return cpu_facts() if backend == "cpu" else GpuFacts("unknown")


@dataclass
class Models:
    """The job's LLM, and those of roles that the profile asks elsewhere: connected to when they are first asked."""

    profile: ModelProfile
    main: OpenAICompatible
    connect: Callable[[ModelProfile], Awaitable[OpenAICompatible]]
    _roles: dict[str, OpenAICompatible] = field(default_factory=dict)

    async def of(self, role: str) -> OpenAICompatible:
        """Whom that role asks."""
        own = self.profile.roles.get(role)
        if own is None or not (own.model or own.effort):
            return self.main
        if role not in self._roles:
            body = self.profile.extra_body | ({"reasoning_effort": own.effort} if own.effort else {})
            changed = {"model": own.model or self.profile.model, "extra_body": body}
            self._roles[role] = await self.connect(self.profile.model_copy(update=changed))
        return self._roles[role]

    async def aclose(self) -> None:
        """All connections."""
        for model in (self.main, *self._roles.values()):
            await model.aclose()


@lru_cache(maxsize=32)
def renderer(prompt_dir: str) -> Renderer:
    """Kept by the process: compiling templates holds up its event loop. Files that change are read again."""
    return Renderer(prompt_dir or None)


@dataclass
class JobContext:
    """`Context` over the store and the job's models. ``trim``: how much prompts leave out at least, from 0 (nothing) to
    ``TRIMS - 1``; more, where the profile says what the LLM takes and it would not fit."""

    job: JobRecord
    store: Store
    models: Models
    history: History
    token: int
    device: CpuFacts | GpuFacts
    profile: ModelProfile
    # what roles were asked, and its price, added to as it happens
    paid: list[tuple[Usage, Price | None]] = field(default_factory=list)
    trim: int = 0
    hashes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._renderer = renderer(self.job.spec.prompt_dir)

    def render(self, template: str, **variables: object) -> str:
        """A template with ``problem``, ``device`` and ``trim`` given already."""
        return self._render(template, self.job.spec.max_tokens, variables)

    def _render(self, template: str, answer_tokens: int, variables: Mapping[str, object]) -> str:
        """The first, from ``trim`` on, that leaves room for the answer; the tightest where none does."""
        room = (self.profile.context_tokens or sys.maxsize) - answer_tokens - MARGIN_TOKENS
        for level in range(self.trim, TRIMS):
            text, digest = self._made(template, level, variables)
            if (tokens := len(text) // CHARS_PER_TOKEN) <= room:
                break
        if level > self.trim or tokens > room:
            told = {"template": template, "trim": level, "tokens": tokens, "room": room, "fits": tokens <= room}
            log.warning("prompt_trimmed", job_id=self.job.id, **told)
        self.hashes.append(digest)
        return text

    def _made(self, template: str, trim: int, variables: Mapping[str, object]) -> Rendered:
        given = {"problem": self.job.spec.problem, "device": self.device, "trim": trim}
        return self._renderer.render(template, **{**given, **variables})

    def stamped(self, prompt: Prompt) -> Prompt:
        """The prompt with the hash of every template that was rendered for it."""
        return replace(prompt, template_hash=hashlib.sha256("".join(self.hashes).encode()).hexdigest()[:16])

    async def ask(self, role: str, key: str, template: str, schema: Mapping[str, Json], **variables: object) -> Json:
        """A role's JSON reply; None where none fits the schema, or where the question is too long for the LLM however
        it is trimmed. Memoised by ``key`` in the store."""
        system = self.render("shared/role.md.j2", role=role)
        # rendered also where the reply is known: the prompt's hash must not depend on when the role was asked
        prompt = Prompt(system, self._render(template, ROLE_TOKENS, variables))
        memo = await asyncio.to_thread(self.store.side_call, self.job.id, key)
        if memo is not None:
            return memo.reply
        while True:
            try:
                return await self._asked(role, key, prompt, schema)
            except ContextTooLong as exc:
                log.warning("role_prompt_too_long", role=role, key=key, error=exc.message)
            texts = (self._made(template, trim, variables).text for trim in range(TRIMS))
            shorter = next((text for text in texts if len(text) < len(prompt.user)), None)
            if shorter is None:
                return None
            prompt = replace(prompt, user=shorter)

    async def _asked(self, role: str, key: str, prompt: Prompt, schema: Mapping[str, Json]) -> Json:
        """Asked, and asked again once where the reply does not fit."""
        model = await self.models.of(role)
        for attempt in range(ROLE_ATTEMPTS):
            under = key if attempt == ROLE_ATTEMPTS - 1 else f"{key}{REFUSED}{attempt}"
            if await asyncio.to_thread(self.store.side_call, self.job.id, under) is not None:
                continue  # asked, and refused, before a crash
            answer = await model.complete(prompt, seed=attempt, max_tokens=ROLE_TOKENS, schema=schema)
            self.paid.append((answer.usage, self._price(role)))
            reply = parsed(answer.text, schema)
            if not isinstance(reply, Refusal):
                return await self._save(role, key, reply, answer.usage)
            log.warning("role_reply_refused", role=role, key=key, attempt=attempt, error=reply.why)
            await self._save(role, under, None, answer.usage)
        return None

    async def _save(self, role: str, key: str, reply: Json, usage: Usage) -> Json:
        """Before it is used: what was paid is known, whatever happens next."""
        price = self._price(role)
        cost = price.cost(usage) if price else None
        saved = await asyncio.to_thread(
            self.store.save_side_call, self.job.id, key, reply, usage, cost=cost, token=self.token
        )
        return saved.reply

    def _price(self, role: str) -> Price | None:
        own = self.profile.roles.get(role)
        return own.price if own and own.price else self.profile.price


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
