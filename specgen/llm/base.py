"""What is known of an LLM server, and usage as servers report it. The protocols themselves are in controller/ports.

Not here: HTTP (`openai_compatible`), how a fork is asked for (`dialects`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from specgen.types import Usage

Dialect = Literal["deepseek", "vllm", "llamacpp", "completions", "sglang", "openrouter", "specgen", "generic"]

CHARS_PER_TOKEN: Final = 4
"""Where a server reports no usage, tokens are counted as characters / 4, rounded up."""


@dataclass(frozen=True)
class Capabilities:
    """What a server can do. ``why_not`` says in one line why it cannot be forked (empty where it can)."""

    dialect: Dialect
    model: str  # the name to send
    models: tuple[str, ...] = ()  # what the server offers; empty where it does not tell
    server: str = ""  # what it calls itself
    why_not: str = ""
    thinking_off: bool = False  # its template keeps a given reasoning only with `enable_thinking: false`
    opened: bool = False  # its template opens <think> in P: content begins inside it where no parser splits it

    @property
    def can_fork(self) -> bool:
        """Can it continue from a given reasoning prefix?"""
        return not self.why_not


def count_tokens(chars: int) -> int:
    """Tokens of a text of ``chars`` characters, as good as can be known without its tokenizer."""
    return -(-chars // CHARS_PER_TOKEN)


def read_usage(usage: Mapping[str, Any], timings: Mapping[str, Any] | None = None) -> Usage:
    """Usage as any of the known servers writes it.

    ``timings``: llama.cpp's, which it tells with every chunk.

    Cached tokens: `prompt_tokens_details.cached_tokens` (vLLM, SGLang, OpenAI, llama.cpp), `prompt_cache_hit_tokens`
    (DeepSeek), `cached_tokens` (Moonshot), else llama.cpp's `timings.cache_n`.
    """
    timings = _mapping(timings)
    prompt = _mapping(usage.get("prompt_tokens_details"))
    completion = _mapping(usage.get("completion_tokens_details"))
    return Usage(
        prompt_tokens=_first(
            usage.get("prompt_tokens"), _first(timings.get("cache_n")) + _first(timings.get("prompt_n"))
        ),
        cached_tokens=_first(
            prompt.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
            timings.get("cache_n"),
        ),
        reasoning_tokens=_first(completion.get("reasoning_tokens"), usage.get("reasoning_tokens")),
        completion_tokens=_first(usage.get("completion_tokens"), timings.get("predicted_n")),
        reported=True,
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(*values: object) -> int:
    """The first value that is a number above 0 (a server may fill one spelling with 0 or null and use another)."""
    for value in values:
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return int(value)
    return 0


_FACTOR: Final = 8  # tokenizers differ from 4 characters a token by less
_PROMPT_MORE: Final = 4096  # tokens that a template may add
_MADE_MORE: Final = 64


def believable(told: Usage, counted: Usage, most: int) -> Usage:
    """``told``, with what cannot be true replaced by what was ``counted`` here; then it is not `reported`.

    A prompt or an answer is neither eight times as long nor as short as it looks; where no reasoning was received there
    may be some that the server keeps to itself, up to ``most`` tokens in all. More cached tokens than the prompt has
    are none; more reasoning than was generated is not told.
    """
    prompt, made = counted.prompt_tokens, counted.completion_tokens
    most_made = made * _FACTOR + _MADE_MORE
    if not counted.reasoning_tokens:
        most_made = max(most_made, most)
    if prompt / _FACTOR <= told.prompt_tokens <= prompt * _FACTOR + _PROMPT_MORE:
        prompt = told.prompt_tokens
    if made / _FACTOR <= told.completion_tokens <= most_made:
        made = told.completion_tokens
    cached = told.cached_tokens if told.cached_tokens <= prompt else 0
    reasoning = told.reasoning_tokens if told.reasoning_tokens <= made else 0
    checked = Usage(prompt, cached, reasoning, made, reported=True)
    return checked if checked == told else replace(checked, reported=False)
