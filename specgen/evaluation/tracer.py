"""What a reference's forward costs, found without its data: arithmetic, memory, and the bytes that must be moved.

The problem runs on fake tensors (shapes without storage), so that a 4 GiB input needs no memory. Counted as one
operation: a multiplication or an addition of a product (torch's own formulas), and every element of the largest
argument or result of any other operator. Not here: values, time, peaks.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from specgen.evaluation.audit import _VIEWS
from specgen.evaluation.floors import needed_flops
from specgen.evaluation.reference import Reference
from specgen.evaluation.tensors import dtype_name, leaves
from specgen.evaluation.verdict import Verdict
from specgen.types import ProblemSpec

_PARTIAL = {"embedding", "index", "index_select", "gather", "take"}  # read no more than they return
_EXACT = 1.005  # peaks may be missed by half a percent: looking at all storages after every operator is slow
_UNREAD = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "fill", "zero"}


@dataclass(frozen=True)
class Trace:
    """One forward. Bytes count each stored element once."""

    flops: float
    product_flops: float  # the part of it in matrix products and convolutions
    needed_flops: float  # what the problem states by NEEDED_FLOPS; 0: nothing
    operators: int
    input_bytes: int
    parameter_bytes: int  # buffers too
    output_bytes: int
    read_bytes: int  # of inputs and parameters, what an operator reads
    peak_bytes: int  # inputs, parameters and everything alive at once; without workspaces
    outputs: tuple[str, ...]  # such as "float32 [1024, 1024]"

    @property
    def moved_bytes(self) -> int:
        """What is read is read once, outputs are written once."""
        return self.read_bytes + self.output_bytes


class _Live:
    """Storages that are alive, and the most bytes of them at once; looked through only where a peak may be new."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.now = 0
        self.peak = 0

    def add(self, value: Any) -> None:
        """See the storages of a nested value."""
        for leaf in leaves(value):
            storage = leaf.untyped_storage()
            if storage._cdata not in self.known:
                self.known[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
                self.now += storage.nbytes()
        if self.now > self.peak * _EXACT:
            self._forget()
            self.peak = max(self.peak, self.now)

    def _forget(self) -> None:
        for key, (ref, size) in list(self.known.items()):
            if ref.expired():  # type: ignore[no-untyped-call]
                del self.known[key]
                self.now -= size


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context around a forward, on fake or on real tensors."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.end = time.monotonic() + limit_s
        self.flops = 0.0
        self.product_flops = 0.0
        self.operators = 0
        self.read: dict[int, int] = {}  # storage -> bytes of the largest piece that an operator read
        self.live = _Live()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: see :class:`specgen.evaluation.audit.OperatorLog`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run, then count. Raises TimeoutError past the limit."""
        if time.monotonic() > self.end:
            raise TimeoutError("counting operations takes too long")
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if func.namespace != "prim" and func.overloadpacket.__name__ not in _VIEWS:  # prim: questions such as device
            self.operators += 1
            self._count(func, name, args, kwargs or {}, result)
        self.live.add(result)
        return result

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        given = [*leaves(list(args)), *leaves(kwargs)]
        made = list(leaves(result))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            count = float(formula(*args, **kwargs, out_val=result))
            self.product_flops += count
        else:
            count = float(max((leaf.numel() for leaf in (*given, *made)), default=0))
        self.flops += count
        if name in _UNREAD:
            return
        most = sum(leaf.numel() * leaf.element_size() for leaf in made) if name in _PARTIAL else None
        for leaf in given:
            size = leaf.numel() * leaf.element_size()
            key = leaf.untyped_storage()._cdata
            self.read[key] = max(self.read.get(key, 0), size if most is None else min(size, most))


class _Shapes(Reference):
    """The problem on the CPU, whatever its backend: fake parameters can be moved nowhere, and need not be."""

    def _placed(self, model: Any) -> Any:
        return model


def trace(problem: ProblemSpec, limit_s: float = math.inf) -> Trace:
    """Trace on fake tensors: a millisecond an operator, so that unrolled recurrences take a minute.

    Raises Verdict (reference_error), also past the limit and where operators depend on values.
    """
    problem = problem.model_copy(update={"backend": "cpu"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run on real tensors shows them
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with mode:
                reference: Reference = _Shapes(problem)
        except Verdict:
            reference = _Shapes(problem)  # a constructor that reads values; forward may still do without
        with mode:
            return trace_run(reference, reference.inputs(0), limit_s)


def trace_run(reference: Reference, inputs: list[Any], limit_s: float = math.inf) -> Trace:
    """Trace one forward on these inputs, fake or real. Raises Verdict (reference_error), also past the limit."""
    state = list(reference.state().values())
    tracer = Tracer(limit_s)
    tracer.live.add([inputs, state])
    with tracer:
        outputs = reference.run(inputs, 0)
    given = _storages([inputs, state])
    return Trace(
        flops=tracer.flops,
        product_flops=tracer.product_flops,
        needed_flops=needed_flops(reference.module),
        operators=tracer.operators,
        input_bytes=_stored(inputs),
        parameter_bytes=_stored(state),
        output_bytes=_stored(outputs),
        read_bytes=sum(min(size, tracer.read.get(key, 0)) for key, size in given.items()),
        peak_bytes=tracer.live.peak,
        outputs=tuple(f"{dtype_name(leaf.dtype)} {list(leaf.shape)}" for leaf in leaves(outputs)),
    )


def _storages(value: Any) -> dict[int, int]:
    return {leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes() for leaf in leaves(value)}


def _stored(value: Any) -> int:
    """Bytes of all tensors: an expanded one counts what it stores, one that is given twice counts once."""
    sizes: dict[int, int] = {}
    for leaf in leaves(value):
        storage = leaf.untyped_storage()
        piece = min(storage.nbytes(), leaf.numel() * leaf.element_size())
        sizes[storage._cdata] = min(storage.nbytes(), sizes.get(storage._cdata, 0) + piece)
    return sum(sizes.values())
