"""What a device worker promises, with real workers, real processes and real signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from specgen.scheduler import process_groups
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import PoolState, RedisPool
from specgen.types import Status
from tests.scheduler.support import devices, request, wait_for
from tests.workers.support import WORKER, results, running
from workers.scheduler import CeleryControl

KEYS = Keys()


def source(**order) -> str:
    return json.dumps(order)


def close(redis_url: str, scope: str) -> int:
    async def body() -> int:
        pool = RedisPool(redis_url, lambda *_: None)
        try:
            return await pool.close(scope)
        finally:
            await pool.aclose()

    return asyncio.run(body())


def state(app, request_id: str) -> str:
    return app.backend.get_task_meta(request_id)["status"]


def test_requests_are_served_in_order_and_published(device, submit, redis_client, celery_app):
    first = request("blocks", source=source(sleep_s=0.5), phase="profile", enqueued_at=time.time() - 3600)
    submit(first)
    device()
    wait_for(lambda: redis_client.hexists(KEYS.busy, WORKER), what="busy")
    for name, phase, origin in [
        ("v1", "validate", "fork"), ("p1", "profile", "fork"), ("v2", "validate", "fork"),
        ("vm", "validate", "main"), ("p2", "profile", "fork"), ("pm", "profile", "main"),
    ]:  # fmt: skip
        submit(request(name, phase=phase, origin=origin))
    wait_for(lambda: len(results(redis_client)) == 7, what="seven results")
    got = results(redis_client)
    assert [r.candidate_id for r in got] == ["blocks", "pm", "p1", "p2", "vm", "v2", "v1"]
    assert {(r.status, r.worker, r.device) for r in got} == {(Status.VALID, WORKER, "cpu0")}
    assert got[0].device_s >= 0.5
    assert got[0].queue_s < 60, "as Redis measured it: the sender's clock is an hour behind"
    assert got[1].queue_s > 0.0
    wait_for(lambda: state(celery_app, first.request_id) == "SUCCESS")
    wait_for(lambda: not redis_client.hexists(KEYS.busy, WORKER), what="idle")
    wait_for(lambda: redis_client.keys("specgen:message:*") == [], what="the acknowledgements")
    assert redis_client.zcard("unacked_index") == 0


def test_a_boundary_aborts_what_runs_and_only_that(device, submit, redis_client, redis_url, celery_app):
    device()
    doomed = request("doomed", "j/1", source=source(sleep_s=60, child=True))
    submit(doomed)
    group = wait_for(lambda: running(redis_client), what="the evaluation")
    submit(request("queued", "j/1"))
    submit(request("other", "j/12"))

    started = time.monotonic()
    assert close(redis_url, "j/1") == 1
    wait_for(lambda: results(redis_client, "j/12"), 5, "the other scope's request")

    assert time.monotonic() - started < 1.5
    assert process_groups.members(group.pgid) == [], "no orphan"
    assert results(redis_client, "j/1") == []
    assert state(celery_app, doomed.request_id) == "REVOKED"
    assert redis_client.hget(KEYS.counters, "aborted") == "1", "the queued one was dropped"
    wait_for(lambda: redis_client.keys("specgen:message:*") == [], what="the acknowledgements")


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "parent"])
def test_a_worker_killed_while_it_runs_loses_nothing(device, submit, redis_client, whole: bool):
    """SIGKILL to parent and pool process, or to the parent alone, which the pool process must not outlive: restored
    once at the same score, its evaluation ended, then served."""
    worker = device()
    submit(request("victim", source=source(sleep_s=1.5, child=True)))
    group = wait_for(lambda: running(redis_client), what="the evaluation")
    wait_for(lambda: len(process_groups.members(group.pgid)) == 2, what="it to have its order")
    [key] = redis_client.keys("specgen:message:*")
    score = redis_client.hget(key, "score")

    os.kill(group.pgid, signal.SIGSTOP)  # it would never end by itself
    children = process_groups.members(worker.pid)
    if whole:
        worker.kill()
    else:
        worker.process.kill()
        worker.process.wait()
        wait_for(lambda: not process_groups.members(worker.pid), 2, f"the end of {children}")
    assert process_groups.members(group.pgid), "the evaluation outlived its worker"
    device()

    wait_for(lambda: results(redis_client), 15, "the result")
    assert process_groups.members(group.pgid) == [], "the successor ended it"
    assert redis_client.hget(key, "score") in (score, None)
    time.sleep(0.3)
    assert [r.candidate_id for r in results(redis_client)] == ["victim"]


def test_a_dead_workers_request_goes_to_another_within_two_timeouts(device, submit, redis_client):
    worker = device("cpu0", SPECGEN_VISIBILITY_TIMEOUT_S="2")
    redis_client.hset(KEYS.roles, f"device-cpu1@{socket.gethostname()}", "profile")
    device("cpu1", SPECGEN_VISIBILITY_TIMEOUT_S="2")
    wait_for(lambda: len(devices(redis_client)) == 2, what="both")
    submit(request("victim", source=source(sleep_s=0.7)))
    wait_for(lambda: running(redis_client), what="the evaluation")
    [key] = redis_client.keys("specgen:message:*")
    score = float(redis_client.hget(key, "score"))
    worker.kill()
    killed = time.monotonic()
    restored = wait_for(lambda: redis_client.zrange("validate", 0, -1, withscores=True), 10, "the restore")
    assert restored[0][1] == score
    assert time.monotonic() - killed < 2 * 2.0 + 1.0  # and one second for a busy machine
    time.sleep(1.5)
    assert redis_client.zcard("validate") == 1, "once"


def test_a_task_longer_than_the_visibility_timeout_runs_once(device, submit, redis_client):
    for name in ("cpu0", "cpu1"):
        device(name, SPECGEN_VISIBILITY_TIMEOUT_S="1")
    submit(request("long", source=source(sleep_s=4)))
    wait_for(lambda: results(redis_client), 10, "the result")
    time.sleep(1.5)
    assert len(results(redis_client)) == 1
    assert redis_client.keys("specgen:message:*") == []


def test_a_request_that_kills_its_worker_is_quarantined(device, submit, redis_client):
    device()
    submit(request("poison", source=source(kill_worker=True)))
    submit(request("after", "k/1"))
    result = wait_for(lambda: results(redis_client), 30, "the verdict")[0]
    assert result.status is Status.INFRA_ERROR
    assert "quarantined: its worker was lost 3 times" in result.error
    assert redis_client.hget(KEYS.counters, "quarantined") == "1"
    wait_for(lambda: results(redis_client, "k/1"), 10, "the next request")
    wait_for(lambda: redis_client.keys("specgen:message:*") == [], what="both acknowledged")


def test_a_request_that_hangs_ends_with_its_budget(device, submit, redis_client):
    device()
    budget = 0.5
    submit(request("hangs", source=source(sleep_s=60, ignore_sigterm=True, child=True), time_budget_s=budget))
    group = wait_for(lambda: running(redis_client), what="the evaluation")
    result = wait_for(lambda: results(redis_client), 10, "the verdict")[0]
    assert (result.status, result.speedup) == (Status.HANG, None)
    assert result.device_s < budget + 2.0
    assert process_groups.members(group.pgid) == []


def test_sigterm_finishes_the_running_request_first(device, submit, redis_client):
    worker = device()
    for name in ("queued", "runs"):
        submit(request(name, source=source(sleep_s=1.0)))
    wait_for(lambda: running(redis_client), what="the evaluation")
    wait_for(lambda: redis_client.keys(KEYS.start("*")), what="the start claim")
    assert worker.stop() == 0
    assert len(results(redis_client)) == 1
    assert redis_client.zcard("validate") == 1
    assert redis_client.zcard("unacked_index") == 0
    with PoolState(f"unix://{redis_client.connection_pool.connection_kwargs['path']}") as pool:
        assert pool.devices() == []


def test_roles_are_obeyed_switched_and_kept_without_a_scheduler(
    device, start, submit, redis_client, redis_url, celery_app
):
    for name in ("cpu0", "cpu1"):
        device(name)
    scheduler = start("workers.scheduler")
    roles = wait_for(lambda: redis_client.hgetall(KEYS.roles), 15, "roles")
    assert sorted(roles.values()) == ["profile", "validate"]
    profiler = next(worker for worker, role in roles.items() if role == "profile")
    subscriptions = CeleryControl(celery_app).subscriptions
    expected = {worker: frozenset({role}) for worker, role in roles.items()}
    wait_for(lambda: subscriptions(list(roles)) == expected, what="the switch")

    for _ in range(3):
        submit(request("p", phase="profile", source=source(sleep_s=0.2)))
    wait_for(lambda: len(results(redis_client)) == 3, what="three profiles")
    assert {r.worker for r in results(redis_client)} == {profiler}
    close(redis_url, "j/1")
    wait_for(lambda: redis_client.llen(KEYS.boundaries) == 0, what="the scheduler to see the boundary")

    assert scheduler.stop() == 0
    assert not redis_client.exists(KEYS.leader)
    submit(request("v", "j/2"))
    submit(request("p", "j/2", phase="profile"))
    wait_for(lambda: len(results(redis_client, "j/2")) == 2, what="work goes on")


def test_a_device_worker_holds_no_secrets(device, redis_client):
    worker = device(SPECGEN_DATABASE_URL="sqlite:///hidden-4711.db", SPECGEN_LLM__DEFAULT__API_KEY="key-4711")
    group = wait_for(lambda: process_groups.parse(redis_client.hget(KEYS.groups, WORKER)), what="the warm cell")
    assert b"4711" not in Path(f"/proc/{group.pgid}/environ").read_bytes()
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    assert children
    for pid in children:
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "sqlalchemy" not in mapped
        assert "libtorch" not in mapped
