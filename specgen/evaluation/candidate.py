"""The harness inside the sandbox: builds and runs one candidate on inputs it is given, and hands outputs back.

It knows no reference, no seed of a trial and no verdict. Everything it says after :meth:`Harness.load` is said by a
process that runs foreign code, so the judge believes nothing of it that it cannot check: outputs are compared, times
are taken by the judge's clock. Limits and the loss of root come first, before anything foreign is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import linecache
import os
import resource
import shutil
import signal
import socket
import sys
import tarfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgen.errors import SpecGenError
from specgen.evaluation.feedback import CANDIDATE_FILE, cap, from_compiler, from_exception
from specgen.evaluation.wire import Channel, Message, close_all, read_memory_file


def restrict(config: Message) -> None:
    """Resource limits, then give up root for good.

    RLIMIT_AS is left alone (device runtimes reserve address space), and so is RLIMIT_CPU: with it, the kernel
    samples the process's CPU clock at timer ticks only, and that clock is what runs are timed by. RLIMIT_CORE came
    with the process and cannot be changed here.
    """
    limits = {
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_NPROC: int(config["processes"]),
        resource.RLIMIT_FSIZE: int(config["file_bytes"]),
        resource.RLIMIT_MEMLOCK: 1 << 20,
    }
    if config["data_bytes"]:
        limits[resource.RLIMIT_DATA] = int(config["data_bytes"])
    for name, value in limits.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
    if config["uid"] and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
        _drop_capabilities()
    os.umask(0o077)


def _drop_capabilities() -> None:
    """Also the inheritable ones, which changing the uid leaves."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")


_REFUSED_LAUNCH = (
    "invalid configuration argument",
    "CUDA error: invalid argument",
    "too many resources requested",
    "no kernel image",
)


