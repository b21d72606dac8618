"""Speedups that are not true are refused, each by behaviour, with a rule or as a wrong value.

All cheats are ``benchmarks/honest``'s, which runs every one of them; here are some of each kind.
"""

from __future__ import annotations

import pytest

from benchmarks.honest.base import t4
from benchmarks.honest.cheats import CHEATS, QUICK
from benchmarks.honest.cpu_models import kernels as models
from benchmarks.honest.cpu_products import kernels as products
from benchmarks.honest.kinds import Cheat, Kind
from specgen.types import Status

from .conftest import Evaluate

HONEST = {kernel.name: kernel for kernel in (*products(), *models())}


@pytest.mark.parametrize("cheat", QUICK, ids=lambda cheat: cheat.name)
def test_a_cheat_is_refused(judge: Evaluate, cheat: Cheat) -> None:
    result = judge(cheat.source, cheat.problem, phase=cheat.phase, warmups=cheat.warmups, timed_runs=cheat.timed_runs)
    assert cheat.held(result.status, result.rule), (result.status, result.rule, result.error)
    assert result.speedup is None
    if result.status is Status.REJECTED:  # the LLM reads rule and number too
        name, _, number = result.rule.partition(": ")
        assert number
        assert f"rule {name} ({number})" in result.error


def test_every_kind_is_tried() -> None:
    assert {cheat.kind for cheat in QUICK} == set(Kind)
    assert len({cheat.name for cheat in CHEATS}) == len({cheat.source for cheat in CHEATS}) == len(CHEATS)
    assert len({kernel.id for kernel in HONEST.values()}) == len(HONEST) >= 100
    assert {kernel.task for kernel in HONEST.values()} == {f"T{number}" for number in range(1, 21)}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("T17 tf32, same", {"reduced_precision", "tf32"}),
        ("T2 half", {"reduced_precision", "half"}),
        ("T2 packed in each call", set()),
    ],
)
def test_an_honest_kernel_is_labelled_by_what_its_errors_show(judge: Evaluate, name: str, labels: set[str]) -> None:
    result = judge(HONEST[name].source, HONEST[name].task)
    assert result.status is Status.VALID, (result.rule, result.error)
    assert set(result.labels) == labels
    assert result.environment["distributions"] == "4 of 4"


def test_parameters_under_other_names_are_found_by_their_values(judge: Evaluate) -> None:
    kernel = HONEST["T12 sums of columns by torch"]
    result = judge(kernel.source, kernel.task)
    assert result.status is Status.VALID, (result.rule, result.error)
    assert result.environment["parameters"].endswith("1 of 1 found by name or values")
    assert "uses_library" in result.labels


def test_work_of_the_library_beside_own_kernels_is_honest(judge: Evaluate) -> None:
    result = judge(t4(forward="        return ext.diag_mul(a + 0, b)"))
    assert result.status is Status.VALID, (result.rule, result.error)
    assert result.labels == ("uses_library",)
