"""A device that is not fit consumes nothing, is shown, is probed again, and returns; and what its requests see."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from specgen.evaluation.cell import Cell, Device, close_zygote
from specgen.scheduler.keys import Keys
from specgen.settings import Settings
from specgen.types import Status
from tests.scheduler.support import request, wait_for
from tests.workers.support import device_state, results, running
from workers.health import Suspicion, Turn
from workers.probing import Probe, examine

KEYS = Keys()
DEAD = json.dumps({"exit": True})


def test_a_device_is_quarantined_shown_probed_again_and_lifted(device, submit, redis_client, redis_url, tmp_path):
    """Broken when its worker starts, with a request waiting; later after three failures in a row."""
    probe = tmp_path / "probe"
    probe.write_text(json.dumps({"sleep_s": 0.5, "exit": True}))
    submit(request("first"))
    worker = device(SPECGEN_SLEEP_PROBE=str(probe), SPECGEN_PROBE_AGAIN_S="0.5")
    state = wait_for(lambda: (s := device_state(redis_url)) and s.quarantined and s, what="the quarantine")
    assert "infra_error: the evaluation process ended without a result" in state.quarantined
    wait_for(lambda: redis_client.zcard("validate") == 1 and not redis_client.zcard("unacked_index"), what="its return")
    assert results(redis_client) == []

    probe.write_text("{}")
    wait_for(lambda: results(redis_client), 10, f"the request, see {worker.log}")
    assert not device_state(redis_url).quarantined
    assert results(redis_client)[0].status is Status.VALID

    probe.write_text(DEAD)
    for name in ("x", "y", "z"):
        submit(request(name, source=DEAD))
    wait_for(lambda: len(results(redis_client)) == 4, 10, "three failures")
    wait_for(lambda: device_state(redis_url).quarantined.startswith("infra_error"), 10, "the quarantine")
    submit(request("last"))
    wait_for(lambda: worker.log.read_text().count("device_unfit") >= 4, 10, "another probe")
    assert len(results(redis_client)) == 4
    probe.write_text("{}")
    wait_for(lambda: len(results(redis_client)) == 5, 10, f"the last request, see {worker.log}")
    assert [r.status for r in results(redis_client)] == [Status.VALID, *[Status.INFRA_ERROR] * 3, Status.VALID]


def test_an_evaluation_killed_from_outside_is_an_outcome(device, submit, redis_client):
    """As the kernel does it when memory runs out: SIGKILL to the process that evaluates."""
    device()
    submit(request("victim", source=json.dumps({"sleep_s": 60})))
    group = wait_for(lambda: running(redis_client), what="the evaluation")
    wait_for(lambda: redis_client.keys(KEYS.start("*")), what="the start claim")
    submit(request("next"))
    os.killpg(group.pgid, signal.SIGKILL)
    wait_for(lambda: len(results(redis_client)) == 2, what="both results")
    killed, after = results(redis_client)
    assert (killed.candidate_id, killed.status) == ("victim", Status.INFRA_ERROR)
    assert "ended without a result" in killed.error
    assert (after.candidate_id, after.status) == ("next", Status.VALID)
    wait_for(lambda: redis_client.keys("specgen:message:*") == [], what="both acknowledged")


def test_a_redis_that_refuses_writes_is_waited_for(device, submit, redis_client):
    """Its memory is full while a request runs: the result arrives once it is not."""
    worker = device()
    submit(request("runs", source=json.dumps({"sleep_s": 1.0})))
    wait_for(lambda: redis_client.keys(KEYS.start("*")), what="the start claim")
    redis_client.config_set("maxmemory", 1)
    try:
        wait_for(lambda: "redis_away" in worker.log.read_text(), 10, "a line about it")
        assert results(redis_client) == []
    finally:
        redis_client.config_set("maxmemory", 0)
    wait_for(lambda: results(redis_client), 10, f"the result, see {worker.log}")
    wait_for(lambda: redis_client.keys("specgen:message:*") == [], 10, "the acknowledgement")
    submit(request("after"))
    wait_for(lambda: len(results(redis_client)) == 2, 10, f"the next result, see {worker.log}")
    assert [r.candidate_id for r in results(redis_client)] == ["runs", "after"]


def test_a_probe_that_hangs_is_given_up(tmp_path, monkeypatch) -> None:
    order = tmp_path / "probe"
    order.write_text(json.dumps({"sleep_s": 60}))
    monkeypatch.setenv("SPECGEN_CELL", "benchmarks.sleep_cell:SleepCell")
    monkeypatch.setenv("SPECGEN_SLEEP_PROBE", str(order))
    probe = Probe(Device("cpu0", "cpu", 0), limit_s=2.0)
    probing = probe.start()
    assert probing is not None
    assert "no answer within 2 s" in probe.wait(probing).why
    assert probing.process.returncode is not None


def test_the_real_probe_tells_a_device_that_works_from_one_that_does_not(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    cache = Path(os.environ.get("SPECGEN_TEST_CACHE") or tmp_path)
    settings = Settings(cache=cache)
    try:
        assert examine(Device(f"cpu{core}", "cpu", core), settings, Cell, 60.0).why == ""
        assert "infra_error" in examine(Device("cpu4000", "cpu", 4000), settings, Cell, 60.0).why
    finally:
        close_zygote()


def test_suspicion_needs_three_failures_in_a_row() -> None:
    suspicion = Suspicion()
    for status in (Status.INFRA_ERROR, Status.INFRA_ERROR, Status.HANG, Status.INFRA_ERROR, Status.INFRA_ERROR):
        suspicion.learn(status, "why")
    assert suspicion.heard(0) == ""
    suspicion.learn(Status.INFRA_ERROR, "the\nlast")
    assert suspicion.heard(0).endswith("the last: the last")
    assert suspicion.heard(0) == ""


@pytest.mark.parametrize("killed", [False, True])
def test_a_turn_is_held_by_one_process_and_given_up_by_a_dead_one(killed: bool) -> None:
    turn = Turn()
    ready, tell = os.pipe()
    go, let = os.pipe()
    child = os.fork()
    if not child:
        turn.take()
        os.write(tell, b"x")
        os.read(go, 1)
        turn.give()
        os.write(tell, b"x")
        signal.pause()
    try:
        os.read(ready, 1)
        assert not turn.take(lambda: True)
        if killed:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        else:
            os.write(let, b"x")
            os.read(ready, 1)
        assert turn.take(lambda: True)
    finally:
        turn.give()
        if not killed:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
