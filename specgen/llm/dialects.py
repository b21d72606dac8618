"""How each kind of server is asked to continue from a reasoning prefix: P ⊕ π, then the kernel (§6.1).

One builder per dialect; each turns (prompt, π) into the messages and extra fields of a chat request whose answer
continues `PREFILL`. The text must be what the main generation has in the server's KV cache, else the prefix is computed
again. Not here: sending it. docs/llm.md says which servers these were tried on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from specgen.llm.base import Capabilities, Dialect
from specgen.types import Prompt

PREFILL: Final = "```python\n"
"""What a fork's answer continues: an opened code block, so that nothing but code comes next."""

STOP: Final = "\n```"
"""Ends a fork: the closing fence, at the beginning of a line (not a fence inside a docstring's line)."""


@dataclass(frozen=True)
class Request:
    """The part of a chat request that differs between dialects. ``extra`` goes into the body as it is."""

    messages: list[dict[str, Any]]
    extra: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()


def messages(prompt: Prompt) -> list[dict[str, Any]]:
    """P as chat messages."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.user}]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two bodies in one; where both have an object, one of both (`chat_template_kwargs`), else the second's value."""
    out = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], Mapping) and isinstance(second[name], Mapping):
            out[name] = {**first[name], **second[name]}
    return out


def _deepseek(prompt: Prompt, prefix: str, _server: Capabilities) -> Request:
    """DeepSeek's prefix completion (under the base path `/beta`)."""
    assistant = {"role": "assistant", "content": PREFILL, "reasoning_content": prefix, "prefix": True}
    return Request([*messages(prompt), assistant], {"thinking": {"type": "enabled"}}, (STOP,))


def _specgen(prompt: Prompt, prefix: str, _server: Capabilities) -> Request:
    """The project's own server: the same message, without DeepSeek's switch."""
    assistant = {"role": "assistant", "content": PREFILL, "reasoning_content": prefix, "prefix": True}
    return Request([*messages(prompt), assistant], {}, (STOP,))


def _vllm(prompt: Prompt, prefix: str, server: Capabilities) -> Request:
    """vLLM: continue the last message. Both names of the reasoning field are sent: templates read one of them.

    Whether thinking is to be switched off for the template to close it before the content was asked (`probing`): some
    need it, GLM-4.6's would add a marker to the user's turn and miss the whole prefix.
    """
    assistant = {"role": "assistant", "reasoning": prefix, "reasoning_content": prefix, "content": PREFILL}
    extra: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    if server.thinking_off:
        extra["chat_template_kwargs"] = {"enable_thinking": False}
    return Request([*messages(prompt), assistant], extra, (STOP,))


def _llamacpp(prompt: Prompt, prefix: str, _server: Capabilities) -> Request:
    """llama.cpp: a trailing assistant message is continued where its content is not empty; the stream repeats π
    and the content first."""
    assistant = {"role": "assistant", "reasoning_content": prefix, "content": PREFILL}
    return Request([*messages(prompt), assistant], {"cache_prompt": True}, (STOP,))


def _sglang(prompt: Prompt, prefix: str, server: Capabilities) -> Request:
    """SGLang: of a last message that is continued only the content is taken, behind P with its generation prompt. So
    the reasoning goes into it as the model writes it; π has its tokens where the same text gives the same ones."""
    opened = "" if server.opened else "<think>\n"
    thought = f"{opened}{prefix.rstrip()}\n</think>\n\n"
    extra = {"continue_final_message": True, "separate_reasoning": False}
    return Request([*messages(prompt), {"role": "assistant", "content": thought + PREFILL}], extra, (STOP,))


def _openrouter(prompt: Prompt, prefix: str, _server: Capabilities) -> Request:
    """OpenRouter: a trailing assistant message is a prefill for the providers behind it that take one. Pin one of them
    (``extra_body = {provider = {…}}`` of the profile), or forks go elsewhere than the main generation's cache."""
    assistant = {"role": "assistant", "reasoning": prefix, "content": PREFILL}
    return Request([*messages(prompt), assistant], {}, (STOP,))


FORKS: Final[dict[Dialect, Callable[[Prompt, str, Capabilities], Request]]] = {
    "deepseek": _deepseek,
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "sglang": _sglang,
    "openrouter": _openrouter,
    "specgen": _specgen,
}
"""The dialects that can be forked."""

OWNERS: Final[dict[str, Dialect]] = {
    "specgen": "specgen",
    "vllm": "vllm",
    "llamacpp": "llamacpp",
    "deepseek": "deepseek",
    "sglang": "sglang",
}
"""`owned_by` in GET /v1/models -> dialect."""

ForkReasoning = Literal["content", "dropped", "reasoning"]
FORK_REASONING: Final[dict[Dialect, ForkReasoning]] = {"vllm": "content", "sglang": "content", "llamacpp": "dropped"}
"""What a fork's reasoning deltas are: a reasoning parser (vLLM, SGLang) may file the continuation there; llama.cpp
repeats π."""

FIRST_AHEAD: Final[frozenset[Dialect]] = frozenset({"deepseek", "openrouter"})
"""Where the first of K forks is sent alone (`ahead`), unless the profile says otherwise."""

BY_TOKENS: Final = ("vllm", "llamacpp")
"""Servers (`owned_by`) that take and give token ids: the dialect `completions`."""

FIGURES: Final[dict[str, dict[str, Any]]] = {
    "vllm": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "llamacpp": {"timings_per_token": True},
    "sglang": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "openrouter": {"usage": {"include": True}},
}
"""What makes a server (`owned_by`) tell its token counts with every chunk, so that a closed stream has them too."""


def why_not(dialect: Dialect, server: str) -> str:
    """Why a dialect cannot be forked, in one line; empty where it can."""
    if dialect in FORKS or (dialect == "completions" and server in BY_TOKENS):
        return ""
    name = f"{server!r}" if server else "this server"
    if dialect == "completions":
        return f"'completions' needs token ids, of vLLM or llama.cpp, not {name}; the job runs without speculation"
    return f"{name} offers no known way to continue from a reasoning prefix; the job runs without speculation"
