"""Does a server's chat template keep a given reasoning, so that a fork continues what the main generation has cached?

Asked of the template itself, once, when the LLM is looked at: P and P ⊕ π are rendered by the server (vLLM's and
llama.cpp's tokenizer endpoints) and compared. Templates differ: some drop reasoning given in a message (QwQ, R1
distillations, DeepSeek V3.1), some mark the user's turn when thinking is off (GLM-4.6), some need it off (some Qwen).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import openai

from specgen.llm import dialects
from specgen.llm.base import Capabilities
from specgen.llm.tokens import THINK, Tokens
from specgen.types import Prompt

_PROMPT: Final = Prompt("", "Make it fast.")
_REASONING: Final = "A tile of 64.\n\nThen `x < 8`, unrolled."


@dataclass(frozen=True)
class Template:
    """What is known of it. ``None``: the server does not tell."""

    keeps: bool | None = None  # a reasoning given in a message stands in the text where the main generation wrote it
    thinking_off: bool = False  # it does with `enable_thinking: false`
    opened: bool = False  # P ends inside an opened <think>
    tokens: bool = False  # the server renders and tokenises


async def look(tokens: Tokens, kind: str, options: dict[str, Any]) -> Template:
    """Render and compare; ``options`` as every request has them (the profile's `chat_template_kwargs`). A server that
    refuses to render tells nothing."""
    try:
        plain = await tokens.rendered(dialects.messages(_PROMPT), **options)
        await tokens.encoded(_REASONING)
    except (openai.OpenAIError, ValueError):
        return Template()
    opened = plain.rstrip().endswith(THINK)
    for off in (False, True):
        if await _keeps(tokens, kind, plain, options, off=off):
            return Template(keeps=True, thinking_off=off, opened=opened, tokens=True)
    return Template(keeps=False, opened=opened, tokens=True)


async def _keeps(tokens: Tokens, kind: str, plain: str, options: dict[str, Any], *, off: bool) -> bool:
    server = Capabilities("llamacpp" if kind == "llamacpp" else "vllm", "", thinking_off=off)
    if off and server.dialect == "llamacpp":
        return False  # it is not asked for there: a non-empty content closes the reasoning
    request = dialects.FORKS[server.dialect](_PROMPT, _REASONING, server)
    extra = dialects.merged(options, {key: value for key, value in request.extra.items() if key != "cache_prompt"})
    try:
        forked = await tokens.rendered(request.messages, **extra)
    except (openai.OpenAIError, ValueError):
        return False
    if not forked.startswith(plain) or not forked.rstrip().endswith(dialects.PREFILL.rstrip()):
        return False
    before, found, after = forked[len(plain) :].partition(_REASONING)
    opening = "" if plain.rstrip().endswith(THINK) else THINK
    return bool(found) and before.strip() == opening and after.lstrip().startswith("</think>")
