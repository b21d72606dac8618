"""Nested values of tensors and scalars as a JSON description beside raw bytes in one memory file.

Used on both sides of the border: the judge lays inputs out and reads outputs back, the harness maps inputs and
writes outputs. Tensors on a GPU lie in device memory that both sides map, all others in a memory file. A description
that comes from a candidate is checked field by field before it is believed. Not here: comparing
(:mod:`specgen.evaluation.compare`).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from specgen.evaluation import device_memory
from specgen.evaluation.wire import ProtocolError, memory_file

Node = dict[str, Any]
Place = Literal["host", "device"]
Memory = mmap.mmap | bytearray | torch.Tensor  # the latter: bytes on a GPU
MAX_BYTES = 64 << 30
_ALIGN = 4096
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nested value, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same nesting with every tensor replaced."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [mapped(item, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def nbytes(value: Any) -> int:
    """Bytes of all tensors, each element counted once."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(value))


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's strides if its elements fill their storage without gap or overlap, else contiguous ones."""
    pairs = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in pairs:
        if stride != expected:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        expected *= size
    return tuple(tensor.stride())


@dataclass
class _Layout:
    """Where tensors go while a description is written."""

    total: int = 0

    def describe(self, value: Any) -> Node:
        """The JSON description of a nested value; raises TypeError for anything that cannot cross."""
        if isinstance(value, torch.Tensor):
            start = self.total
            size = value.numel() * value.element_size()
            self.total += -(-size // _ALIGN) * _ALIGN
            return {
                "t": "tensor", "dtype": dtype_name(value.dtype), "shape": list(value.shape),
                "stride": list(_dense_strides(value)), "at": start,
            }  # fmt: skip
        if value is None:
            return {"t": "none"}
        if isinstance(value, bool | str | int):
            return {"t": type(value).__name__, "v": str(value) if type(value) is int else value}
        if isinstance(value, float):
            return {"t": "float", "v": value.hex()}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"t": kind, "v": [self.describe(item) for item in value]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"t": "dict", "k": list(value), "v": [self.describe(item) for item in value.values()]}
        if isinstance(value, torch.dtype):
            return {"t": "dtype", "v": dtype_name(value)}
        raise TypeError(f"a {type(value).__name__} cannot be passed to a candidate")


def describe(value: Any) -> tuple[Node, int]:
    """A description and the bytes its tensors need."""
    layout = _Layout()
    return layout.describe(value), layout.total


def _checked(node: object, size: int) -> tuple[torch.dtype, list[int], list[int], int]:
    if not isinstance(node, dict):
        raise ProtocolError("a tensor's description is no object")
    dtype, at = _DTYPES.get(str(node.get("dtype"))), node.get("at")
    shape, stride = node.get("shape"), node.get("stride")
    fine = isinstance(shape, list) and isinstance(stride, list) and len(shape) == len(stride) <= 32
    if dtype is None or not fine or type(at) is not int:
        raise ProtocolError("a tensor's description is incomplete")
    assert isinstance(shape, list)
    assert isinstance(stride, list)
    if any(type(item) is not int or item < 0 for item in (*shape, *stride, at)):
        raise ProtocolError("a tensor's description holds no counts")
    last = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) if all(shape) else -1
    if at + (last + 1) * dtype.itemsize > size or last > MAX_BYTES:
        raise ProtocolError("a tensor lies outside its memory")
    return dtype, shape, stride, at


def build(node: Node, memory: Memory | None) -> Any:
    """The nested value a description stands for, its tensors being views of ``memory``. Raises ProtocolError."""
    kind = node.get("t")
    value = node.get("v")
    if kind == "tensor":
        return _view(node, memory)
    if kind == "none":
        return None
    if kind in ("bool", "str") and type(value).__name__ == kind:
        return value
    if kind == "int" and isinstance(value, str) and len(value) < 40:
        return int(value)
    if kind == "float" and isinstance(value, str) and len(value) < 40:
        return float.fromhex(value)
    if kind == "dtype" and str(value) in _DTYPES:
        return _DTYPES[str(value)]
    if kind in ("list", "tuple", "dict") and isinstance(value, list):
        items = [build(item, memory) for item in value if isinstance(item, dict)]
        if kind == "dict":
            keys = node.get("k")
            if not isinstance(keys, list) or len(keys) != len(items) or not all(isinstance(key, str) for key in keys):
                raise ProtocolError("a dict's keys are missing")
            return dict(zip(keys, items, strict=True))
        return items if kind == "list" else tuple(items)
    raise ProtocolError(f"unknown kind of value: {kind!r}"[:200])


def _view(node: Node, memory: Memory | None) -> torch.Tensor:
    dtype, shape, stride, at = _checked(node, len(memory) if memory is not None else 0)
    if not all(shape) or memory is None:
        return torch.empty(shape, dtype=dtype, device=memory.device if isinstance(memory, torch.Tensor) else None)
    count = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    if isinstance(memory, torch.Tensor):
        flat = memory[at : at + count * dtype.itemsize].view(dtype)
    else:
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
    return flat.as_strided(shape, stride)


def place_of(value: Any) -> Place:
    """Where a nested value's tensors lie: all of a problem's are on its device, or none is."""
    return "device" if any(leaf.is_cuda for leaf in leaves(value)) else "host"


def new_memory(size: int, place: Place) -> tuple[int, Memory | None]:
    """A descriptor to hand over and our own mapping of it (None for size 0). The caller closes the descriptor."""
    if place == "device" and size:
        return device_memory.create(size)
    fd = memory_file(size)
    return fd, map_file(fd, size)


def attach(fd: int, size: int, place: Place) -> Memory | None:
    """The other side's memory."""
    return device_memory.attach(fd, size) if place == "device" and size else map_file(fd, size)


def settle(place: Place) -> None:
    """What was written is there for the other side, too."""
    if place == "device":
        torch.cuda.synchronize()


def map_file(fd: int, size: int) -> mmap.mmap | None:
    """A shared, writable mapping of a memfd (None for size 0); the descriptor may be closed afterwards."""
    if size == 0:
        return None
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))


@dataclass
class Parcel:
    """A nested value laid out in shared memory: both sides see the same bytes."""

    node: Node
    size: int
    place: Place
    fd: int
    value: Any  # tensors that are views of the shared memory

    @classmethod
    def of(cls, value: Any) -> Parcel:
        """Copy a value into new shared memory. Raises TypeError for values that cannot cross."""
        node, size = describe(value)
        place = place_of(value)
        fd, memory = new_memory(size, place)
        shared = build(node, memory)
        with torch.no_grad():
            for target, source in zip(leaves(shared), leaves(value), strict=True):
                target.copy_(source.detach())
        settle(place)
        return cls(node=node, size=size, place=place, fd=fd, value=shared)

    @property
    def fields(self) -> Node:
        """What a message about it says."""
        return {"node": self.node, "size": self.size, "place": self.place}
