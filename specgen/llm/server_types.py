"""What the project's own model server is asked, and what a source of text answers.

The server (`specgen.llm.server`) knows HTTP, pacing, usage and the prefix cache; a *source* knows what to say.
Requests arrive as OpenAI-format JSON with the extensions by which real servers are asked for a fork (an assistant
message that carries reasoning and an opened code block), and are turned here into one frozen value, `Chat`.
Not here: HTTP, timing, any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

CHARS_PER_TOKEN = 4  # the usual rule of thumb for English and code; the server's only notion of a token
MAX_CHOICES = 64


def count_tokens(text: str) -> int:
    """Tokens of a piece of text: one for every four characters, a rest counts as one."""
    return -(-len(text) // CHARS_PER_TOKEN)


@dataclass(frozen=True)
class Piece:
    """A stretch of an answer. ``seconds`` after the one before it arrived when it was recorded; ``None``: by the rate.
    ``cut``: the answer ends here, but the model had not ended it."""

    kind: Literal["reasoning", "content"]
    text: str
    seconds: float | None = None
    cut: bool = False


class NoAnswer(LookupError):
    """A source has nothing to say to a request."""


@dataclass(frozen=True)
class Chat:
    """One request for one choice. ``prefix`` is π of a fork, ``opening`` the content that the answer continues."""

    conversation: tuple[tuple[str, str], ...]  # (role, text), without the prefilled assistant message
    seed: int
    thinking: bool = True
    fork: bool = False
    prefix: str = ""
    opening: str = ""
    json_reply: bool = False
    json_keys: tuple[str, ...] = ()  # of the object that the request's JSON schema describes

    @property
    def prompt(self) -> str:
        """All messages' texts in order: P in Algorithm 1."""
        return "\n\n".join(text for _, text in self.conversation)

    @property
    def rendered(self) -> str:
        """The conversation as a chat template would write it, up to where reasoning starts."""
        turns = "".join(f"<|{role}|>\n{text}\n" for role, text in self.conversation)
        return f"{turns}<|assistant|>\n<think>"

    @property
    def prefill(self) -> str:
        """All that the server reads before it writes: for a fork, P ⊕ π and the opening."""
        if not self.fork and self.thinking:
            return self.rendered
        return f"{self.rendered}{self.prefix}</think>{self.opening}"


class Source(Protocol):
    """Writes answers, one after another in a thread of the server's own. Must be quick (tens of milliseconds): a
    request waits for all that came before it."""

    model_id: str

    def answer(self, chat: Chat) -> list[Piece]:
        """The whole answer; the same for the same ``chat``. Reasoning pieces come before content pieces. Raises
        NoAnswer."""


# ------------------------------------------------------------------------------------------------ the wire


def _readable(text: str) -> str:
    """JSON may carry lone surrogates, which no encoder takes: they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


class _Loose(BaseModel):
    """Fields that this server does not know are accepted and ignored, as other servers do."""

    model_config = ConfigDict(extra="ignore")


class Part(_Loose):
    """One part of a message given as a list."""

    type: Literal["text"]
    text: str


class Message(_Loose):
    """A chat message; reasoning goes by either of the two names in use."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return _readable("".join(part.text for part in self.content))
        return _readable(self.content or "")

    @property
    def thought(self) -> str:
        """The reasoning that the message carries."""
        return _readable(self.reasoning_content or self.reasoning or "")


class StreamOptions(_Loose):
    """``include_usage`` asks for a last chunk with the usage."""

    include_usage: bool = False


class ChatBody(_Loose):
    """The body of POST /v1/chat/completions."""

    model: str = Field(min_length=1, max_length=200)
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    thinking: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and (len(stop) > 16 or "" in stop):
            raise ValueError("at most 16 stop sequences, none of them empty")
        return stop

    @model_validator(mode="after")
    def _continues_content(self) -> ChatBody:
        last = self.messages[-1]
        if last.role == "assistant" and not last.text:
            raise ValueError("an assistant message to be continued needs content, such as an opening code fence")
        if len(self.messages) == 1 and last.role == "assistant":
            raise ValueError("there is nothing before the assistant message")
        return self

    @property
    def limit(self) -> int | None:
        """The cap on generated tokens, reasoning included."""
        given = [value for value in (self.max_tokens, self.max_completion_tokens) if value is not None]
        return min(given) if given else None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop sequences; they are looked for in the content only."""
        if isinstance(self.stop, str):
            return (self.stop,) if self.stop else ()
        return tuple(self.stop or ())

    @property
    def wants_thinking(self) -> bool:
        """False where any of the switches in use turns reasoning off."""
        kwargs = self.chat_template_kwargs or {}
        switches = (self.enable_thinking, kwargs.get("enable_thinking"), kwargs.get("thinking"))
        disabled = (self.thinking or {}).get("type") == "disabled" or self.reasoning_effort == "none"
        return not disabled and False not in switches

    @property
    def json_keys(self) -> tuple[str, ...]:
        """The properties that a JSON schema in ``response_format`` names at its top."""
        schema = (self.response_format or {}).get("json_schema")
        inner = schema.get("schema") if isinstance(schema, dict) else None
        properties = inner.get("properties") if isinstance(inner, dict) else None
        return tuple(_readable(str(key)) for key in properties) if isinstance(properties, dict) else ()

    def chat(self, seed: int) -> Chat:
        """The request as a source sees it."""
        last = self.messages[-1]
        fork = last.role == "assistant"
        said = self.messages[:-1] if fork else self.messages
        opening, prefix = (last.text, last.thought) if fork else ("", "")
        if opening.startswith("<think>") and "</think>" in opening:
            prefix, _, opening = opening.removeprefix("<think>").partition("</think>")
            opening = opening.lstrip("\n")
        return Chat(
            conversation=tuple((message.role, message.text) for message in said),
            seed=seed,
            thinking=self.wants_thinking,
            fork=fork,
            prefix=prefix,
            opening=opening,
            json_reply=(self.response_format or {}).get("type") in ("json_object", "json_schema"),
            json_keys=self.json_keys,
        )
