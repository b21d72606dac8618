"""Generations by token ids: `/v1/completions` of vLLM and llama.cpp, for models whose chat template drops reasoning.

P is rendered once by the server; the main generation's ids are kept as they come (`tokens.Trace`); a fork is those ids
up to the prefix, then the ids of `</think>` and of the opened block. Exact for every model that reasons inside
`<think>`. Not here: sending (`openai_compatible`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from specgen.llm import dialects
from specgen.llm.reading import ForkReader, RawMainReader, Reader
from specgen.llm.tokens import THINK, Tokens, Trace
from specgen.types import Prompt

_KEPT: Final = 4  # traces: of the main generations whose forks may still come
_CLOSE: Final = "</think>\n\n" + dialects.PREFILL
_TOLD: Final[dict[str, dict[str, Any]]] = {
    "vllm": {"return_token_ids": True, "skip_special_tokens": False, "spaces_between_special_tokens": False},
    "llamacpp": {"return_tokens": True, "verbose": True, "preserved_tokens": [THINK, "</think>"]},
}
"""What makes each server tell ids, and show the markers as text."""


@dataclass(frozen=True)
class Ids:
    """A prompt by ids, what goes beside it into the body, and who reads the answer."""

    prompt: list[int]
    extra: dict[str, Any]
    reader: Reader
    stop: tuple[str, ...] = ()


class RawPrompts:
    """Main generations and forks as prompts by ids; one per client."""

    def __init__(self, tokens: Tokens, kind: str, options: dict[str, Any]) -> None:
        self._tokens = tokens
        self._kind = kind
        self._options = options  # of the chat template
        self._traces: OrderedDict[Prompt, Trace] = OrderedDict()
        self._closing: dict[str, list[int]] = {}

    async def main(self, prompt: Prompt) -> Ids:
        """P. Its trace replaces that of an earlier main generation on the same prompt."""
        known = self._traces.get(prompt)
        trace = await self._begun(prompt) if known is None else Trace(known.prompt_ids, opened=known.opened)
        self._keep(prompt, trace)
        return Ids(trace.prompt_ids, _TOLD[self._kind], RawMainReader(trace))

    async def fork(self, prompt: Prompt, prefix: str) -> Ids:
        """P ⊕ π and the opened block. A prefix that this client has not received is tokenised as text."""
        trace = self._traces.get(prompt)
        if trace is None:
            trace = await self._begun(prompt)
            self._keep(prompt, trace)
        inner, rest = await trace.ids(prefix, self._tokens)
        if not inner and not trace.opened:
            rest = THINK + (rest or "\n")
        close = _CLOSE if prefix.endswith("\n") else "\n" + _CLOSE
        ids = [*trace.prompt_ids, *inner, *await self._closed(rest, close)]
        return Ids(ids, {}, ForkReader("dropped"), (dialects.STOP,))

    async def _begun(self, prompt: Prompt) -> Trace:
        ids = await self._tokens.prompt(dialects.messages(prompt), **self._options)
        end = await self._tokens.decoded(ids[-8:])
        return Trace(ids, opened=end.rstrip().endswith(THINK))

    async def _closed(self, rest: str, close: str) -> list[int]:
        if rest:
            return await self._tokens.encoded(rest + close)
        if close not in self._closing:
            self._closing[close] = await self._tokens.encoded(close)
        return self._closing[close]

    def _keep(self, prompt: Prompt, trace: Trace) -> None:
        self._traces[prompt] = trace
        self._traces.move_to_end(prompt)
        while len(self._traces) > _KEPT:
            self._traces.popitem(last=False)
