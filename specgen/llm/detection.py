"""Is the LLM usable as configured, and what can it do? Asked at submit time, before anything is paid (§5, step 1).

GET /v1/models, and on vLLM and llama.cpp what the chat template does (`probing`). Not here: generations. A
provider that hides its reasoning cannot be forked; that is said in `Capabilities.why_not`, not guessed around.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import httpx2
import openai

from specgen.errors import ModelAccessError, ModelUnreachable
from specgen.llm import dialects, failures, probing
from specgen.llm.base import Capabilities, Dialect
from specgen.llm.openai_compatible import OpenAICompatible, template_options
from specgen.llm.sending import make_client
from specgen.llm.tokens import Tokens
from specgen.settings import ModelProfile

_TIMEOUT_S: Final = 15.0
_SHOWN: Final = 12
_TEMPLATED: Final = ("vllm", "llamacpp", "completions")
_NO_API: Final = "base_url usually ends in /v1"


async def detect(profile: ModelProfile) -> Capabilities:
    """Ask the server for its models.

    Raises ModelAccessError, with one line and a hint, where the address is missing or unreachable, the key is refused,
    or the model is unknown (with the list of those that are known). Without a configured model the only one is taken.
    """
    if not profile.base_url:
        raise ModelAccessError("the LLM profile has no base_url", "set SPECGEN_LLM__<profile>__BASE_URL")
    try:
        scheme = httpx2.URL(profile.base_url).scheme
        _ = urlsplit(profile.base_url).port  # raises for one that cannot be
    except (httpx2.InvalidURL, ValueError) as exc:
        raise ModelAccessError(f"base_url {profile.base_url!r} is no address: {exc}", _NO_API) from None
    if scheme not in ("http", "https"):
        raise ModelAccessError(f"base_url {failures.shown_url(profile.base_url)} is no http(s) address", _NO_API)
    listed = await _models(profile)
    names = tuple(name for name, _ in listed)
    model = _choose(profile, names)
    owner = next((owner for name, owner in listed if name == model), "")
    host = urlsplit(profile.base_url).hostname or ""
    dialect: Dialect = _dialect(owner, host) if profile.dialect == "auto" else profile.dialect
    found = Capabilities(dialect, model, names, owner or host, dialects.why_not(dialect, owner or host))
    if host == "api.openai.com":
        reason = "OpenAI hides the reasoning of its models, so it cannot be continued; the job runs without speculation"
        return replace(found, why_not=reason)
    if dialect == "openrouter":
        return replace(found, server="openrouter")
    if dialect == "sglang":
        return replace(found, opened=profile.opens_think)
    return await _templated(profile, found) if dialect in _TEMPLATED else found


async def _templated(profile: ModelProfile, found: Capabilities) -> Capabilities:
    """With what the server's chat template makes of a given reasoning. One that drops it is gone around by token ids
    (``auto``), or told."""
    kind = found.server if found.server in dialects.BY_TOKENS else found.dialect
    client = make_client(profile, timeout_s=_TIMEOUT_S, reuse=kind != "llamacpp")
    try:
        template = await probing.look(Tokens(client, kind, found.model), kind, template_options(profile))
    finally:
        await client.close()
    found = replace(found, opened=template.opened)
    if found.dialect == "completions":
        if found.can_fork and not template.tokens:
            reason = f"{found.server!r} offers no /tokenize for 'completions'; the job runs without speculation"
            return replace(found, why_not=reason)
        return found
    if template.keeps is None:  # as a gateway that passes /v1 only
        return replace(found, thinking_off="qwen" in found.model.lower())
    if template.keeps:
        return replace(found, thinking_off=template.thinking_off)
    if profile.dialect == "auto":
        return replace(found, dialect="completions")
    reason = f"the chat template of {found.model!r} drops a given reasoning (dialect 'completions' goes around it)"
    return replace(found, why_not=f"{reason}; the job runs without speculation")


async def connect(profile: ModelProfile) -> OpenAICompatible:
    """`detect`, then the client."""
    return OpenAICompatible(profile, await detect(profile))


async def _models(profile: ModelProfile) -> list[tuple[str, str]]:
    """(name, owned_by) of each model; empty where the server has no such list."""
    where = failures.shown_url(profile.base_url)
    client = make_client(profile, timeout_s=_TIMEOUT_S)
    try:
        answer = (await client.get("/models", cast_to=httpx2.Response)).json()
    except openai.NotFoundError:
        return []
    except openai.APIConnectionError as exc:
        cause = exc.__cause__ if isinstance(exc.__cause__, Exception) else exc
        raise ModelUnreachable(
            f"cannot reach the LLM at {where}: {failures.readable(cause, profile)}",
            "check base_url, and that the server runs (`specgen model serve` starts the project's own)",
        ) from None
    except openai.APIStatusError as exc:
        if failures.retryable(exc):
            raise ModelUnreachable(f"the LLM at {where} answers {exc.status_code}", "try again later") from None
        raise failures.access_error(exc, profile) from None
    except (openai.OpenAIError, ValueError) as exc:
        said = failures.readable(exc, profile)
        raise ModelAccessError(f"{where} is no OpenAI-compatible API: {said}", _NO_API) from None
    finally:
        await client.close()
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        raise ModelAccessError(f"{where} is no OpenAI-compatible API", _NO_API)
    entries = [entry for entry in data if isinstance(entry, dict) and entry.get("id")]
    return [(str(entry["id"]), str(entry.get("owned_by") or "")) for entry in entries]


def _choose(profile: ModelProfile, names: tuple[str, ...]) -> str:
    offered = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    if not profile.model:
        if len(names) == 1:
            return names[0]
        raise ModelAccessError("the LLM profile names no model", f"it offers: {offered}" if names else "set model")
    if names and profile.model not in names:
        where = failures.shown_url(profile.base_url)
        raise ModelAccessError(f"{where} has no model {profile.model!r}", f"it offers: {offered}")
    return profile.model


def _dialect(owner: str, host: str) -> Dialect:
    if host == "deepseek.com" or host.endswith(".deepseek.com"):
        return "deepseek"
    if host == "openrouter.ai" or host.endswith(".openrouter.ai"):
        return "openrouter"
    return dialects.OWNERS.get(owner.lower(), "generic")
