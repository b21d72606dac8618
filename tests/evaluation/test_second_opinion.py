"""Fast builds that stock judges too: which, what a difference means, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from specgen.evaluation import second_opinion
from specgen.evaluation.build import sampling
from specgen.evaluation.cell import Device
from specgen.scheduler.keys import Keys
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Phase, Status
from tests.evaluation.conftest import request
from workers import serving

ALWAYS = EvaluationPolicy(audit_rate=1.0)
ASKED = request("class ModelNew: pass\n")


def result(status: Status = Status.VALID, route: str = "facade", error: str = "") -> EvaluationResult:
    speedup = 2.0 if status is Status.VALID else None
    return EvaluationResult(
        request_id="request", candidate_id=ASKED.candidate_id, phase=Phase.VALIDATE, status=status, speedup=speedup,
        build_route=route, error=error, rule="r" if status is Status.REJECTED else "",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is shipped with the product."""
    monkeypatch.setattr(sampling, "_RECORDS", Path("/nonexistent"))


@pytest.mark.parametrize(
    ("first", "asked", "policy", "expected"),
    [
        (result(), ASKED, ALWAYS, True),
        (result(Status.WRONG_VALUE, "cached"), ASKED, ALWAYS, True),
        (result(route="stock"), ASKED, ALWAYS, False),
        (result(route="none"), ASKED, ALWAYS, False),
        (result(Status.COMPILE_ERROR, "stock"), ASKED, ALWAYS, False),
        (result(Status.HANG), ASKED, ALWAYS, False),
        (result(Status.INFRA_ERROR), ASKED, ALWAYS, False),
        (result(), ASKED.model_copy(update={"phase": Phase.PROFILE}), ALWAYS, False),
        (result(), ASKED, EvaluationPolicy(audit_rate=0.0), False),
        (result(), ASKED, EvaluationPolicy(audit_rate=1.0, build="stock"), False),
    ],
)
def test_what_was_built_fast_and_has_a_verdict_is_sampled(
    first: EvaluationResult, asked: EvaluationRequest, policy: EvaluationPolicy, expected: bool, tmp_path: Path
) -> None:
    assert second_opinion.wanted(asked, first, policy, tmp_path) is expected


def test_about_every_tenth_candidate_is_sampled_and_always_the_same() -> None:
    names = [f"candidate {number}" for number in range(5000)]
    sampled = [name for name in names if sampling.chosen(name, 0.1)]
    assert 400 < len(sampled) < 600
    assert sampled == [name for name in names if sampling.chosen(name, 0.1)]
    assert not any(sampling.chosen(name, 0.0) for name in names)


def test_the_same_verdict_stays_and_is_counted(tmp_path: Path) -> None:
    official = second_opinion.settle(ASKED, result(), result(route="stock"), tmp_path)
    assert official.build_route == "facade"
    assert official.environment["second_opinion"] == "stock agrees"
    assert not second_opinion.disputed(tmp_path, ASKED.source)
    (kept,) = (tmp_path / "audits").iterdir()
    assert json.loads(kept.read_text())["agree"] is True


def test_stocks_verdict_counts_where_they_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    official = second_opinion.settle(
        ASKED, result(Status.WRONG_VALUE, error="far off"), result(route="stock"), tmp_path
    )
    assert (official.status, official.build_route) == (Status.VALID, "stock")
    assert official.environment["second_opinion"] == "stock disagrees with the façade's wrong_value: far off"
    assert "disagree" in caplog.text
    assert second_opinion.disputed(tmp_path, ASKED.source)
    assert not second_opinion.wanted(ASKED, result(), ALWAYS, tmp_path)  # it is built by stock from now on


@pytest.mark.parametrize(
    ("ours", "theirs", "agree"),
    [
        ("x has 3 rows at 0x7f01", "x has 5 rows at 0x7f33", True),  # of inputs that differ from run to run
        ("expected Float", "expected Half", False),
    ],
)
def test_messages_are_compared_too(ours: str, theirs: str, agree: bool, tmp_path: Path) -> None:
    first, second = (result(Status.RUNTIME_ERROR, error=text) for text in (ours, theirs))
    second_opinion.settle(ASKED, first, second, tmp_path)
    assert second_opinion.disputed(tmp_path, ASKED.source) is not agree


@pytest.mark.parametrize("second", [None, result(Status.INFRA_ERROR), result(Status.COMPILE_TIMEOUT)])
def test_an_opinion_that_is_none_changes_nothing(second: EvaluationResult | None, tmp_path: Path) -> None:
    official = second_opinion.settle(ASKED, result(), second, tmp_path)
    assert official.status is Status.VALID
    assert official.environment["second_opinion"].startswith("none: ")
    assert not (tmp_path / "audits").exists()


def test_a_hundred_pairs_that_agree_are_enough(tmp_path: Path) -> None:
    for _ in range(sampling.ENOUGH):
        assert second_opinion.wanted(ASKED, result(), ALWAYS, tmp_path)
        second_opinion.settle(ASKED, result(), result(route="stock"), tmp_path)
    assert not second_opinion.wanted(ASKED, result(), ALWAYS, tmp_path)


def test_a_record_holds_for_its_facade_torch_release_and_backend(tmp_path: Path) -> None:
    records = tmp_path / "audited.json"
    sampling.record("cpu", "2.13.0+cpu", 120, 0, records)
    sampling.record("cpu", "2.11.0", 120, 1, records)
    assert sampling.audited("cpu", "2.13.1", records)
    assert not sampling.audited("cpu", "2.14.0", records)
    assert not sampling.audited("cpu", "2.11.0", records)  # one pair disagreed
    assert not sampling.audited("cuda", "2.13.0", records)
    sampling.record("cpu", "2.13.0", 99, 0, records)
    assert not sampling.audited("cpu", "2.13.0", records)


class TwoMinds:
    """A cell whose verdict depends on the route, which a real one's must never."""

    started: list[str] = []  # noqa: RUF012
    pgid = 0

    def __init__(self, build: str) -> None:
        self.build = build

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path) -> TwoMinds:
        cls.started.append(policy.build)
        return cls(policy.build)

    def submit(self, asked: EvaluationRequest) -> None:
        self.asked = asked

    def poll(self, timeout_s: float) -> EvaluationResult:
        return result(Status.WRONG_VALUE) if self.build == "auto" else result(route="stock")

    def kill(self, grace_s: float = 2.0) -> None:
        pass


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[serving.Server]:
    TwoMinds.started.clear()
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield serving.Server(
            client, Keys("opinion", "fair_laf"), "worker", Device("here/cpu0", "cpu", 0), ALWAYS, tmp_path,
            _cell_type=TwoMinds,
        )  # fmt: skip


def test_a_device_worker_asks_stock_and_keeps_to_it(server: serving.Server) -> None:
    official = server.evaluate(ASKED, 0.0)
    assert (official.status, TwoMinds.started) == (Status.VALID, ["auto", "stock"])
    later = server.evaluate(ASKED.model_copy(update={"phase": Phase.PROFILE}), 0.0)
    assert later.status is Status.VALID
    assert TwoMinds.started == ["auto", "stock", "stock"]
