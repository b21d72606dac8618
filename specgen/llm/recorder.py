"""A proxy that records: requests go on to a real provider and answers come back unchanged, byte for byte.

What passes is looked at on the side: every choice of every chat completion becomes a recording
(`specgen.llm.recordings`), also one that its client cancelled or whose connection broke. The client's key goes on in
its header and is written nowhere. What cannot be recorded (other paths, bodies that are no chat) passes all the same.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
import structlog
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specgen.errors import SpecGenError
from specgen.llm.hosting import Parser, serve_until_signal
from specgen.llm.recordings import Chunk, Ending, Header, Writer
from specgen.llm.server_types import ChatBody
from specgen.llm.splitting import ThinkSplitter

log = structlog.get_logger(__name__)

_HOP = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding", "keep-alive"}
_TIMEOUT = httpx2.Timeout(30.0, read=None)  # a model may think for as long as its client waits


@dataclass
class Counted:
    """What went through, for whoever watches."""

    requests: int = 0
    recorded: int = 0
    unrecorded: int = 0  # passed on, but no recording came of it


@dataclass
class _Choice:
    """One stream being recorded."""

    writer: Writer
    splitter: ThinkSplitter | None  # None: a fork's content starts inside the answer
    finish: str = ""

    def add(self, kind: str, text: str, t: float) -> None:
        if kind == "content" and self.splitter is not None:
            for delta in self.splitter.feed(text):
                self.writer.chunk(Chunk(t=t, kind=delta.kind, text=delta.text))
        elif text:
            self.writer.chunk(Chunk.model_validate({"t": t, "kind": kind, "text": text}))

    def end(self, finish: str, usage: dict[str, object] | None, t: float) -> None:
        for delta in self.splitter.finish() if self.splitter is not None else ():
            self.writer.chunk(Chunk(t=t, kind=delta.kind, text=delta.text))
        self.writer.end(Ending(t=t, finish=finish, usage=usage))


@dataclass
class _Tape:
    """All choices of one exchange. Nothing that goes wrong here may disturb what passes."""

    directory: Path
    server: str
    body: ChatBody
    counted: Counted
    start: float = field(default_factory=time.monotonic)
    choices: dict[int, _Choice] = field(default_factory=dict)
    usage: dict[str, object] | None = None
    torn: bool = False  # could not be written
    _rest: bytes = b""

    @property
    def t(self) -> float:
        return round(time.monotonic() - self.start, 6)

    def feed(self, data: bytes) -> None:
        """More of an event stream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (word := line[5:].strip()) not in (b"", b"[DONE]"):
                self.message(word)

    def message(self, data: bytes) -> None:
        """One chunk of a stream, or a whole answer."""
        try:
            event = json.loads(data)
            if isinstance(event, dict) and not self.torn:
                self._event(event, self.t)
        except ValueError:
            return  # no JSON: a comment of the server's
        except OSError as exc:
            self.torn = True
            log.warning("not_recorded", error=str(exc))

    def _event(self, event: dict[str, Any], t: float) -> None:
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        choices = event.get("choices")
        for given in choices if isinstance(choices, list) else ():
            if isinstance(given, dict):
                self._choice(given, t)

    def _choice(self, given: dict[str, Any], t: float) -> None:
        index = given.get("index")
        choice = self._of(index if isinstance(index, int) else 0)
        said = given.get("delta") or given.get("message") or {}
        for kind, names in (("reasoning", ("reasoning_content", "reasoning")), ("content", ("content",))):
            text = next((said[name] for name in names if isinstance(said.get(name), str) and said[name]), "")
            if text:
                choice.add(kind, text, t)
        if isinstance(given.get("finish_reason"), str):
            choice.finish = given["finish_reason"]

    def _of(self, index: int) -> _Choice:
        if index not in self.choices:
            body, chat = self.body, self.body.chat(self.body.seed or 0)
            header = Header(
                recorded_at=datetime.now(UTC), server=self.server, model=body.model, streamed=body.stream,
                conversation=chat.conversation, seed=body.seed, temperature=body.temperature, max_tokens=body.limit,
                thinking=chat.thinking, fork=chat.fork, prefix=chat.prefix, opening=chat.opening,
                json_reply=chat.json_reply,
            )  # fmt: skip
            self.choices[index] = _Choice(Writer(self.directory, header), None if chat.fork else ThinkSplitter())
        return self.choices[index]

    def end(self, otherwise: str) -> None:
        """Finish every choice; one that has not ended by itself did so ``otherwise``."""
        for choice in self.choices.values():
            try:
                with choice.writer:
                    if not self.torn:
                        choice.end(choice.finish or otherwise, self.usage, self.t)
            except OSError as exc:
                self.torn = True
                log.warning("not_recorded", error=str(exc))
            self.counted.recorded += not self.torn
            self.counted.unrecorded += self.torn
        self.counted.unrecorded += not self.choices


