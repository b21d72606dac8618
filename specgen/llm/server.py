"""The project's own model server: OpenAI-compatible HTTP on loopback, with reasoning, forks, cancel, ``n`` and usage.

It stands where a user's vLLM or paid API would stand, so that SpecGen can be run, tested and measured end to end
without a GPU and without paying. What it says comes from a *source*: here the synthetic one, which is always labelled
so. Default rates are the paper's (§3.1); one ``speed`` divides all times. See docs/model-server.md.

It is not an inference engine, and it is not hardened for the open network: it binds to loopback unless told otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specgen.errors import SpecGenError
from specgen.llm.hosting import Parser, serve_until_signal
from specgen.llm.replay import RecordedSource
from specgen.llm.server_books import Ledger, PrefixCache, SequenceWriter
from specgen.llm.server_stream import Choice, CompletionResponse, Exchange, Pace, limit
from specgen.llm.server_types import ChatBody, NoAnswer, Source, count_tokens
from specgen.llm.synthetic import MODEL_ID, SyntheticSource
from specgen.llm.synthetic.rates import RATES, TOKENS_PER_S

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024
CHOICE_STRIDE = 1_000_003  # choice i of a request with seed s is the answer to seed s + i * stride


@dataclass(frozen=True)
class ServerConfig:
    """How the server behaves, whatever its source.

    ``tokens_per_s``: Table 7 and §3.1 together imply about 33.5 for GLM-5.1 (23 700 tokens in 706.9 s).
    ``prefill_tokens_per_s``: 16k tokens in 740 ms, measured for an 8B-shaped model on one H200 (docs/model-server.md).
    """

    speed: float = 1.0
    tokens_per_s: float = 33.5
    prefill_tokens_per_s: float = 22_000.0
    chunk_ms: float = 20.0
    cache_tokens: int = 4_000_000
    api_key: str = ""

    def __post_init__(self) -> None:
        """Refuse rates that make no sense."""
        for name in ("speed", "tokens_per_s", "prefill_tokens_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        if self.chunk_ms < 0:
            raise ValueError("chunk_ms must not be negative")

    @property
    def pace(self) -> Pace:
        """The rates as streams use them."""
        return Pace(self.tokens_per_s, self.prefill_tokens_per_s, self.speed, self.chunk_ms / 1000)


class _Refused(Exception):
    """A request that is answered with an OpenAI-format error."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def _error(status: int, message: str, code: str) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status_code=status)


class _Api:
    """The endpoints, over one source, one cache and one ledger."""

    def __init__(self, source: Source, config: ServerConfig) -> None:
        self.source = source
        self.config = config
        self.ledger = Ledger()
        self.cache = PrefixCache(config.cache_tokens)
        self.started = time.monotonic()
        self._writing = ThreadPoolExecutor(1, "source")  # streams go on while an answer is being written

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        self._check_key(request)
        card = {"id": self.source.model_id, "object": "model", "created": 0, "owned_by": "specgen"}
        return JSONResponse({"object": "list", "data": [card]})

    async def stats(self, request: Request) -> Response:
        """GET /stats: the ledger, so that a client's accounting can be checked against the server's."""
        self._check_key(request)
        uptime = {"uptime_s": time.monotonic() - self.started, "model": self.source.model_id}
        return JSONResponse(self.ledger.as_dict() | uptime)

    async def health(self, _request: Request) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        self._check_key(request)
        body = await _read_body(request)
        if body.model != self.source.model_id:
            raise _Refused(404, f"the model `{body.model}` does not exist", "model_not_found")
        seed = secrets.randbits(48) if body.seed is None else body.seed
        self.ledger.requests += 1
        exchange = await self._exchange(body, seed)
        include = body.stream_options is not None and body.stream_options.include_usage
        return CompletionResponse(exchange, stream=body.stream, include_usage=include)

    async def _exchange(self, body: ChatBody, seed: int) -> Exchange:
        loop = asyncio.get_running_loop()
        arrived, prefill = loop.time(), body.chat(seed).prefill
        prompt, cached = count_tokens(prefill), self.cache.cached_tokens(prefill)
        self.ledger.tokens.prompt += prompt
        self.ledger.tokens.cached += cached
        choices = []
        for index in range(body.n):
            chat = body.chat(seed + index * CHOICE_STRIDE)
            try:
                answer = await loop.run_in_executor(self._writing, self.source.answer, chat)
            except NoAnswer as exc:
                raise _Refused(404, str(exc), "not_recorded") from exc
            pieces, reason = limit(answer, body.limit, body.stops)
            writer = SequenceWriter(self.cache)
            writer.add(prefill)
            choices.append(Choice(index, chat, pieces, reason, writer if chat.thinking and not chat.fork else None))
        return Exchange(self.source.model_id, choices, prompt, cached, self.config.pace, self.ledger, arrived)

    def _check_key(self, request: Request) -> None:
        if not self.config.api_key:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(), self.config.api_key.encode()):
            raise _Refused(401, "incorrect API key provided", "invalid_api_key")

    async def on_refused(self, _request: Request, exc: Exception) -> Response:
        """OpenAI-format errors for what this server refuses, and for Starlette's own 404 and 405."""
        self.ledger.refused += 1
        if isinstance(exc, _Refused):
            return _error(exc.status, exc.message, exc.code)
        assert isinstance(exc, HTTPException)
        return _error(exc.status_code, exc.detail, "invalid_request")

    async def on_failure(self, _request: Request, exc: Exception) -> Response:
        """A fault of the source or the server: 500, and the server goes on."""
        self.ledger.failed += 1
        log.error("a request failed", exc_info=exc)
        return _error(500, f"{type(exc).__name__}: {exc}", "internal_error")


