"""The LLM client: `Model` of controller/ports over any OpenAI-compatible server, with the official SDK (§7).

Not here: what a server can do (`detection`), how a fork is asked for (`dialects`), receiving (`generation`). The key
goes into the SDK's client and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from specgen.errors import ModelAccessError, ModelUnavailable
from specgen.llm import dialects, failures
from specgen.llm.base import Capabilities
from specgen.llm.generation import Generation, Reader
from specgen.settings import ModelProfile
from specgen.types import Json, Prompt, Usage

_CONNECT_S: Final = 10.0
_MAX_WAIT_S: Final = 30.0
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_main_reader: Final = partial(Reader, fork=False)


@dataclass(frozen=True)
class Completion:
    """A whole answer to a side question (a search algorithm's role)."""

    text: str
    usage: Usage
    finish_reason: str


def make_client(profile: ModelProfile, *, timeout_s: float | None = None) -> AsyncOpenAI:
    """An SDK client that retries nothing by itself: its retry would pay a whole generation again.

    ``timeout_s`` limits reading; None leaves that to the generation. A server on this machine is never asked through
    a proxy.
    """
    local = urlsplit(profile.base_url).hostname in _LOOPBACK
    return AsyncOpenAI(
        base_url=profile.base_url,
        api_key=profile.api_key.get_secret_value() or "none",
        max_retries=0,
        timeout=openai.Timeout(timeout_s, connect=_CONNECT_S),
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if local else None,
    )


class OpenAICompatible:
    """A reasoning LLM behind an OpenAI-compatible API. Belongs to one event loop; close it with `aclose`."""

    def __init__(self, profile: ModelProfile, capabilities: Capabilities) -> None:
        self._profile = profile
        self._capabilities = capabilities
        self._client = make_client(profile)
        self._forks = self._client.with_options(base_url=_fork_url(profile, capabilities))

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
        extra = {"thinking": {"type": "enabled"}} if self._capabilities.dialect == "deepseek" else {}
        request = dialects.Request(dialects.messages(prompt), extra)
        return self._generation(self._client, request, _main_reader, seed=seed, max_tokens=max_tokens)

    def fork(
        self, prompt: Prompt, prefix: str, *, seed: int, max_tokens: int
    ) -> AbstractAsyncContextManager[Generation]:
        """A non-reasoning generation on P ⊕ π; its content starts inside an opened ```python block.

        Give each of K forks another seed, or they repeat each other. Raises as `main`; ModelAccessError where the
        server cannot be forked.
        """
        dialect = self._capabilities.dialect
        build = dialects.FORKS.get(dialect)
        if build is None or not self.can_fork:
            raise ModelAccessError(f"no forks: {self._capabilities.why_not or dialect}", "run without speculation")
        reader = partial(Reader, fork=True, reasoning_is_content=dialect in dialects.READS_REASONING_AS_CONTENT)
        request = build(prompt, prefix, self._capabilities.model)
        return self._generation(self._forks, request, reader, seed=seed, max_tokens=max_tokens)

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
        async with self._generation(self._client, request, _main_reader, seed=seed, max_tokens=max_tokens) as stream:
            text = "".join([delta.text async for delta in stream if delta.kind == "content"])
            return Completion(text, stream.usage, stream.finish_reason)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    @asynccontextmanager
    async def _generation(
        self,
        client: AsyncOpenAI,
        request: dialects.Request,
        reader: Callable[[], Reader],
        *,
        seed: int,
        max_tokens: int,
    ) -> AsyncIterator[Generation]:
        body = self._body(request, seed=seed, max_tokens=max_tokens)
        stream = await self._begin(client, body, reader, prompt_chars=_chars(request.messages))
        try:
            yield stream
        finally:
            await stream.close()

    async def _begin(
        self, client: AsyncOpenAI, body: dict[str, Any], reader: Callable[[], Reader], *, prompt_chars: int
    ) -> Generation:
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
                    return await self._attempt(client, body, reader, prompt_chars)
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

    async def _attempt(
        self, client: AsyncOpenAI, body: dict[str, Any], reader: Callable[[], Reader], prompt_chars: int
    ) -> Generation:
        limit = self._profile.token_timeout_s
        async with asyncio.timeout(self._profile.first_token_timeout_s):
            chunks = await client.chat.completions.create(stream=True, **body)
            stream = Generation(chunks, reader(), prompt_chars=prompt_chars, token_timeout_s=limit)
            try:
                await stream.begin()
            except BaseException:
                await stream.close()
                raise
        return stream

    def _body(self, request: dialects.Request, *, seed: int, max_tokens: int) -> dict[str, Any]:
        openai_itself = urlsplit(self._profile.base_url).hostname == "api.openai.com"
        body: dict[str, Any] = {
            "model": self._capabilities.model,
            "messages": request.messages,
            "seed": seed,
            "max_completion_tokens" if openai_itself else "max_tokens": max_tokens,
            "temperature": self._profile.temperature,
            "stream_options": {"include_usage": True},
            "extra_body": dict(request.extra),
        }
        if request.stop:
            body["stop"] = list(request.stop)
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
