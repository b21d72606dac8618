"""A real HTTP server that says what a test tells it to: the behaviours of LLM servers, one by one.

Each POST takes the next script: a list of steps. It records what it was asked and when a client went away.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(frozen=True)
class Status:
    """Answer with an error instead of a stream."""

    code: int
    body: dict[str, Any] = field(default_factory=lambda: {"error": {"message": "no"}})
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Send nothing for that long."""

    seconds: float


class Break:
    """Drop the connection in the middle of the body."""


class Raw(str):
    """Bytes on the wire as they are."""

    __slots__ = ()


Step = dict[str, Any] | Pause | Break | Raw | bytes
Script = Status | list[Step]


def chunk(finish: str | None = None, usage: dict[str, Any] | None = None, **delta: str) -> dict[str, Any]:
    """One event of a stream."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "x", "object": "chat.completion.chunk", "choices": choices, "usage": usage}


def piece(text: str, ids: list[int] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One event of a raw completion; ``ids`` as vLLM gives them."""
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None, "token_ids": ids}
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], **more}


def last(**usage: Any) -> dict[str, Any]:
    """The last event, with the usage."""
    return {"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": usage}


DONE = Raw("data: [DONE]\n\n")


class ScriptedServer:
    """The server's state; `url` is its base_url."""

    def __init__(self) -> None:
        self.url = ""
        self.scripts: list[Script] = []
        self.models: Any = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}
        self.models_status = 200
        self.key = ""  # empty: any
        self.template = ""  # a chat template: the server tokenises, a character a token
        self.slots: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.started = threading.Event()  # a stream's first byte is out
        self.left = threading.Event()  # a client went away
        self.left_at = 0.0  # time.monotonic() when a client was seen to be gone

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._chat, methods=["POST"]),
                Route("/beta/chat/completions", self._chat, methods=["POST"]),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                Route("/apply-template", self._apply, methods=["POST"]),
                Route("/slots", self._slots),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        given = request.headers.get("authorization", "")
        if self.key and given != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": f"Incorrect API key provided: {given}"}}, 401)
        return None

    async def _models(self, request: Request) -> Response:
        if isinstance(self.models, str):
            return Response(self.models, media_type="text/html")
        return self._refused(request) or JSONResponse(self.models, self.models_status)

    def _rendered(self, body: dict[str, Any]) -> str:
        """As vLLM and llama.cpp do: continued from the end of the last message's content."""
        last = body["messages"][-1]
        goes_on = last["role"] == "assistant"
        options = {"add_generation_prompt": not goes_on, **body.get("chat_template_kwargs", {})}
        text: str = jinja2.Template(self.template).render(messages=body["messages"], **options)
        return text[: text.rindex(last["content"].rstrip()) + len(last["content"])] if goes_on else text

    async def _tokenize(self, request: Request) -> Response:
        if not self.template:
            return JSONResponse({"error": "no such path"}, 404)
        body = await request.json()
        text = self._rendered(body) if "messages" in body else body.get("prompt", body.get("content"))
        return JSONResponse({"tokens": [ord(letter) for letter in text]})

    async def _detokenize(self, request: Request) -> Response:
        text = "".join(map(chr, (await request.json())["tokens"]))
        return JSONResponse({"prompt": text, "content": text})

    async def _apply(self, request: Request) -> Response:
        if not self.template:
            return JSONResponse({"error": "no such path"}, 404)
        return JSONResponse({"prompt": self._rendered(await request.json())})

    async def _slots(self, request: Request) -> Response:
        return JSONResponse(self.slots)

    async def _chat(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        self.bodies.append(await request.json())
        script = self.scripts.pop(0)
        if isinstance(script, Status):
            return JSONResponse(script.body, script.code, script.headers)
        return StreamingResponse(self._stream(script), media_type="text/event-stream")

    async def _stream(self, script: list[Step]) -> AsyncIterator[str | bytes]:
        try:
            for step in script:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Break):
                    raise ConnectionAbortedError("as scripted")
                else:
                    yield step if isinstance(step, Raw | bytes) else f"data: {json.dumps(step)}\n\n"
                    self.started.set()
        except asyncio.CancelledError:
            self.left_at = time.monotonic()
            self.left.set()
            raise


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    """The server in a thread of its own, on a free port of this machine."""
    state = ScriptedServer()
    config = uvicorn.Config(state.app(), host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    state.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    try:
        yield state
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(timeout=10)
