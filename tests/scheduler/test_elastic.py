"""The split follows the queues at boundaries; one scheduler decides; what goes wrong is repaired."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field

import pytest

from specgen.scheduler import elastic
from specgen.scheduler.boundaries import Boundary, merge
from specgen.scheduler.elastic import QUEUES, ElasticScheduler
from specgen.scheduler.keys import Keys
from tests.scheduler.test_pool import add_device

KEYS = Keys()


@dataclass
class Told:
    """Records what workers would be told; answers what they would consume."""

    roles: list[list[str]] = field(default_factory=list)
    consumed: dict[str, frozenset[str]] = field(default_factory=dict)

    def apply_role(self, workers: list[str]) -> None:
        self.roles.append(workers)

    def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
        return {worker: self.consumed[worker] for worker in workers if worker in self.consumed}


@pytest.fixture
def scheduler(redis_client) -> ElasticScheduler:
    for i in range(10):
        add_device(redis_client, f"w{i}")
    return ElasticScheduler(redis_client, KEYS, Told(), interval_s=0.05)


def boundary(client, l_val: int, l_prof: int, scope: str = "j/1", **others: tuple[int, int]) -> None:
    """As close.lua says it; ``others`` are maxima of further labels."""
    maxima = {"cpu": (l_val, l_prof), **others}
    client.lpush(KEYS.boundaries, json.dumps({"scope": scope, "maxima": maxima, "dropped": 1}))


def split(client) -> tuple[int, int]:
    roles = list(client.hgetall(KEYS.roles).values())
    return roles.count("validate"), roles.count("profile")


def test_new_devices_are_split_evenly(scheduler, redis_client):
    decision = scheduler.step()
    assert (decision.reason, decision.moved) == ("devices", 10)
    assert split(redis_client) == (5, 5)
    assert scheduler.step() is None, "nothing to decide"


def test_a_boundary_moves_the_split_at_once_and_it_does_not_oscillate(scheduler, redis_client):
    """L2: a step in profiling load is followed at the first boundary."""
    scheduler.step()
    seen = []
    for l_val, l_prof in [(8, 0), (8, 0), (2, 8), (2, 8), (2, 8)]:
        boundary(redis_client, l_val, l_prof)
        decision = scheduler.step()
        seen.append((decision.validators, decision.profilers, decision.moved))
    assert seen == [(9, 1, 4), (9, 1, 0), (2, 8, 7), (2, 8, 0), (2, 8, 0)]
    assert split(redis_client) == (2, 8)


def test_boundaries_that_come_together_count_as_one(scheduler, redis_client):
    scheduler.step()
    boundary(redis_client, 2, 1, "a/1")
    boundary(redis_client, 0, 8, "b/1")
    decision = scheduler.step()
    assert (decision.max_validate, decision.max_profile, decision.dropped, decision.scope) == (2, 8, 2, "b/1")
    assert redis_client.llen(KEYS.boundaries) == 0
    merged = merge([Boundary("a", {"cpu": (1, 5)}, 1), Boundary("b", {"cpu": (3, 2), "cuda": (1, 0)}, 2)])
    assert merged == Boundary("b", {"cpu": (3, 5), "cuda": (1, 0)}, 3)


def test_decisions_are_recorded(scheduler, redis_client):
    scheduler.step()
    boundary(redis_client, 4, 1)
    scheduler.step()
    entries = [fields for _, fields in redis_client.xrange(KEYS.decisions)]
    assert [entry["reason"] for entry in entries] == ["devices", "boundary"]
    assert (entries[1]["validators"], entries[1]["profilers"], entries[1]["scope"]) == ("8", "2", "j/1")
    assert redis_client.get(KEYS.epoch) == "2"


def test_flexible_devices_serve_both(scheduler, redis_client):
    scheduler.policy = "flexible"
    scheduler.step()
    boundary(redis_client, 9, 1)
    assert scheduler.step().moved == 0
    assert list(redis_client.hgetall(KEYS.roles).values()) == ["both"] * 10


def test_a_device_that_leaves_is_made_up_for(scheduler, redis_client):
    scheduler.step()
    profilers = [worker for worker, role in redis_client.hgetall(KEYS.roles).items() if role == "profile"]
    redis_client.zrem(KEYS.devices, *profilers[:4])
    decision = scheduler.step()
    assert (decision.reason, decision.devices, decision.profilers, decision.moved) == ("devices", 6, 3, 2)


def test_one_decides_and_a_standby_takes_over(scheduler, redis_client):
    standby = ElasticScheduler(redis_client, KEYS, Told(), interval_s=0.01)
    assert scheduler.lead()
    assert not standby.lead()
    assert standby.step() is None
    scheduler.resign()
    assert standby.lead()
    assert not scheduler.lead()


def test_stop_gives_the_lease_up(scheduler, redis_client):
    stop = threading.Event()
    thread = threading.Thread(target=scheduler.run, args=(stop,))
    thread.start()
    while not redis_client.exists(KEYS.leader):
        pass
    stop.set()
    thread.join(5)
    assert not redis_client.exists(KEYS.leader)


def test_a_worker_that_missed_its_role_is_told_again(scheduler, redis_client):
    scheduler.step()
    roles = redis_client.hgetall(KEYS.roles)
    scheduler.control.consumed = {worker: QUEUES[role] for worker, role in roles.items()}
    scheduler.control.consumed["w3"] = frozenset({"validate", "profile"})
    scheduler.control.roles.clear()
    scheduler.step()
    assert scheduler.control.roles == [["w3"]]


def test_a_worker_idle_beside_a_full_queue_is_told_again(scheduler, redis_client, monkeypatch):
    monkeypatch.setattr(elastic, "STUCK_S", 0.0)
    scheduler.step()
    redis_client.hset("specgen:lengths", "validate:cpu", 1)
    scheduler.control.roles.clear()
    scheduler.step()
    told = [worker for workers in scheduler.control.roles for worker in workers]
    roles = redis_client.hgetall(KEYS.roles)
    assert sorted(told) == sorted(worker for worker, role in roles.items() if role == "validate")
