"""Real LLM servers, started and stopped here, for the opt-in tests and for the benchmark.

`scripts/llm-servers llamacpp|vllm` installs them. Each run is a process group of its own on a free port of
this machine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import httpx2

from specgen.settings import get_settings

Kind = Literal["llamacpp", "vllm"]  # those that are to be installed
AnyKind = Literal["llamacpp", "vllm", "specgen"]
HERE: Final = Path(__file__).parent
KEEPS, DROPS = HERE / "think_template.jinja", HERE / "dropping_template.jinja"
BLOCK: Final = 32  # tokens of a KV block of the vLLM server
_START_S: Final = 400.0


@lru_cache(maxsize=1)
def _watcher() -> httpx2.Client:
    """For looks at servers. llama.cpp closes connections that it called kept alive."""
    return httpx2.Client(timeout=30, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))


def installed(kind: Kind) -> Path | None:
    """The server's environment, where its set-up has finished."""
    folder = get_settings().cache_path / "llm-servers" / kind
    return folder if (folder / "specgen.stamp").exists() else None


def how_to(kind: Kind) -> str:
    """The set-up command."""
    return f"scripts/llm-servers {kind}"


@dataclass(frozen=True)
class Server:
    """One that answers. ``url`` without /v1; ``what`` names server and model."""

    kind: AnyKind
    what: str
    url: str
    process: subprocess.Popen[bytes]

    @property
    def base_url(self) -> str:
        """For an LLM profile."""
        return f"{self.url}/v1"

    def get(self, path: str) -> httpx2.Response:
        """Ask one of its own endpoints."""
        return _watcher().get(self.url + path)

    def metric(self, name: str) -> float:
        """The sum of a Prometheus metric over its labels; 0 where it is not shown yet."""
        lines = (line for line in self.get("/metrics").text.splitlines() if line.startswith((name + "{", name + " ")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def busy(self) -> int:
        """Requests being generated."""
        if self.kind == "specgen":
            return int(self.get("/stats").json()["running"])
        if self.kind == "vllm":
            return int(self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"))
        return sum(bool(slot["is_processing"]) for slot in self.get("/slots").json())

    def counted(self) -> tuple[int, int, int]:
        """(prompt, cached, generated) tokens by its own counters."""
        if self.kind == "specgen":
            tokens = self.get("/stats").json()["tokens"]
            return int(tokens["prompt"]), int(tokens["cached"]), int(tokens["completion"])
        if self.kind == "vllm":
            names = ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total", "vllm:generation_tokens_total")
            prompt, cached, generated = (int(self.metric(name)) for name in names)
            return prompt, cached, generated
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
        fresh, cached, generated = (int(self.metric(f"llamacpp:{name}")) for name in names)
        return fresh + cached, cached, generated

    def kill(self) -> None:
        """End it and all its processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def llamacpp(*, template: Path = KEEPS, slots: int = 4, context: int = 4096, threads: int = 1) -> Iterator[Server]:
    """SmolLM2-135M, ``context`` tokens a slot. One thread: two that wait for each other crawl on a busy machine.
    Small batches: a request that is given up while its prompt is read ends after the batch."""
    folder = _folder("llamacpp")
    options = [
        "--jinja",
        "--reasoning-format",
        "deepseek",
        "--chat-template-file",
        str(template),
        "--metrics",
        "--slots",
    ]
    sizes = [
        "-c",
        str(slots * context),
        "-np",
        str(slots),
        "-t",
        str(threads),
        "--metrics",
        "--slots",
        "--no-webui",
        "-b",
        "64",
    ]
    command = [str(folder / "llama-server"), "-m", str(folder / "model.gguf"), *options, *sizes]
    with _running("llamacpp", "llama.cpp 11434, SmolLM2-135M Q4_1", command, {}) as server:
        yield server


@contextmanager
def vllm(*, model: Literal["words", "pieces"] = "words", template: Path | None = None) -> Iterator[Server]:
    """A tiny model of random weights (scripts/tiny_qwen3.py), 1 GB of KV cache."""
    folder = _folder("vllm")
    command = [str(folder / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder / "models" / model), "--served-model-name", "tiny", "--dtype", "float32"]
    command += ["--block-size", str(BLOCK), "--enforce-eager", "--max-model-len", "16384", "--max-num-seqs", "64"]
    command += ["--enable-prompt-tokens-details", "--reasoning-parser", "qwen3"]
    if template is not None:
        command += ["--chat-template", str(template)]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
    }
    with _running("vllm", f"vLLM 0.32 (CPU), tiny Qwen3-shaped model, {model}", command, settings) as server:
        yield server


@contextmanager
def own(*, tokens_per_s: float, trace_tokens: float = 20_000) -> Iterator[Server]:
    """The project's own model server with its synthetic source."""
    command = [sys.executable, "-m", "specgen.llm.server", "--tokens-per-s", str(tokens_per_s)]
    command += ["--trace-tokens", str(trace_tokens)]
    what = f"specgen model serve, synthetic, {tokens_per_s:g} tokens/s a stream"
    with _running("specgen", what, command, {}) as server:
        yield server


def _folder(kind: Kind) -> Path:
    folder = installed(kind)
    if folder is None:
        raise FileNotFoundError(f"{kind} is not installed: {how_to(kind)}")
    return folder


@contextmanager
def _running(kind: AnyKind, what: str, command: list[str], settings: dict[str, str]) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *place],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        server = Server(kind, what, f"http://127.0.0.1:{port}", process)
        try:
            if not _answers(server):
                log.seek(0)
                raise RuntimeError(f"{what} did not start: {log.read()[-2000:].decode(errors='replace')}")
            yield server
        finally:
            _stop(process)


def _answers(server: Server) -> bool:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.process.poll() is None:
        with suppress(httpx2.HTTPError):
            if server.get("/health").status_code == 200:
                return True
        time.sleep(0.2)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then end what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