class Failure(Exception):
    """What goes back to the judge instead of an answer."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def _status_of(error: BaseException, otherwise: str) -> str:
    from specgen.evaluation.build import BuildFailed, BuildTimeout

    for kind, status in (
        (BuildFailed, "compile_error"),
        (BuildTimeout, "compile_timeout"),
        (SpecGenError, "infra_error"),
    ):
        if isinstance(error, kind):
            return status
    text = str(error)
    memory = ("can't allocate memory", "out of memory", "Cannot allocate memory", "std::bad_alloc")
    if isinstance(error, MemoryError) or any(words in text for words in memory):
        return "out_of_memory"
    if isinstance(error, RuntimeError) and any(words in text for words in _REFUSED_LAUNCH):
        return "runtime_error"  # nothing ran on the device
    if isinstance(error, RuntimeError) and ("CUDA error" in text or "CUDA kernel" in text):
        return "device_fault"
    return otherwise


class Harness:
    """The candidate's side of the protocol: one method per kind of message."""

    def __init__(self, config: Message, channel: Channel) -> None:
        import torch

        from specgen.evaluation.stopwatch import stopwatch

        self.torch = torch
        self.channel = channel
        self.on_gpu = config["backend"] == "cuda"
        # The default generators alone: torch.manual_seed also looks for devices that are not there.
        self.seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
        self.config = config
        self.cache = Path(str(config["cache"]))
        self.source = ""
        self.support = ""
        self.module: types.ModuleType | None = None
        self.model: Any = None
        self.log: Any = None
        self.slots: dict[int, list[Any]] = {}
        self.last: Any = None
        self.held: list[Any] = []
        self.outputs: tuple[int, Any] = (0, None)  # where they are handed over: its number, and our mapping
        self.watch = stopwatch(config["backend"])  # made before the candidate can patch what it uses

    def load(self, message: Message, fds: list[int]) -> Message:
        """Build and import the candidate's file."""
        from specgen.evaluation import build

        self.source = read_memory_file(fds[0]).decode()
        if len(fds) > 1:
            self._unpack(fds[1])
        support = Path(message["support"]) if message["support"] else None
        self.support = str(support or "")
        self.log = build.install(self.cache, mode=message["mode"], support=support, timeout_s=message["timeout_s"])
        linecache.cache[CANDIDATE_FILE] = (len(self.source), None, self.source.splitlines(True), CANDIDATE_FILE)
        module = types.ModuleType("candidate")
        module.__file__ = CANDIDATE_FILE
        sys.modules["candidate"] = module
        try:
            exec(compile(self.source, CANDIDATE_FILE, "exec"), module.__dict__)  # noqa: S102 - what a sandbox is for
        except BaseException as exc:
            raise self._failure(exc, "load_error") from exc
        self._refuse_failed_build()
        self.module = module
        if not isinstance(getattr(module, "ModelNew", None), type):
            raise Failure("no_modelnew", "the file defines no class ModelNew")
        return self._build_report()

    def construct(self, message: Message, fds: list[int]) -> Message:
        """``ModelNew(*init_inputs)`` under KernelBench's seed; reports its parameters' names and shapes."""
        init = self._value(message, fds[0])
        try:
            self.torch.manual_seed(message["seed"])
            assert self.module is not None
            self.model = self.module.ModelNew(*init)
            if self.on_gpu and isinstance(self.model, self.torch.nn.Module):
                self.model.to("cuda")
            state = self.model.state_dict() if isinstance(self.model, self.torch.nn.Module) else {}
        except BaseException as exc:
            raise self._failure(exc, "load_error") from exc
        self._refuse_failed_build()
        names = [[name, list(value.shape), str(value.dtype)] for name, value in state.items()]
        return self._build_report() | {"parameters": names[:500]}

    def state(self, message: Message, fds: list[int]) -> Message:
        """A strict ``load_state_dict`` with the values the judge sends."""
        values = self._value(message, fds[0])
        try:
            self.model.load_state_dict(values, strict=True)
        except BaseException as exc:
            raise self._failure(exc, "load_error") from exc
        return {}

    def places(self, message: Message, fds: list[int]) -> Message:
        """Where the model keeps the reference's parameters, by names or by these values."""
        from specgen.evaluation import held

        self.held = held.places(self.model, self._value(message, fds[0]))
        return {"places": [place.fields() for place in self.held]}

    def bind(self, message: Message, fds: list[int]) -> Message:
        """From now on those places lie in the judge's memory."""
        from specgen.evaluation import held

        held.bind(self.model, self.held, self._value(message, fds[0]))
        return {}

    def inputs(self, message: Message, fds: list[int]) -> Message:
        """Map one set of inputs; the memory is the judge's, who sees whether it is changed."""
        self.last = None
        self.slots[message["slot"]] = self._value(message, fds[0])
        return {}

    def run(self, message: Message, fds: list[int]) -> Message:
        """One forward on poisoned memory, its outputs written to the judge's memory."""
        self.last = None
        calls: Message = {}
        with self.watch.poisoned(int(message["size"])):
            if message["audit"]:
                calls = self._audited(message)
            else:
                self._forward(message, self._once)
        return self._hand_over(message, fds) | {"calls": calls}

    def time(self, message: Message, fds: list[int]) -> None:
        """One forward at the judge's starting shot, timed; outputs stay here until they are fetched."""
        del fds
        self._armed(message)
        self.channel.finish(message["n"], self._forward(message, self.watch.time))

    def burst(self, message: Message, fds: list[int]) -> None:
        """Several forwards in a row at the starting shot, for the judge's own clock."""
        del fds
        runs = int(message["runs"])
        self._armed(message)

        def all_of_them(forward: Callable[[], Any]) -> tuple[Any, int]:
            self.watch.burst(forward, runs)
            return None, 1

        self.channel.finish(message["n"], self._forward(message, all_of_them))

    def fetch(self, message: Message, fds: list[int]) -> Message:
        """The outputs of the last timed run; their memory goes back before the next is timed."""
        answer = self._hand_over(message, fds)
        self.last = None
        return answer

    def rehearse(self, message: Message, fds: list[int]) -> Message:
        """A small output to fetch, so that the judge knows what fetching costs. Before anything foreign is loaded."""
        del message, fds
        self.last = self.torch.zeros(64)
        return {}

    def null(self, message: Message, fds: list[int]) -> None:
        """What timed runs cost around their forwards: the same way without one."""
        del fds
        runs = int(message["runs"])
        self._armed(message)
        self.seed(message["seed"])
        with self.torch.no_grad():
            if runs:
                self.watch.burst(lambda: None, runs)
                spent = 1
            else:
                _, spent = self.watch.time(lambda: None)
        self.channel.finish(message["n"], spent)

    def _armed(self, message: Message) -> None:
        """Say that the message is understood, then wait for the shot: inputs are renewed in between."""
        self.channel.send({"n": message["n"], "armed": True})
        self.channel.sock.recv(16)

    def pack(self, message: Message, fds: list[int]) -> Message:
        """The build products as a tar in the judge's memory file, for this candidate's next sandbox."""
        from specgen.evaluation.archive import pack

        return {"size": pack(self.cache, fds[0], int(message["limit"]))}

    def _unpack(self, fd: int) -> None:
        """What cannot be unpacked whole is built again: it came from the host's cache, which may be damaged."""
        from specgen.evaluation.archive import unpack

        try:
            unpack(fd, self.cache)
        except (OSError, ValueError, tarfile.TarError):
            for path in self.cache.iterdir():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def _once(self, forward: Callable[[], Any]) -> tuple[Any, int]:
        result = forward()
        self.watch.finish()  # an error on the device shows here, not in somebody else's call
        return result, 1

    def _forward(self, message: Message, by: Callable[[Callable[[], Any]], tuple[Any, int]]) -> int:
        """One forward (or several) on a slot's inputs, run by ``by``; returns its nanoseconds."""
        inputs = self.slots[message["slot"]]
        self.seed(message["seed"])
        try:
            with self.torch.no_grad():
                self.last, spent = by(lambda: self.model(*inputs))
                return spent
        except BaseException as exc:
            raise self._failure(exc, "runtime_error") from exc

    def _audited(self, message: Message) -> Message:
        from specgen.evaluation.audit import Audit

        audit = Audit(self.log)
        with audit:
            self._forward(message, self._once)
        return audit.report()

    def watch_calls(self, message: Message, fds: list[int]) -> Message:
        """Forwards whose calls, and on a CPU whose time, are looked at: untimed, after the timed window."""
        from specgen.evaluation.audit import Audit, DeviceClock
        from specgen.evaluation.sampler import Sampler

        own = {str(build.library) for build in self.log.builds if build.library}
        sampler = Sampler(fds[0], own, self.support) if fds else None
        clock = DeviceClock.of_this_device() if self.on_gpu else None
        audit = Audit(self.log, clock=clock)
        with audit:
            self._forward(message, self._once)
        answer: Message = {"calls": audit.report(), "runs": 1, "samples": {}}
        if clock is not None:
            answer["device_ms"] = clock.report()
        if sampler is not None:
            sampled = Audit(self.log, sampler.operator)

            def repeated(forward: Callable[[], Any]) -> tuple[Any, int]:
                with sampled.operators:
                    answer["runs"], answer["samples"] = sampler.look(forward)
                return None, 1

            self._forward(message, repeated)
        return answer

    def _hand_over(self, message: Message, fds: list[int]) -> Message:
        from specgen.evaluation.tensors import attach, build, describe, leaves, place_of

        try:
            node, size = describe(self.last)
        except TypeError as exc:
            raise Failure("wrong_shape", f"forward returned something that is no tensor: {exc}") from exc
        if size and place_of(self.last) != message["place"]:
            where = {"host": "the CPU", "device": "the GPU"}
            raise Failure("runtime_error", f"the outputs must be on {where[message['place']]}, where the inputs are")
        facts = self._facts(self.slots.get(message["slot"], []))
        if size <= message["size"]:
            if self.outputs[0] != message["buffer"]:  # the same memory for all runs of a window: mapped once
                self.outputs = message["buffer"], attach(fds[0], message["size"], message["place"])
            target = build(node, self.outputs[1])
            with self.torch.no_grad():
                for to, source in zip(leaves(target), leaves(self.last), strict=True):
                    to.copy_(source.detach())
            self.watch.finish()
        return {"outputs": node, "bytes": size, "facts": facts}

    def _facts(self, inputs: list[Any]) -> list[list[str]]:
        """Per output: what a plain tensor of its own is not. Empty for an honest output."""
        from specgen.evaluation.tensors import leaves

        torch = self.torch
        taken = {leaf.untyped_storage().data_ptr(): "aliases_input" for leaf in leaves(inputs) if leaf.numel()}
        found: list[list[str]] = []
        for leaf in leaves(self.last):
            facts = []
            if type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.layout is not torch.strided:
                found.append(["subclass"])
                continue
            storage = leaf.untyped_storage()
            if leaf.numel() and storage.nbytes() < leaf.numel() * leaf.element_size():
                facts.append("expanded")
            if leaf.numel() and storage.data_ptr() in taken:
                facts.append(taken[storage.data_ptr()])
            taken[storage.data_ptr()] = "aliases_output"
            found.append(facts)
        return found

    def _value(self, message: Message, fd: int) -> Any:
        from specgen.evaluation.tensors import attach, build

        return build(message["node"], attach(fd, message["size"], message["place"]))

    def _build_report(self) -> Message:
        builds = [[build.name, build.route, build.seconds, str(build.library or "")] for build in self.log.builds]
        return {"route": self.log.route, "build_s": self.log.seconds, "builds": builds[:50]}

    def _refuse_failed_build(self) -> None:
        """A candidate that catches its failed build and goes on with the library has not been compiled."""
        failed = [build for build in self.log.builds if build.error]
        if failed:
            raise Failure("compile_error", from_compiler(failed[0].error, source=self.source))

    def _failure(self, error: BaseException, otherwise: str) -> Failure:
        status = _status_of(error, otherwise)
        text = str(getattr(error, "message", error))
        of_compiler = status.startswith("compile_")
        shown = from_compiler(text, source=self.source) if of_compiler else from_exception(error, self.source)
        return Failure(status, shown)


