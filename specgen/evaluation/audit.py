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


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that compute something, by signature; ``foreign`` counts those of other namespaces."""

    def __init__(self, tell: Callable[[bool], None] = lambda _: None) -> None:
        """``tell`` is called before and after every operator."""
        super().__init__()  # type: ignore[no-untyped-call]
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
            result = func(*args, **(kwargs or {}))
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

    def __init__(self, log: Any, tell: Callable[[bool], None] = lambda _: None) -> None:
        self.names = {build.name for build in log.builds}
        self.libraries = {str(build.library) for build in log.builds if build.library}
        self.names |= {path.rsplit("/", 1)[-1].removesuffix(".so") for path in self.libraries}
        self.operators = OperatorLog(tell)
        self.own = 0
        self.replays = 0
        self._launches = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._launches.enter_context(_triton_launches(self._launched))
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
        if event != "c_call":
            return
        if self._is_own(arg):
            self.own += 1
        elif getattr(arg, "__name__", "") == "replay" and type(getattr(arg, "__self__", None)).__name__ == "CUDAGraph":
            self.replays += 1

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


@contextlib.contextmanager
def _triton_launches(launched: Callable[[], None]) -> Iterator[None]:
    """Inside, every launch of a Triton kernel is told. Triton is not imported where the candidate has not done it."""
    jit = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    if jit is None:
        yield
        return
    original = jit.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched()
        return original(self, *args, **kwargs)

    jit.run = run
    try:
        yield
    finally:
        jit.run = original