class _Proxy:
    """The endpoints, over one upstream and one directory."""

    def __init__(self, upstream: str, directory: Path) -> None:
        self.upstream = httpx2.URL(upstream.rstrip("/") + "/")
        self.directory = directory
        self.counted = Counted()

    async def forward(self, request: Request) -> Response:
        """Any method, any path below /v1."""
        self.counted.requests += 1
        content = await request.body()
        stack = AsyncExitStack()
        tape = self._tape(request, content)
        try:
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=_TIMEOUT))
            asked = client.build_request(
                request.method, self._url(request), content=content, headers=_passed(request.headers)
            )
            answer = await client.send(asked, stream=True)
            stack.push_async_callback(answer.aclose)
        except httpx2.HTTPError as exc:
            await stack.aclose()
            return JSONResponse({"error": {"message": f"upstream: {exc}", "type": "upstream_error"}}, status_code=502)
        except BaseException:
            await stack.aclose()
            raise
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        through = self._through(answer, tape if answer.status_code == 200 else None, stack)
        return StreamingResponse(through, answer.status_code, headers)

    async def _through(
        self, answer: httpx2.Response, tape: _Tape | None, stack: AsyncExitStack
    ) -> AsyncIterator[bytes]:
        """The answer's bytes. Left early (the client went away), the provider's stream is closed at once."""
        ended, whole = "cancelled", []
        try:
            async for data in answer.aiter_raw():
                if tape is not None and tape.body.stream:
                    tape.feed(data)
                elif tape is not None:
                    whole.append(data)
                yield data
            ended = "broken" if tape is not None and tape.body.stream else "stop"
        except httpx2.HTTPError as exc:
            ended = "broken"
            log.warning("upstream_broke", error=str(exc))
            raise
        finally:
            if tape is not None:
                if whole:
                    tape.message(b"".join(whole))
                tape.end(ended)
            with anyio.CancelScope(shield=True):  # cancelled is what it is when the client has gone
                await stack.aclose()

    def _url(self, request: Request) -> httpx2.URL:
        path = request.path_params["path"]
        return self.upstream.join(path).copy_with(query=request.url.query.encode() or None)

    def _tape(self, request: Request, content: bytes) -> _Tape | None:
        if request.method != "POST" or not request.path_params["path"].endswith("chat/completions"):
            return None
        try:
            body = ChatBody.model_validate_json(content)
        except ValidationError as exc:
            self.counted.unrecorded += 1
            log.warning("not_recorded", error=f"the body: {exc.errors()[0]['msg']}")
            return None
        return _Tape(self.directory, self.upstream.host, body, self.counted)


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers but for those of its own connection; the answer is asked for uncompressed."""
    kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
    return kept | {"accept-encoding": "identity"}


def create_app(upstream: str, directory: Path) -> Starlette:
    """The proxy for one provider (its base URL, with ``/v1``), writing into an existing directory."""
    proxy = _Proxy(upstream, directory)
    methods = ["GET", "POST", "PUT", "DELETE"]
    app = Starlette(routes=[Route("/v1/{path:path}", proxy.forward, methods=methods)])
    app.state.counted = proxy.counted
    return app


def _reach(parser: Parser, upstream: str) -> None:
    """Ends the program where nobody answers there; what is answered does not matter."""
    try:
        httpx2.get(f"{upstream.rstrip('/')}/models", timeout=10)
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        parser.error(f"--upstream {upstream}: cannot be reached: {exc}")


def main(argv: list[str] | None = None) -> None:
    """``python -m specgen.llm.recorder``."""
    parser = Parser(prog="specgen model record", description=__doc__.partition("\n")[0])
    parser.add_argument("--upstream", required=True, help="base URL of the provider, with /v1")
    parser.add_argument("--out", required=True, type=Path, help="folder of the recordings; made if it is not there")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--port-file", type=Path, help="receives the proxy's base URL once it listens")
    options = parser.parse_args(argv)
    if not options.upstream.startswith(("http://", "https://")):
        parser.error(f"--upstream {options.upstream}: not a URL (such as https://host/v1)")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        _reach(parser, options.upstream)
        app = create_app(options.upstream, options.out)
        sys.stdout.write(f"recording what {options.upstream} answers into {options.out} until Ctrl-C\n")
        serve_until_signal(app, options.host, options.port, options.port_file)
    except OSError as exc:
        parser.error(f"--out {options.out}: {exc.strerror}")
    except SpecGenError as exc:
        parser.error(f"{exc.message} ({exc.hint})" if exc.hint else exc.message)
    counted = app.state.counted
    lost = f", {counted.unrecorded} passed without a recording" if counted.unrecorded else ""
    sys.stdout.write(f"{counted.recorded} recorded in {options.out}{lost}\n")


if __name__ == "__main__":
    main()
