"""Comparison beside the output's variation, distributions and their strength, renewed values: without a candidate."""

from __future__ import annotations

import pytest
import torch

from specgen.evaluation.compare import agree, compare
from specgen.evaluation.problems import load_problem
from specgen.evaluation.reference import Reference
from specgen.evaluation.renewal import Renewed
from specgen.evaluation.trials import continuous, other, rounded, signed, spiked
from specgen.types import ProblemSpec, Status


def test_an_error_beside_the_variation_is_wrong_whatever_the_tolerance() -> None:
    want = 1000 + torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert compare(want + 0.1, want, 1e-2) is None
    difference = compare(torch.full_like(want, 1000.0), want, 1e-2)
    assert difference is not None
    assert difference.status is Status.WRONG_VALUE
    assert "standard deviation" in difference.text


def test_a_constant_output_and_a_single_number_have_no_variation() -> None:
    assert compare(torch.full((100,), 3.0 + 1e-6), torch.full((100,), 3.0), 1e-4) is None
    assert compare(torch.tensor(1.005), torch.tensor(1.0), 1e-2) is None


def test_large_elements_keep_their_relative_tolerance() -> None:
    want = torch.ones(10_000)
    want[0] = 1e6
    got = want.clone()
    got[0] *= 1.005
    assert compare(got, want, 1e-2, scaled=True) is None


def problem(forward: str, inputs: str) -> Reference:
    source = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, a):\n"
        f"        return {forward}\ndef get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )
    return Reference(ProblemSpec(name="mine", source=source))


def test_a_distribution_is_drawn_more_gently_where_the_reference_cannot_stand_it() -> None:
    reference = problem("torch.exp(a / 2).cumsum(1)", "torch.rand(64, 64)")  # a spike of 205 overflows
    trial = other(reference, "spikes", spiked, 1e-2)
    assert trial is not None
    assert trial.strength < 1
    plain = other(problem("a * 2", "torch.rand(64, 64)"), "spikes", spiked, 1e-2)
    assert plain is not None
    assert plain.strength == 1


def test_what_no_strength_helps_is_left_out() -> None:
    assert other(problem("torch.log(a - 0.5) * 0 / 0", "torch.rand(64, 64)"), "signs", signed, 1e-2) is None


@pytest.mark.parametrize("name", ["T6", "T16", "T18"])
def test_products_norms_and_softmax_are_tried_on_every_distribution(name: str) -> None:
    reference = Reference(load_problem(name))
    assert other(reference, "signs", signed, 1e-2) is not None
    assert other(reference, "spikes", spiked, 1e-2) is not None


def test_no_scale_turns_an_earlier_result_into_a_new_one() -> None:
    torch.manual_seed(3)
    a, b = torch.rand(64, 32), torch.rand(32, 48)
    renewed = Renewed([a, b])
    seen = []
    for _ in range(2):
        renewed.renew()
        seen.append([part.clone() for part in renewed.private])
    (a1, b1), (a2, b2) = seen
    ratio = (a2 @ b2) / (a1 @ b1)
    assert float(ratio.std() / ratio.mean()) > 0.01
    assert float((a2 / a1).std()) > 0.1


def test_structure_and_range_stay() -> None:
    triangle = torch.triu(torch.rand(32, 32))
    symmetric = torch.rand(32, 32)
    symmetric = symmetric + symmetric.T
    codes = torch.tensor([-1.0, 1.0]).repeat(40)
    renewed = Renewed([triangle, symmetric, codes])
    renewed.renew()
    upper, same, fixed = renewed.private
    assert torch.equal(torch.tril(upper, -1), torch.zeros(32, 32))
    assert torch.equal(same, same.T)
    assert torch.equal(fixed, codes)
    assert bool((upper <= triangle).all())
    assert bool((upper >= triangle / 2).all())


def test_spikes_carry_weight_and_keep_equal_values_equal() -> None:
    a = torch.rand(64, 64)
    renewed = Renewed([a + a.T])
    renewed.renew(spikes=1.0)
    (spiked_,) = renewed.private
    assert torch.equal(spiked_, spiked_.T)
    assert float(spiked_.max()) > 0.09 * float((a + a.T).sum())


def test_integers_are_drawn_anew() -> None:
    numbers = iter(range(1, 10))
    renewed = Renewed([torch.zeros(8, dtype=torch.int64)], redraw=lambda: [torch.full((8,), next(numbers))])
    renewed.renew()
    first = renewed.private[0].clone()
    renewed.renew()
    assert not torch.equal(first, renewed.private[0])


def test_ten_bits_are_ten_bits() -> None:
    value = torch.rand(1000)
    short = rounded(value, 10)
    assert torch.equal(rounded(short, 10), short)
    assert torch.equal(short.half().float(), short)
    assert float((short - value).abs().max()) <= 2.0**-11


@pytest.mark.parametrize(
    ("leaf", "real"),
    [
        (torch.triu(torch.rand(4096, 4096)), True),  # every 4096th element lies in the first column
        (torch.tril(torch.rand(1024, 1024)), True),
        (torch.diag(torch.rand(256)), True),
        (torch.randint(0, 2, (4096,)) * 2.0 - 1, False),
        (torch.arange(4096), False),
    ],
)
def test_real_numbers_are_told_from_codes(leaf: torch.Tensor, real: bool) -> None:
    assert continuous(leaf) is real


def test_agreement_needs_no_words() -> None:
    want = torch.rand(100)
    far = want.clone()
    far[3] += 1
    assert agree(want, want, 1e-4)
    assert not agree(far, want, 1e-4)
    assert not agree(far.masked_fill(far > 1, float("nan")), want, 1e-4, scaled=True)
    assert not agree(torch.full_like(want, 0.5), want, 0.6)  # within the tolerance, and as large as the variation
    assert not agree([want], (want, want), 1e-4)