_HANDLERS = (
    "load", "construct", "state", "places", "bind", "inputs", "run", "time", "burst", "fetch", "rehearse", "null",
    "watch_calls", "pack",
)  # fmt: skip


def serve(channel: Channel, harness: Harness) -> None:
    """Answer messages until the judge goes away."""
    handlers = {name: getattr(harness, name) for name in _HANDLERS}
    while True:
        try:
            message, fds = channel.receive()
        except EOFError:
            return
        try:
            answer = handlers[message["do"]](message, fds)
        except Failure as failure:
            answer = {"error": failure.status, "text": cap(failure.text, 8000)}
        except MemoryError:
            answer = {"error": "out_of_memory", "text": "out of memory"}
        finally:
            close_all(fds)
        if answer is not None:
            channel.send({"n": message["n"], **answer})


def main(config_text: str) -> None:
    """Entry point: limits first, then torch, then wait for the judge."""
    config: Message = json.loads(config_text)
    restrict(config)
    faulthandler.enable()  # a crash, or the judge's SIGUSR1 after a hang, leaves the candidate's frames in the log
    faulthandler.register(signal.SIGUSR1)
    channel = Channel(socket.socket(fileno=int(config["fd"])))
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    for name in (
        "audit",
        "build",
        "tensors",
        "archive",
        "stopwatch",
        "held",
        "sampler",
    ):  # imported now, while nobody waits
        importlib.import_module(f"specgen.evaluation.{name}")
    gc.freeze()
    gc.disable()  # a collection inside a timed run would be the interpreter's time, not the kernel's
    channel.send({"hello": torch.__version__})
    if config["backend"] == "cuda":  # its context is made when the judge says so: others may be timed on the device
        asked, _ = channel.receive()
        harness = Harness(config, channel)
        channel.send({"n": asked["n"]})
    else:
        harness = Harness(config, channel)
    serve(channel, harness)
