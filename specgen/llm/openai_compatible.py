"""The LLM client: `Model` of controller/ports over any OpenAI-compatible server, with the official SDK (§7).

Not here: what a server can do (`detection`), how a fork is asked for (`dialects`), receiving (`generation`). The key
goes into the SDK's client and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI

from specgen.errors import ModelAccessError
from specgen.llm import dialects, failures
from specgen.llm.ahead import Ahead
from specgen.llm.base import Capabilities
from specgen.llm.generation import Generation
from specgen.llm.raw import Ids, RawPrompts
from specgen.llm.reading import ForkReader, MainReader, Reader
from specgen.llm.sending import Call, Prepare, Sender, make_client
from specgen.llm.tokens import Tokens
from specgen.settings import ModelProfile
from specgen.types import Json, Prompt, Usage


@dataclass(frozen=True)
class Completion:
    """A whole answer to a side question (a search algorithm's role)."""

    text: str
    usage: Usage
    finish_reason: str


def template_options(profile: ModelProfile) -> dict[str, Any]:
    """What the profile gives to the chat template."""
    kwargs = profile.extra_body.get("chat_template_kwargs")
    return {"chat_template_kwargs": kwargs} if kwargs else {}


class OpenAICompatible:
    """A reasoning LLM behind an OpenAI-compatible API. Belongs to one event loop; close it with `aclose`."""

    def __init__(self, profile: ModelProfile, capabilities: Capabilities) -> None:
        self._profile = profile
        self._capabilities = capabilities
        self._client = make_client(profile, reuse=capabilities.server != "llamacpp")
        self._forks = self._client.with_options(base_url=_fork_url(profile, capabilities))
        self._sender = Sender(profile, self._client)
        alone = profile.first_fork_ahead
        self._ahead = Ahead() if alone or (alone is None and capabilities.dialect in dialects.FIRST_AHEAD) else None
        self._raw: RawPrompts | None = None
        if capabilities.dialect == "completions" and capabilities.can_fork:
            tokens = Tokens(self._client, capabilities.server, capabilities.model)
            self._raw = RawPrompts(tokens, capabilities.server, template_options(profile))

    @property
    def can_fork(self) -> bool:
        """Can it continue from a reasoning prefix? ``capabilities.why_not`` tells the user why not."""
        return self._capabilities.can_fork

    @property
    def capabilities(self) -> Capabilities:
        """What was detected, or configured."""
        return self._capabilities

    def main(self, prompt: Prompt, *, seed: int, max_tokens: int) -> AbstractAsyncContextManager[Generation]:
        """The main generation: reasons, then answers.

        Entering sends the request and waits for the first token; what fails before it is retried (429, 5xx, a lost
        connection). Raises ModelAccessError (key, model, refused request) or ModelUnavailable. Leaving closes the
        stream at the server.
        """
        raw = self._raw
        if raw is not None:
            return self._generation(lambda: self._by_ids(raw.main(prompt), seed, max_tokens))
        extra = {"thinking": {"type": "enabled"}} if self._capabilities.dialect == "deepseek" else {}
        request = dialects.Request(dialects.messages(prompt), extra)
        return self._generation(lambda: self._chat(request, self._main_reader(), seed, max_tokens))

    def fork(
        self, prompt: Prompt, prefix: str, *, seed: int, max_tokens: int
    ) -> AbstractAsyncContextManager[Generation]:
        """A non-reasoning generation on P ⊕ π; its content starts inside an opened ```python block.

        Give each of K forks another seed, or they repeat each other. Raises as `main`; ModelAccessError where the
        server cannot be forked.
        """
        dialect, raw = self._capabilities.dialect, self._raw
        shared = (prompt, prefix, max_tokens) if self._capabilities.server == "llamacpp" else None
        if raw is not None:
            return self._generation(
                lambda: self._by_ids(raw.fork(prompt, prefix), seed, max_tokens, shared), fork_of=(prompt, prefix)
            )
        build = dialects.FORKS.get(dialect)
        if build is None or not self.can_fork:
            raise ModelAccessError(f"no forks: {self._capabilities.why_not or dialect}", "run without speculation")
        reasoning = dialects.FORK_REASONING.get(dialect, "reasoning")
        request = build(prompt, prefix, self._capabilities)
        return self._generation(
            lambda: self._chat(request, ForkReader(reasoning), seed, max_tokens, shared), self._forks, (prompt, prefix)
        )

    async def complete(
        self, prompt: Prompt, *, seed: int, max_tokens: int, schema: Mapping[str, Json] | None = None
    ) -> Completion:
        """A side question, answered as a whole. ``schema``: ask for JSON of that JSON schema (servers may not obey).
        Raises as `main`."""
        extra: dict[str, Any] = {}
        if schema is not None:
            form = {"name": "answer", "schema": dict(schema)}
            extra["response_format"] = {"type": "json_schema", "json_schema": form}
        request = dialects.Request(dialects.messages(prompt), extra)
        async with self._generation(lambda: self._chat(request, self._main_reader(), seed, max_tokens)) as stream:
            text = "".join([delta.text async for delta in stream if delta.kind == "content"])
            return Completion(text, stream.usage, stream.finish_reason)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _main_reader(self) -> Reader:
        return MainReader(opened=self._capabilities.opened)

    @asynccontextmanager
    async def _generation(
        self, prepare: Prepare, client: AsyncOpenAI | None = None, fork_of: Hashable = None
    ) -> AsyncIterator[Generation]:
        async with self._ahead.turn(fork_of) if self._ahead and fork_of else nullcontext():
            stream = await self._sender.begin(client or self._client, prepare)
        try:
            yield stream
        finally:
            await stream.close()

    async def _chat(
        self, request: dialects.Request, reader: Reader, seed: int, max_tokens: int, shared: Hashable = None
    ) -> Call:
        body = self._body(request.extra, request.stop, seed, max_tokens)
        return Call({"messages": request.messages, **body}, reader, _chars(request.messages), shared=shared)

    async def _by_ids(self, prompt: Awaitable[Ids], seed: int, max_tokens: int, shared: Hashable = None) -> Call:
        try:
            made = await prompt
        except ValueError as exc:
            where = failures.shown_url(self._profile.base_url)
            raise ModelAccessError(f"{where} does not tokenise: {exc}", "set another dialect") from None
        body = self._body(made.extra, made.stop, seed, max_tokens)
        body["extra_body"].pop("chat_template_kwargs", None)  # P is rendered already
        return Call(
            {"prompt": made.prompt, **body}, made.reader, prompt_tokens=len(made.prompt), raw=True, shared=shared
        )

    def _body(self, extra: Mapping[str, Any], stop: tuple[str, ...], seed: int, max_tokens: int) -> dict[str, Any]:
        openai_itself = urlsplit(self._profile.base_url).hostname == "api.openai.com"
        figures = dialects.FIGURES.get(self._capabilities.server, {})
        body: dict[str, Any] = {
            "model": self._capabilities.model,
            "seed": seed,
            "max_completion_tokens" if openai_itself else "max_tokens": max_tokens,
            "temperature": self._profile.temperature,
            "stream_options": {"include_usage": True},
            "extra_body": dialects.merged(dialects.merged(figures, self._profile.extra_body), extra),
        }
        if stop:
            body["stop"] = list(stop)
        return body


def _fork_url(profile: ModelProfile, capabilities: Capabilities) -> str:
    """DeepSeek's own service takes prefix completion under `/beta` only."""
    parts = urlsplit(profile.base_url)
    if capabilities.dialect == "deepseek" and parts.hostname == "api.deepseek.com":
        return f"{parts.scheme}://{parts.netloc}/beta"
    return profile.base_url


def _chars(messages: list[dict[str, Any]]) -> int:
    """Characters that the server reads; reasoning given under two names counts once."""
    return sum(
        len(message["content"]) + len(message.get("reasoning_content") or message.get("reasoning") or "")
        for message in messages
    )
