"""The LLM client: `Model` of controller/ports over any OpenAI-compatible server, with the official SDK (§7).

Not here: what a server can do (`detection`), how a fork is asked for (`dialects`), receiving (`generation`). The key
goes into the SDK's client and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
from openai import AsyncOpenAI
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from specgen.errors import ModelAccessError, ModelUnavailable
from specgen.llm import dialects, failures
from specgen.llm.base import Capabilities
from specgen.llm.generation import Chunks, Generation
from specgen.llm.raw import Ids, RawPrompts
from specgen.llm.reading import ForkReader, MainReader, Reader
from specgen.llm.tokens import Tokens
from specgen.settings import ModelProfile
from specgen.types import Json, Prompt, Usage

_CONNECT_S: Final = 10.0
_MAX_WAIT_S: Final = 30.0
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Completion:
    """A whole answer to a side question (a search algorithm's role)."""

    text: str
    usage: Usage
    finish_reason: str


@dataclass(frozen=True)
class _Call:
    """One request, ready to be sent. ``raw``: to /v1/completions."""

    body: dict[str, Any]
    reader: Reader
    prompt_chars: int = 0
    prompt_tokens: int = 0  # where they are known before
    raw: bool = False


def make_client(profile: ModelProfile, *, timeout_s: float | None = None, reuse: bool = True) -> AsyncOpenAI:
    """An SDK client that retries nothing by itself: its retry would pay a whole generation again.

    ``timeout_s`` limits reading; None leaves that to the generation. A server on this machine is never asked through
    a proxy. ``reuse``: of connections; llama.cpp closes some that it called kept alive.
    """
    local = urlsplit(profile.base_url).hostname in _LOOPBACK
    limits = openai.DEFAULT_CONNECTION_LIMITS if reuse else httpx2.Limits(max_keepalive_connections=0)
    return AsyncOpenAI(
        base_url=profile.base_url,
        api_key=profile.api_key.get_secret_value() or "none",
        max_retries=0,
        timeout=openai.Timeout(timeout_s, connect=_CONNECT_S),
        http_client=openai.DefaultAsyncHttpxClient(trust_env=not local, limits=limits),
    )


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
        if raw is not None:
            return self._generation(lambda: self._by_ids(raw.fork(prompt, prefix), seed, max_tokens))
        build = dialects.FORKS.get(dialect)
        if build is None or not self.can_fork:
            raise ModelAccessError(f"no forks: {self._capabilities.why_not or dialect}", "run without speculation")
        reasoning = dialects.FORK_REASONING.get(dialect, "reasoning")
        request = build(prompt, prefix, self._capabilities)
        return self._generation(lambda: self._chat(request, ForkReader(reasoning), seed, max_tokens), self._forks)

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
        self, prepare: Callable[[], Awaitable[_Call]], client: AsyncOpenAI | None = None
    ) -> AsyncIterator[Generation]:
        stream = await self._begin(client or self._client, prepare)
        try:
            yield stream
        finally:
            await stream.close()

    async def _begin(self, client: AsyncOpenAI, prepare: Callable[[], Awaitable[_Call]]) -> Generation:
        """Send until a first token arrives. Nothing received is ever paid twice."""
        profile = self._profile
        retrying = AsyncRetrying(
            stop=stop_after_attempt(max(0, profile.retries) + 1),
            wait=_wait,
            retry=retry_if_exception(failures.retryable),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._attempt(client, prepare)
        except TimeoutError:
            limit = f"{profile.first_token_timeout_s:g} s"
            raise ModelUnavailable(f"{failures.shown_url(profile.base_url)}: no first token within {limit}") from None
        except openai.APIStatusError as exc:
            if failures.retryable(exc):
                raise failures.unavailable(exc, profile) from None
            raise failures.access_error(exc, profile) from None
        except (openai.OpenAIError, failures.BrokenEarly) as exc:
            raise failures.unavailable(exc, profile) from None
        raise AssertionError("tenacity ended without a result or an exception")

    async def _attempt(self, client: AsyncOpenAI, prepare: Callable[[], Awaitable[_Call]]) -> Generation:
        limit = self._profile.token_timeout_s
        async with asyncio.timeout(self._profile.first_token_timeout_s):
            call = await prepare()
            create = client.completions.create if call.raw else client.chat.completions.create
            chunks: Chunks = await create(stream=True, **call.body)
            stream = Generation(
                chunks,
                call.reader,
                prompt_chars=call.prompt_chars,
                prompt_tokens=call.prompt_tokens,
                token_timeout_s=limit,
            )
            try:
                await stream.begin()
            except BaseException:
                await stream.close()
                raise
        return stream

    async def _chat(self, request: dialects.Request, reader: Reader, seed: int, max_tokens: int) -> _Call:
        body = self._body(request.extra, request.stop, seed, max_tokens)
        return _Call({"messages": request.messages, **body}, reader, _chars(request.messages))

    async def _by_ids(self, prompt: Awaitable[Ids], seed: int, max_tokens: int) -> _Call:
        try:
            made = await prompt
        except ValueError as exc:
            where = failures.shown_url(self._profile.base_url)
            raise ModelAccessError(f"{where} does not tokenise: {exc}", "set another dialect") from None
        body = self._body(made.extra, made.stop, seed, max_tokens)
        body["extra_body"].pop("chat_template_kwargs", None)  # P is rendered already
        return _Call({"prompt": made.prompt, **body}, made.reader, prompt_tokens=len(made.prompt), raw=True)

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


_backoff = wait_random_exponential(multiplier=0.5, max=_MAX_WAIT_S)


def _wait(state: RetryCallState) -> float:
    """Exponential with jitter; at least what the server asks for in Retry-After, within reason."""
    seconds = float(_backoff(state))
    exc = state.outcome.exception() if state.outcome is not None else None
    if isinstance(exc, openai.APIStatusError):
        asked = exc.response.headers.get("retry-after", "")
        if asked.replace(".", "", 1).isdigit():
            seconds = max(seconds, min(float(asked), _MAX_WAIT_S))
    return seconds
