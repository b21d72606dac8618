"""What one forward of the candidate calls: its own compiled functions, and the library's operators.

Runs inside the candidate's process during one untimed trial, so it informs (labels, the ``library_only`` and
``reference_ops`` rules) and is not a wall: outputs and times are what decides.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from specgen.evaluation.tensors import leaves

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_VIEWS = {
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select",
    "as_strided", "detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "unbind", "split", "split_with_sizes", "chunk", "lift_fresh", "_to_copy", "unflatten", "narrow",
}  # fmt: skip


PRODUCT = "product"
_PAUSE_CYCLES = 2_000_000  # a millisecond: longer than what a call does on the host
_MOST_CALLS = 200  # that are timed


def signature(func: Any, args: tuple[Any, ...]) -> str:
    """``mm [256x1024,1024x1024]``: an operator and the shapes it works on, outputs and scalars left out."""
    shapes = ["x".join(map(str, arg.shape)) for arg in args if isinstance(arg, torch.Tensor)]
    return f"{func.overloadpacket.__name__.rstrip('_')} [{','.join(shapes)}]"


def work_of(func: Any, args: Any, kwargs: Any, result: Any) -> tuple[str, float]:
    """What kind of work a call did and how much: products and convolutions in operations, all else in elements.

    However a product is cut up or called (mm, bmm, addmm, out=), it is the same work.
    """
    formula = flop_registry.get(func.overloadpacket)
    if formula is not None:
        return PRODUCT, float(formula(*args, **kwargs, out_val=result))
    most = max((leaf.numel() for leaf in (*leaves(list(args)), *leaves(result))), default=0)
    return func.overloadpacket.__name__.rstrip("_"), float(most)


class DeviceClock:
    """A GPU's own time for each call of an own kernel or of a library's operator.

    Before a call the device gets a pause, so that it is behind: what Python and launches take does not count. What
    an own function calls of the library is the library's. Kernels on streams that the caller does not name are missed.
    """

    def __init__(self, event: Callable[[], Any], pause: Callable[[], None]) -> None:
        """``event`` makes one that can be recorded; ``pause`` keeps the device busy for about a millisecond."""
        self._event, self._pause = event, pause
        self._calls: list[tuple[bool, int, Any, Any]] = []  # own?, how deep, before, after
        self._open: list[tuple[bool, Any]] = []

    @classmethod
    def of_this_device(cls) -> DeviceClock:
        """The current GPU's."""
        cuda: Any = torch.cuda
        return cls(lambda: cuda.Event(enable_timing=True), lambda: cuda._sleep(_PAUSE_CYCLES))

    def begin(self, *, own: bool) -> None:
        """Before a call."""
        before = None
        if len(self._calls) + len(self._open) < _MOST_CALLS and not torch.cuda.is_current_stream_capturing():
            if not self._open:
                self._pause()
            before = self._event()
            before.record()
        self._open.append((own, before))

    def end(self) -> None:
        """After it."""
        if not self._open:
            return
        own, before = self._open.pop()
        if before is not None:
            after = self._event()
            after.record()
            self._calls.append((own, len(self._open), before, after))

    def report(self) -> dict[str, float]:
        """Milliseconds in own kernels and in operators, once the device has done its work."""
        spent = {"own": 0.0, "operators": 0.0}
        for own, depth, before, after in self._calls:
            after.synchronize()
            lasted = before.elapsed_time(after)
            spent["own" if own else "operators"] += lasted
            if depth and not own:
                spent["own"] -= lasted
        return spent


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that compute something, by signature; ``foreign`` counts those of other namespaces."""

    def __init__(self, tell: Callable[[bool], None] = lambda _: None, clock: DeviceClock | None = None) -> None:
        """``tell`` is called before and after every operator; ``clock`` times it."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.seen: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self.foreign = 0
        self._tell = tell

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper that would do it imports a second's worth of torch._dynamo."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, then run the operator as it is."""
        own = func.namespace not in ("aten", "prim", "prims")
        self._tell(not own)
        try:
            if self.clock is None or func.overloadpacket.__name__ in _VIEWS:
                result = func(*args, **(kwargs or {}))
            else:
                self.clock.begin(own=own)
                try:
                    result = func(*args, **(kwargs or {}))
                finally:
                    self.clock.end()
            if own:
                self.foreign += 1
            elif func.overloadpacket.__name__ not in _VIEWS:
                self.seen[signature(func, args)] += 1
                kind, amount = work_of(func, args, kwargs or {}, result)
                self.work[kind] += amount  # type: ignore[assignment]
            return result
        finally:
            self._tell(False)


class Audit:
    """A context around one forward."""

    def __init__(
        self, log: Any, tell: Callable[[bool], None] = lambda _: None, clock: DeviceClock | None = None
    ) -> None:
        self.clock = clock
        self.names = {build.name for build in log.builds}
        self.libraries = {str(build.library) for build in log.builds if build.library}
        self.names |= {path.rsplit("/", 1)[-1].removesuffix(".so") for path in self.libraries}
        self.operators = OperatorLog(tell, clock)
        self.own = 0
        self.replays = 0
        self._launches = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._launches.enter_context(_triton_launches(self._launched, self.clock))
        self.operators.__enter__()  # type: ignore[no-untyped-call]
        sys.setprofile(self._profile)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        self.operators.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._launches.close()

    def _launched(self) -> None:
        self.own += 1

    def _profile(self, _frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call" and (self.clock is None or event not in ("c_return", "c_exception")):
            return  # every call in Python comes by here: what is not timed is asked once
        own = self._is_own(arg)
        if not own and not _is_replay(arg):
            return
        if event == "c_call":
            self.own += own
            self.replays += not own
            if self.clock is not None:
                self.clock.begin(own=True)
        elif self.clock is not None:
            self.clock.end()

    def _is_own(self, function: Any) -> bool:
        owner = getattr(function, "__self__", None)
        return (
            getattr(function, "__module__", None) in self.names
            or str(getattr(owner, "__file__", "")) in self.libraries
            or getattr(owner, "__name__", None) in self.names
        )

    def report(self) -> dict[str, Any]:
        """Own calls, graphs replayed, operators by signature and work by kind (at most 200 each)."""
        return {
            "own": self.own + self.operators.foreign,
            "replays": self.replays,
            "operators": dict(self.operators.seen.most_common(200)),
            "work": dict(self.operators.work.most_common(200)),
        }


def _is_replay(function: Any) -> bool:
    """Whether it starts a captured graph."""
    owner = type(getattr(function, "__self__", None)).__name__
    return getattr(function, "__name__", "") == "replay" and owner == "CUDAGraph"


@contextlib.contextmanager
def _triton_launches(launched: Callable[[], None], clock: DeviceClock | None) -> Iterator[None]:
    """Inside, every launch of a Triton kernel is told, and timed.

    Triton is not imported where the candidate has not done it.
    """
    jit = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    if jit is None:
        yield
        return
    original = jit.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched()
        if clock is None:
            return original(self, *args, **kwargs)
        clock.begin(own=True)
        try:
            return original(self, *args, **kwargs)
        finally:
            clock.end()

    jit.run = run
    try:
        yield
    finally:
        jit.run = original