async def _read_body(request: Request) -> ChatBody:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise _Refused(413, f"the body exceeds {MAX_BODY_BYTES} bytes", "too_large")
            parts.append(part)
    except ClientDisconnect as exc:
        raise _Refused(400, "the client went away before its request was complete", "disconnected") from exc
    try:
        data = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as exc:
        raise _Refused(400, f"the body is not JSON: {exc}", "invalid_json") from exc
    if not isinstance(data, dict):
        raise _Refused(400, "the body is not a JSON object", "invalid_json")
    try:
        return ChatBody.model_validate(data)
    except (ValidationError, RecursionError) as exc:
        first = exc.errors()[0] if isinstance(exc, ValidationError) else {"loc": (), "msg": "nested too deeply"}
        where = ".".join(str(part) for part in first["loc"])
        raise _Refused(400, f"{where}: {first['msg']}".removeprefix(": "), "invalid_value") from exc


def create_app(source: Source, config: ServerConfig | None = None) -> Starlette:
    """The ASGI application over ``source``. Its state is its own: two apps share neither cache nor ledger."""
    api = _Api(source, config or ServerConfig())
    app = Starlette(
        routes=[
            Route("/v1/models", api.models),
            Route("/v1/chat/completions", api.completions, methods=["POST"]),
            Route("/stats", api.stats),
            Route("/health", api.health),
        ],
        exception_handlers={_Refused: api.on_refused, HTTPException: api.on_refused, Exception: api.on_failure},
    )
    app.state.api = api
    return app


_LIKE = next(iter(RATES))
_SYNTHETIC = ("like", "seed", "success", "tokens_per_s", "trace_tokens")


def main(argv: list[str] | None = None) -> None:
    """``python -m specgen.llm.server``."""
    parser = Parser(prog="specgen model serve", description="The synthetic model server, or recordings replayed.")
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 picks a free one")
    add("--port-file", type=Path, help="receives the base URL once the server listens")
    add("--speed", type=float, default=1.0, help="divides all times")
    add("--seed", type=int, help="of the synthetic model (0)")
    add("--like", choices=tuple(RATES), help=f"rates of this one of the paper's models ({_LIKE})")
    add("--tokens-per-s", type=float, help="of every stream at speed 1, in place of that model's")
    add("--trace-tokens", type=float, help="mean length of a reasoning trace, in place of that model's")
    add("--success", type=float, help="scales the odds of a kernel that works (1: the paper's)")
    add("--chunk-ms", type=float, default=ServerConfig.chunk_ms, help="how long a chunk gathers tokens, wall time")
    add("--api-key", default="", help="demand this key")
    add("--recordings", type=Path, help="answer with recorded streams (`specgen model record`) of this folder")
    add("--exact", action="store_true", help="of them, only one of the very same conversation and prefix")
    options = parser.parse_args(argv)
    try:
        app, what = _chosen(options)
        sys.stdout.write(f"{what}\n")
        serve_until_signal(app, options.host, options.port, options.port_file)
    except ValueError as exc:
        parser.error(str(exc))
    except SpecGenError as exc:
        parser.error(f"{exc.message} ({exc.hint})" if exc.hint else exc.message)


def _chosen(options: argparse.Namespace) -> tuple[Starlette, str]:
    """The application that the command line asks for, and what it is. A recording has its own times of reading the
    prompt. Raises ValueError for options that do not go together."""
    config = ServerConfig(speed=options.speed, chunk_ms=options.chunk_ms, api_key=options.api_key)
    if options.recordings is not None:
        given = [name for name in _SYNTHETIC if getattr(options, name) is not None]
        if given:
            raise ValueError(f"--{given[0].replace('_', '-')} is of the synthetic model, not of --recordings")
        source = RecordedSource.load(options.recordings, exact=options.exact)
        app = create_app(source, replace(config, prefill_tokens_per_s=float("inf")))
        return app, f"{source.model_id}: {len(source)} recordings, {options.speed:g} times as fast as they came"
    if options.exact:
        raise ValueError("--exact goes with --recordings")
    like = options.like or _LIKE
    rate = TOKENS_PER_S[like] if options.tokens_per_s is None else options.tokens_per_s
    rates = replace(RATES[like], success=1.0 if options.success is None else options.success)
    if options.trace_tokens is not None:
        rates = replace(rates, trace_tokens_mean=options.trace_tokens)
    config = replace(config, tokens_per_s=rate)
    seconds = rates.trace_tokens_mean / rate / options.speed
    app = create_app(SyntheticSource(seed=options.seed or 0, rates=rates), config)
    return app, f"{MODEL_ID}, rates of {like}: a reasoning takes about {seconds:.3g} s"


if __name__ == "__main__":
    main()
