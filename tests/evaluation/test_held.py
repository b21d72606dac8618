"""Where a model keeps parameters, and whose code a forward's time goes to: the harness's parts by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from specgen.evaluation import held, sampler
from specgen.evaluation.audit import OperatorLog
from specgen.evaluation.wire import close_all, memory_file_of


def reference() -> dict[str, torch.Tensor]:
    torch.manual_seed(42)
    linear, norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
    own = {f"linear.{name}": value for name, value in linear.named_parameters()}
    return {
        name: value.detach() for name, value in (own | {f"norm.{n}": v for n, v in norm.named_parameters()}).items()
    }


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(42)
        linear = nn.Linear(6, 4)
        self.turned = nn.Parameter(linear.weight.detach().t().contiguous())
        self.kept = [linear.bias.detach().clone().view(1, 4)]
        self.bn = nn.BatchNorm1d(4)
        self.first = self.turned[:2]  # a view: it must follow


def test_parameters_are_found_under_other_names_and_in_another_order() -> None:
    values = reference()
    model = Renamed()
    found = held.places(model, values)
    assert {place.wanted for place in found} == set(values)
    orders = {place.wanted: place.order for place in found}
    assert orders["linear.weight"] == (1, 0)
    tensors = {place.wanted: place.tensor for place in found}
    assert tensors["norm.weight"] is model.bn.weight  # only ones, as running_var is
    assert tensors["norm.bias"] is model.bn.bias


def test_what_is_bound_changes_with_the_memory_and_without_a_version() -> None:
    values = reference()
    model = Renamed()
    found = held.places(model, values)
    memory = [place.tensor.detach().clone() for place in found]
    held.bind(model, found, memory)
    version = model.turned._version
    for part in memory:
        part.mul_(3)
    assert torch.equal(model.turned.t(), 3 * values["linear.weight"])
    assert torch.equal(model.kept[0].view(-1), 3 * values["linear.bias"])
    assert torch.equal(model.first, 3 * values["linear.weight"].t()[:2])
    assert model.turned._version == version


def test_a_derived_value_is_no_place() -> None:
    model = nn.Module()
    model.total = nn.Parameter(reference()["linear.weight"].sum(0))
    assert not [place for place in held.places(model, reference()) if place.wanted == "linear.weight"]


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> sampler.Sampler:
    compiled = sampler.library(tmp_path_factory.mktemp("sampler"))
    assert compiled is not None
    fd = memory_file_of(compiled, sampler.MEMORY)
    try:
        return sampler.Sampler(fd, set(), "")
    finally:
        close_all([fd])


def test_an_operator_that_torch_saw_is_told_from_a_library_that_it_did_not(look: sampler.Sampler) -> None:
    a = torch.rand(300, 300)
    with OperatorLog(look.operator):
        runs, seen = look.look(lambda: a @ a)
    assert runs > 0
    assert seen["operator"] > 0.7 * sum(seen.values())
    b = np.random.default_rng(1).random((300, 300))
    with OperatorLog(look.operator):
        _, hidden = look.look(lambda: b @ b)
    assert hidden["foreign"] > 0.7 * sum(hidden.values())
    assert "operator" not in hidden
