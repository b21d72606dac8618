"""Sending a generation's request: until its first token it may be tried again, after that it is never paid twice.

Not here: what is asked (`openai_compatible`, `dialects`, `raw`), receiving (`generation`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
from openai import AsyncOpenAI
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from specgen.errors import ModelUnavailable
from specgen.llm import failures
from specgen.llm.generation import Generation
from specgen.llm.reading import Reader
from specgen.llm.sharing import Chunks, Sharing
from specgen.settings import ModelProfile

_CONNECT_S: Final = 10.0
_MAX_WAIT_S: Final = 30.0
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Call:
    """One request, ready to be sent. ``raw``: to /v1/completions."""

    body: dict[str, Any]
    reader: Reader
    prompt_chars: int = 0
    prompt_tokens: int = 0  # where they are known before
    raw: bool = False
    shared: Hashable = None  # forks with an equal one may be one request


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Read once a process: it takes tens of milliseconds, in which no stream goes on."""
    return httpx2.create_ssl_context()


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
        http_client=openai.DefaultAsyncHttpxClient(trust_env=not local, limits=limits, verify=_certificates()),
    )


Prepare = Callable[[], Awaitable[Call]]
"""Makes the request; it may ask the server (for token ids) and is tried again with it."""


class Sender:
    """Sends requests for one client."""

    def __init__(self, profile: ModelProfile, client: AsyncOpenAI) -> None:
        self._profile = profile
        self._client = client
        self._sharing = Sharing(self._free_slots)

    async def begin(self, client: AsyncOpenAI, prepare: Prepare) -> Generation:
        """Send until a first token arrives. Raises ModelAccessError or ModelUnavailable."""
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

    async def _attempt(self, client: AsyncOpenAI, prepare: Prepare) -> Generation:
        limit = self._profile.token_timeout_s
        async with asyncio.timeout(self._profile.first_token_timeout_s):
            call = await prepare()
            chunks = await self._send(client, call)
            stream = Generation(
                chunks,
                call.reader,
                prompt_chars=call.prompt_chars,
                prompt_tokens=call.prompt_tokens,
                token_timeout_s=limit,
                max_tokens=call.body.get("max_tokens") or call.body.get("max_completion_tokens") or 0,
            )
            try:
                await stream.begin()
            except BaseException:
                await stream.close()
                raise
        return stream

    async def _send(self, client: AsyncOpenAI, call: Call) -> Chunks:
        create = client.completions.create if call.raw else client.chat.completions.create
        if call.shared is None:
            chunks: Chunks = await create(stream=True, **call.body)
            return chunks

        async def send(seed: int, n: int) -> Chunks:
            together: Chunks = await create(stream=True, **{**call.body, "seed": seed, "n": n})
            return together

        share: Chunks = await self._sharing.open(call.shared, call.body["seed"], send)
        return share

    async def _free_slots(self) -> int:
        """Slots of a llama.cpp server that no request holds; 1 where it does not tell."""
        root = self._profile.base_url.rstrip("/").removesuffix("/v1")
        client = self._client.with_options(base_url=root)
        try:
            slots = (await client.get("/slots", cast_to=httpx2.Response)).json()
            return sum(not slot["is_processing"] for slot in slots)
        except (openai.OpenAIError, ValueError, KeyError, TypeError):
            return 1


_backoff = wait_random_exponential(multiplier=0.5, max=_MAX_WAIT_S)


def _wait(state: RetryCallState) -> float:
    """Exponential with jitter; at least what the server asks for in Retry-After, within reason."""
    seconds = float(_backoff(state))
    exc = state.outcome.exception() if state.outcome is not None else None
    if isinstance(exc, openai.APIStatusError):
        seconds = max(seconds, min(_asked_s(exc.response.headers.get("retry-after", "")), _MAX_WAIT_S))
    return seconds


def _asked_s(retry_after: str) -> float:
    """Retry-After in its two forms, seconds and a date; 0 where it is neither."""
    if retry_after.replace(".", "", 1).isdigit():
        return float(retry_after)
    try:
        return (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # TypeError: a date without a time zone
        return 0.0
