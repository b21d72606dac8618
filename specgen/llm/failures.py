"""What an LLM server's failures mean: the user's (ModelAccessError), or the server's (ModelUnavailable).

Every message that leaves here is one line and free of the key, even where a server repeats it. Exceptions of the SDK
are not chained: their texts are the server's.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

import openai

from specgen.errors import ContextTooLong, ModelAccessError, ModelUnavailable
from specgen.settings import ModelProfile

_LENGTH: Final = 300
_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:length|size|window)|"
    r"prompt is too long|too many (?:input )?tokens|max_model_len",
    re.IGNORECASE,
)
CONTEXT_HINT: Final = "fewer max_tokens, a shorter problem, or context_tokens in the LLM profile"


def shown_url(url: str) -> str:
    """The address without user, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def readable(exc: Exception, profile: ModelProfile) -> str:
    """The failure in one line, without the key."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    key = profile.api_key.get_secret_value()
    for secret in {key, key.strip()}:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text[:_LENGTH]


def retryable(exc: BaseException) -> bool:
    """May the same request succeed a little later? Connection refused or lost, 408, 409, 429, 5xx."""
    if isinstance(exc, openai.APIStatusError):
        return exc.status_code in (408, 409, 429) or exc.status_code >= 500
    return isinstance(exc, openai.APIConnectionError | BrokenEarly)


class BrokenEarly(Exception):
    """A stream ended or broke before its first token."""


def access_error(exc: openai.APIStatusError, profile: ModelProfile) -> ModelAccessError:
    """The configuration's fault: key, model name, or a request that this server refuses."""
    where = shown_url(profile.base_url)
    said = readable(exc, profile)
    if exc.status_code in (401, 403):
        return ModelAccessError(f"{where} refuses the API key ({exc.status_code})", "set api_key of the LLM profile")
    if exc.status_code == 402:
        return ModelAccessError(f"{where} wants payment: {said}", "check the account's balance")
    if exc.status_code == 404:
        return ModelAccessError(
            f"{where} does not know model {profile.model!r}, or the path: {said}", "check base_url and model"
        )
    if exc.status_code in (400, 413, 422) and _TOO_LONG.search(f"{exc.code} {exc}"):
        return ContextTooLong(f"{where}: the prompt is too long for the model: {said}", CONTEXT_HINT)
    return ModelAccessError(f"{where} refuses the request: {said}", "check the LLM profile's dialect and model")


def unavailable(exc: BaseException, profile: ModelProfile) -> ModelUnavailable:
    """The server's fault."""
    said = readable(exc, profile) if isinstance(exc, Exception) else type(exc).__name__
    return ModelUnavailable(f"{shown_url(profile.base_url)}: {said}")
