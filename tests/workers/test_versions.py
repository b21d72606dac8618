"""One version a pool: who meets a live member of another is refused, and an empty pool takes anyone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import redis

import specgen
from specgen.errors import EnvironmentLacking
from specgen.scheduler import members
from specgen.scheduler.keys import Keys
from specgen.scheduler.members import Membership, keep
from tests.scheduler.support import ROOT, wait_for

KEYS = Keys()
OLD = "0.0.9"


def member(client: redis.Redis, name: str, version: str = specgen.__version__) -> Membership:
    return Membership(client, KEYS, name, "test", version)


def test_another_version_is_refused_with_both_versions_until_the_last_member_has_left(redis_client) -> None:
    first, second = member(redis_client, "a", OLD), member(redis_client, "b", OLD)
    first.join()
    second.join()
    newer = member(redis_client, "c")
    for refused in (newer.join, newer.check):
        with pytest.raises(EnvironmentLacking) as caught:
            refused()
        assert OLD in caught.value.message
        assert specgen.__version__ in caught.value.message
        assert str(os.getpid()) in caught.value.message
        assert caught.value.hint
    first.leave()
    with pytest.raises(EnvironmentLacking):
        newer.join()
    second.leave()
    newer.check()
    assert redis_client.zcard("specgen:members") == 0, "asking does not join"
    newer.join()
    with pytest.raises(EnvironmentLacking):
        first.join()


def test_a_member_that_is_silent_counts_for_fifteen_seconds(redis_client) -> None:
    member(redis_client, "a", OLD).join()
    redis_client.zincrby("specgen:members", -members.TTL_S + 1, "a")
    with pytest.raises(EnvironmentLacking):
        member(redis_client, "b").join()
    redis_client.zincrby("specgen:members", -1, "a")
    member(redis_client, "b").join()
    assert redis_client.hkeys("specgen:member_info") == ["b"]


def test_a_killed_process_of_this_host_is_not_waited_for(redis_client, redis_url) -> None:
    code = (
        "import os, redis\nfrom specgen.scheduler.keys import Keys\nfrom specgen.scheduler.members import Membership\n"
        f"client = redis.Redis.from_url({redis_url!r})\n"
        f"Membership(client, Keys(), 'killed', 'test', {OLD!r}).join()\nos.kill(os.getpid(), {signal.SIGKILL.value})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert redis_client.zrange("specgen:members", 0, -1) == ["killed"]
    member(redis_client, "a").join()
    assert redis_client.zrange("specgen:members", 0, -1) == ["a"]


def test_a_member_that_slept_through_an_upgrade_is_told_to_end(redis_client, monkeypatch) -> None:
    refused: list[EnvironmentLacking] = []
    sleeper = member(redis_client, "sleeper", OLD)
    sleeper.join()
    redis_client.flushall()  # as if fifteen seconds had passed
    member(redis_client, "newer").join()
    monkeypatch.setattr(members, "BEAT_S", 0.05)
    thread = keep(sleeper, threading.Event(), refused.append)
    thread.join(5)
    assert not thread.is_alive()
    assert OLD in refused[0].message
    assert redis_client.zrange("specgen:members", 0, -1) == ["newer"]


def test_a_member_that_redis_forgot_joins_again_and_leaves_when_it_stops(redis_client, monkeypatch) -> None:
    monkeypatch.setattr(members, "BEAT_S", 0.05)
    stop = threading.Event()
    thread = keep(member(redis_client, "a"), stop)
    wait_for(lambda: redis_client.zcard("specgen:members"), what="it to join")
    redis_client.flushall()
    wait_for(lambda: redis_client.zcard("specgen:members"), what="it to join again")
    stop.set()
    thread.join(5)
    assert redis_client.zcard("specgen:members") == 0


def test_a_device_worker_of_another_version_does_not_start(start, redis_client) -> None:
    member(redis_client, "scheduler", OLD).join()
    worker = start("workers.device", "--device", "cpu0")
    assert worker.process.wait(20) == 2
    line, hint = worker.log.read_text().strip().splitlines()
    assert line.startswith(f"specgen: this is specgen {specgen.__version__}, but scheduler")
    assert OLD in line
    assert "hint:" in hint
    assert redis_client.zrange("specgen:members", 0, -1) == ["scheduler"]
    assert not redis_client.keys("specgen:held:*")
    assert not redis_client.exists(KEYS.devices)


def test_queues_of_a_version_that_kept_lists_are_forgotten(redis_url, redis_client):
    """What waited there is in the database, and comes again from there."""
    redis_client.lpush("profile", "old-tag")
    redis_client.hset("specgen:message:old-tag", mapping={"queue": "profile", "arrival": 1})
    redis_client.zadd("unacked_index", {"old-tag": 1.0})
    Membership(redis_client, Keys(), "someone", "device").join()
    assert redis_client.keys("specgen:message:*") == []
    assert redis_client.exists("profile", "unacked_index") == 0
