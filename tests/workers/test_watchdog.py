"""Connected but not consuming: found out, taken up afresh, and in the end given up."""

from __future__ import annotations

from pathlib import Path

from tests.scheduler.support import devices, request, wait_for
from tests.workers.support import WORKER, results
from workers.ending import TRY_AGAIN
from workers.scheduler import CeleryControl
from workers.watchdog import Watchdog, waiting


def test_half_a_minute_of_hunger_resets_and_another_ends() -> None:
    dog = Watchdog()
    assert [dog.look(t, starves=True) for t in (0, 29, 30, 31, 59, 60)] == [
        "fine", "fine", "reset", "fine", "fine", "end",
    ]  # fmt: skip


def test_one_moment_without_hunger_starts_the_count_afresh() -> None:
    dog = Watchdog()
    looks = [(0, True), (29, True), (30, False), (31, True), (60, True), (61, True), (80, False), (95, True)]
    assert [dog.look(t, starves=hungry) for t, hungry in looks] == ["fine"] * 5 + ["reset"] + ["fine"] * 2
    assert dog.look(125, starves=True) == "reset", "the earlier reset helped"


def test_only_requests_for_this_device_and_role_count() -> None:
    lengths = {"validate:cpu": "2", "validate:h200": "3", "profile:cpu": "4", "profile:": "1"}
    assert waiting(lengths, {"validate"}, ("cpu",)) == 2
    assert waiting(lengths, {"validate", "profile"}, ("cuda", "h200")) == 3
    assert waiting(lengths, (), ("cpu",)) == 0


def test_a_lost_subscription_is_taken_up_again(device, submit, redis_client, celery_app) -> None:
    worker = device(SPECGEN_WATCHDOG_S="1")
    control = CeleryControl(celery_app)

    def deaf() -> bool:
        for queue in ("validate", "profile"):  # a broadcast is heard only by who listens already
            celery_app.control.cancel_consumer(queue, destination=[WORKER])
        return control.subscriptions([WORKER]) == {WORKER: frozenset()}

    wait_for(deaf, what="it to consume nothing")
    submit(request("waits"))
    wait_for(lambda: results(redis_client), 10, f"the result, see {worker.log}")
    assert "not_consuming" in worker.log.read_text()
    assert worker.process.poll() is None


def test_a_worker_that_stays_deaf_ends_so_that_it_is_started_again(start, submit, redis_client, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    worker = start("tests.workers.deaf_device", "--device", "cpu0", SPECGEN_WATCHDOG_S="1", SPECGEN_TEST_DEAF=str(deaf))
    wait_for(lambda: devices(redis_client), 20, f"the device, see {worker.log}")
    submit(request("first"))
    wait_for(lambda: results(redis_client), 10, "the result")
    deaf.touch()
    submit(request("second"), request("third"))
    assert worker.process.wait(20) == TRY_AGAIN
    text = worker.log.read_text()
    assert text.count("not_consuming") == 1
    assert "is connected but does not consume" in text
    assert devices(redis_client) == []
    assert not redis_client.keys("specgen:held:*")
    assert redis_client.zcard("validate") >= 1, "what it could not take waits"
    assert redis_client.zcard("unacked_index") == 0
