"""A GPU's next cell starts while one evaluates; a core's does not. The cells only count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from specgen.errors import InfrastructureError
from specgen.evaluation.cell import Device
from specgen.evaluation.problems import load_problem
from specgen.scheduler.keys import Keys
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult, Origin, Phase, Status, source_id
from workers import serving

ASKED = EvaluationRequest(
    request_id="r", job_id="j", iteration=0, candidate_id=source_id("x"), phase=Phase.VALIDATE, origin=Origin.MAIN,
    source="x", problem=load_problem("T4"),
)  # fmt: skip


class Counted:
    """A cell that answers at once."""

    alive: list[Counted] = []  # noqa: RUF012
    at_submit: list[int] = []  # noqa: RUF012  how many lived when a request came
    failing = False
    pgid = 0

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path) -> Counted:
        if cls.failing:
            raise InfrastructureError("no process can be started")
        cls.alive.append(made := cls())
        return made

    def submit(self, asked: EvaluationRequest) -> None:
        self.at_submit.append(len(self.alive))

    def poll(self, timeout_s: float) -> EvaluationResult:
        return EvaluationResult(
            request_id="r", candidate_id=ASKED.candidate_id, phase=Phase.VALIDATE, status=Status.WRONG_SHAPE, error="x"
        )

    def kill(self, grace_s: float = 2.0) -> None:
        self.alive.remove(self)


@pytest.fixture
def server(redis_client: redis.Redis, tmp_path: Path) -> Callable[[Device], serving.Server]:
    Counted.alive.clear()
    Counted.at_submit.clear()
    Counted.failing = False
    return lambda device: serving.Server(
        redis_client, Keys("spare", "fair_laf"), "worker", device, EvaluationPolicy(), tmp_path, _cell_type=Counted
    )


GPU, CORE = Device("here/gpu0", "cuda", 0), Device("here/cpu0", "cpu", 0)


@pytest.mark.parametrize(("device", "ready"), [(GPU, 1), (CORE, 0)])
def test_the_next_cell_starts_meanwhile_on_a_gpu(
    server: Callable[[Device], serving.Server], device: Device, ready: int
) -> None:
    one = server(device)
    one.prepare()
    for _ in range(3):
        one.evaluate(ASKED, 0.0)
        assert len(Counted.alive) == ready  # what is there as soon as the result is
        one.warm_next()
        assert len(Counted.alive) == 1
    assert Counted.at_submit == [1, 1, 1]
    one.shutdown()
    assert Counted.alive == []


def test_a_spare_that_cannot_be_started_costs_nobody_a_result(server: Callable[[Device], serving.Server]) -> None:
    one = server(GPU)
    one.prepare()
    Counted.failing = True
    assert one.evaluate(ASKED, 0.0).status is Status.WRONG_SHAPE
    one.warm_next()
    assert Counted.alive == []
    Counted.failing = False
    one.warm_next()
    assert one.evaluate(ASKED, 0.0).status is Status.WRONG_SHAPE
    one.shutdown()
    assert Counted.alive == []
