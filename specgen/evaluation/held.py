"""Where a candidate's model keeps the reference's parameters, whatever it calls them, and putting others there.

Runs inside the candidate's process. A parameter is found by its name, or by its values in the same or another order of
dimensions (a transposed copy made in ``__init__`` is a choice of layout). What is found is bound to memory that the
judge writes: values then change without a call, a hook or a version that the candidate could see, so that what it
derives from them outside forward is wrong. Not here: deciding what must be found (:mod:`specgen.evaluation.weights`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_DEPTH = 4  # of lists and dicts in a module's attributes


@dataclass(frozen=True)
class Place:
    """A tensor of the candidate that holds a parameter: ``value.permute(order).reshape(shape)``."""

    wanted: str
    tensor: torch.Tensor
    order: tuple[int, ...]

    def fields(self) -> dict[str, Any]:
        """For the judge."""
        tensor = self.tensor
        return {
            "name": self.wanted, "order": list(self.order), "shape": list(tensor.shape), "stride": list(tensor.stride())
        }  # fmt: skip


def _inside(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict) and depth < _DEPTH:
        for item in list(value.values()):
            yield from _inside(item, depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEPTH:
        for item in value:
            yield from _inside(item, depth + 1)


def tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    """All tensors of a model with their names: parameters, buffers, then plain attributes."""
    named = isinstance(model, torch.nn.Module)
    found = [*model.named_parameters(), *model.named_buffers()] if named else []
    seen = {id(tensor) for _, tensor in found}
    for module in model.modules() if named else [model]:
        for tensor in _inside({k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers")}):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found.append(("", tensor))
    return found


def _same(value: torch.Tensor, tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The order of dimensions under which both hold the same numbers."""
    if value.numel() != tensor.numel() or value.dtype != tensor.dtype or value.device != tensor.device:
        return None
    for order in itertools.permutations(range(value.dim())) if value.dim() <= 4 else [tuple(range(value.dim()))]:
        turned = value.permute(order)
        slim = [n for n in turned.shape if n > 1]
        if slim == [n for n in tensor.shape if n > 1] and torch.equal(turned.reshape(tensor.shape), tensor):
            return order
    return None


def places(model: Any, values: dict[str, torch.Tensor]) -> list[Place]:
    """Where the model keeps these parameters; one may be kept several times."""
    held = tensors(model)
    by_name = {name: tensor for name, tensor in held if name}
    taken: set[int] = set()
    found: list[Place] = []
    for name, value in values.items():
        tensor = by_name.get(name)
        if tensor is not None and tensor.shape == value.shape and tensor.dtype == value.dtype:
            found.append(Place(name, tensor, tuple(range(value.dim()))))
            taken.add(id(tensor))
    missing = [name for name in values if name not in {place.wanted for place in found}]
    for name, value in values.items():
        if value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
            found += _constant(name, value, held, taken) if name in missing else []
            continue
        for _, tensor in held:
            if id(tensor) not in taken and (order := _same(value, tensor)) is not None:
                found.append(Place(name, tensor, order))
                taken.add(id(tensor))
    return found


def _constant(name: str, value: torch.Tensor, held: list[tuple[str, torch.Tensor]], taken: set[int]) -> list[Place]:
    """Many tensors hold only ones: a parameter whose name ends alike, else the first."""
    last = name.rsplit(".", 1)[-1]
    fitting = [
        (own, tensor)
        for own, tensor in held
        if id(tensor) not in taken and isinstance(tensor, torch.nn.Parameter) and _same(value, tensor) is not None
    ]
    fitting.sort(key=lambda item: item[0].rsplit(".", 1)[-1] != last)
    for _, tensor in fitting[:1]:
        taken.add(id(tensor))
        return [Place(name, tensor, tuple(range(value.dim())))]
    return []


def bind(model: Any, found: list[Place], memory: list[torch.Tensor]) -> None:
    """Every place now lies in the memory given for it; views of what lay there follow."""
    views = [tensor for _, tensor in tensors(model) if all(tensor is not place.tensor for place in found)]
    for place, target in zip(found, memory, strict=True):
        old = place.tensor.untyped_storage().data_ptr()
        start = place.tensor.storage_offset()
        place.tensor.data = target
        for view in views:
            if view.untyped_storage().data_ptr() == old and view.dtype == target.dtype:
                offset = view.storage_offset() - start + target.storage_offset()
                view.data = target.as_strided(view.shape, view.stride(), offset)
