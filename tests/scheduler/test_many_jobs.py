"""Many jobs and unlike devices on one pool: real scripts, real boundaries; workers come and go, schedulers die."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections import Counter

import pytest
import redis

import specgen
from specgen.runtime.valkey import Valkey
from specgen.scheduler import elastic
from specgen.scheduler.boundaries import Boundary
from specgen.scheduler.elastic import QUEUES, ElasticScheduler
from specgen.scheduler.keys import UNACKED_INDEX, Keys, script
from specgen.scheduler.service_times import ServiceTimes
from tests.scheduler.support import WorkerProcess, wait_for
from tests.scheduler.test_elastic import Told, boundary
from tests.scheduler.test_pool import add_device

KEYS = Keys()


class Pool:
    """What jobs do to the queues, by the scripts that do it."""

    def __init__(self, client: redis.Redis, label: str = "cpu") -> None:
        self.client, self.label, self.tags = client, label, itertools.count()

    def run(self, name: str, *args: object):
        return self.client.eval(script(name), 0, *KEYS.args(*args))

    def open(self, scope: str) -> None:
        self.run("open", scope, self.label)

    def put(self, queue: str, scope: str, n: int = 1, label: str = "") -> None:
        for _ in range(n):
            self.run("put", queue, f"t{next(self.tags)}", "{}", scope, "0", "", label or self.label, "0")

    def serve(self, queue: str, n: int = 1) -> None:
        for _ in range(n):
            _, tag, _, deliveries, _ = self.run("grab", UNACKED_INDEX, "", self.label, "1", queue)
            assert self.run("done", UNACKED_INDEX, tag, deliveries) == 1

    def close(self, scope: str) -> None:
        self.run("close", scope, 60, 0)


def scheduler(client: redis.Redis, **kw) -> ElasticScheduler:
    return ElasticScheduler(client, KEYS, Told(), interval_s=0.01, **kw)


def roles_of(client: redis.Redis, *prefixes: str) -> list[dict[str, int]]:
    roles = client.hgetall(KEYS.roles)
    return [Counter(role for worker, role in roles.items() if worker.startswith(prefix)) for prefix in prefixes]


# ------------------------------------------------------------------------------------------------ boundaries


def test_boundaries_of_many_jobs_close_together_see_the_load_not_an_empty_window(redis_client):
    """With maxima that each boundary resets, the second of two boundaries would see nothing and even the split out."""
    for i in range(10):
        add_device(redis_client, f"w{i}")
    pool, it = Pool(redis_client), scheduler(redis_client)
    it.step()
    scopes = [f"job{i}/1" for i in range(40)]
    for scope in scopes:
        pool.open(scope)
    pool.put("validate", "job0/1", 1)
    pool.put("profile", "job1/1", 9)
    pool.serve("validate", 1)
    pool.serve("profile", 9)

    seen = []
    for scope in scopes:
        pool.close(scope)
        decision = it.step()
        seen.append((decision.scope, decision.max_validate, decision.max_profile, decision.profilers))

    assert seen == [(scope, 1, 9, 9) for scope in scopes]


def test_l2_through_redis_a_step_in_load_is_followed_at_the_next_boundary(redis_client):
    """Iterations of one job: all validation, all profiling, and back; requests and boundaries as in a run."""
    for i in range(10):
        add_device(redis_client, f"w{i}")
    pool, it = Pool(redis_client), scheduler(redis_client)
    it.step()
    seen = []
    for iteration, queue in enumerate(["validate"] * 3 + ["profile"] * 3 + ["validate"] * 2):
        scope = f"j/{iteration}"
        pool.open(scope)
        pool.put(queue, scope, 6)
        pool.serve(queue, 2)
        pool.close(scope)
        decision = it.step()
        seen.append((decision.validators, decision.profilers, decision.moved))
    assert seen == [(9, 1, 4), (9, 1, 0), (9, 1, 0), (1, 9, 8), (1, 9, 0), (1, 9, 0), (9, 1, 8), (9, 1, 0)]


def test_a_boundary_that_cannot_be_read_stops_nothing(redis_client):
    add_device(redis_client, "w0")
    add_device(redis_client, "w1")
    it = scheduler(redis_client)
    it.step()
    for text in ["", "[]", '{"scope": 1}', '{"scope": "j/1", "maxima": {"cpu": 3}, "dropped": 0}']:
        redis_client.lpush(KEYS.boundaries, text)
    assert it.step().moved == 0
    assert redis_client.llen(KEYS.boundaries) == 0
    assert Boundary.parse('{"scope": "a/b/3", "dropped": 0, "maxima": {}}').job == "a/b"


# --------------------------------------------------------------------------------------------------- devices


def test_devices_of_each_label_follow_the_queues_of_their_label(redis_client):
    for i in range(4):
        add_device(redis_client, f"h{i}", labels=("cuda", "h200"))
        add_device(redis_client, f"c{i}", labels=("cpu",))
    it = scheduler(redis_client)
    it.step()
    assert roles_of(redis_client, "h", "c") == [{"validate": 2, "profile": 2}] * 2

    boundary(redis_client, 8, 0, cuda=(0, 2), h200=(0, 6))
    decision = it.step()

    assert roles_of(redis_client, "h", "c") == [{"validate": 1, "profile": 3}, {"validate": 3, "profile": 1}]
    assert (decision.devices, decision.validators, decision.profilers, decision.moved) == (8, 4, 4, 2)
    assert json.loads(decision.groups) == [[["cpu"], 4, 3, 1, 1], [["cuda", "h200"], 4, 1, 3, 1]]
    assert redis_client.hget(KEYS.counters, "moved") == "10"


def test_a_quarantined_device_is_made_up_for_and_counts_again_once_it_is_lifted(redis_client):
    for i in range(4):
        add_device(redis_client, f"w{i}")
    pool, it = Pool(redis_client), scheduler(redis_client)
    it.step()
    before = redis_client.hgetall(KEYS.roles)
    profilers = sorted(worker for worker, role in before.items() if role == "profile")
    for worker in profilers:
        pool.run("quarantine", worker, "probe failed")

    decision = it.step()
    assert (decision.reason, decision.devices, decision.validators, decision.profilers) == ("devices", 2, 1, 1)

    for worker in profilers:
        pool.run("quarantine", worker, "")
    decision = it.step()
    assert (decision.devices, decision.validators, decision.profilers, decision.moved) == (4, 2, 2, 1)
    after = redis_client.hgetall(KEYS.roles)
    assert Counter(after.values()) == {"validate": 2, "profile": 2}
    assert sum(after[worker] == "profile" for worker in profilers) >= 1


def test_devices_that_come_have_roles_at_the_next_step_and_those_that_return_keep_theirs(redis_client):
    add_device(redis_client, "a")
    pool, it = Pool(redis_client), scheduler(redis_client)
    it.step()
    assert redis_client.hgetall(KEYS.roles) == {"a": "both"}
    for name in "bcd":
        add_device(redis_client, name)
    it.step()
    roles = redis_client.hgetall(KEYS.roles)
    assert Counter(roles.values()) == {"validate": 2, "profile": 2}

    gone = next(worker for worker, role in roles.items() if role == "profile")
    pool.run("leave", gone, UNACKED_INDEX)
    it.step()
    add_device(redis_client, gone)
    it.step()
    assert redis_client.hgetall(KEYS.roles) == roles


def test_a_device_that_comes_back_with_other_labels_changes_its_group(redis_client, monkeypatch):
    for i in range(4):
        add_device(redis_client, f"w{i}")
    it = scheduler(redis_client)
    it.step()
    add_device(redis_client, "w3", labels=("cuda",))
    monkeypatch.setattr(elastic, "LOOK_S", 0.0)
    it._due.clear()
    it.step()
    assert redis_client.hget(KEYS.roles, "w3") == "both", "alone in its group"


def test_nothing_is_kept_of_devices_gone_for_an_hour(redis_client, monkeypatch):
    """Containers have a new name each time: weeks of them must leave nothing behind."""
    pool, it = Pool(redis_client), scheduler(redis_client)
    add_device(redis_client, "stays")
    it.step()
    names = [f"container{i}" for i in range(30)]
    for name in names:
        add_device(redis_client, name, busy=name.endswith("1"))
        redis_client.hset(KEYS.groups, name, "{}")
    pool.run("quarantine", names[7], "broken")
    it.step()
    for name in names[:15]:
        pool.run("leave", name, UNACKED_INDEX)
    now = float(redis_client.time()[0])
    redis_client.zadd(KEYS.devices, dict.fromkeys(names[15:], now - 3590))

    it._sweep()
    assert redis_client.hlen(KEYS.roles) >= 30, "not yet an hour"
    redis_client.zadd("specgen:gone", dict.fromkeys(names, now - 3600), xx=True)
    add_device(redis_client, names[0])
    it._sweep()

    left = {"stays", names[0]}
    for key in ("roles", "info", "labels", "groups", "quarantined", "busy"):
        assert set(redis_client.hkeys(f"specgen:{key}")) <= left, key
    for key in redis_client.scan_iter("specgen:*"):
        if redis_client.type(key) == "zset":
            assert not set(redis_client.zrange(key, 0, -1)) & (set(names) - left), key
    assert redis_client.hget(KEYS.roles, names[0]), "it came back in time"


# ------------------------------------------------------------------------------------------------ schedulers


def test_a_scheduler_whose_lease_lapsed_writes_nothing_and_its_successor_answers_the_boundary(redis_client):
    for i in range(10):
        add_device(redis_client, f"w{i}")
    old, new = scheduler(redis_client), scheduler(redis_client)
    old.step()
    roles, decisions = redis_client.hgetall(KEYS.roles), redis_client.xlen(KEYS.decisions)
    look = old._look_who_is_busy

    def stopped_here() -> None:  # SIGSTOP for longer than the lease, in the middle of a decision
        look()
        redis_client.set(KEYS.leader, new.name, px=10_000)

    old._look_who_is_busy = stopped_here
    boundary(redis_client, 9, 1)
    assert old.step() is None
    assert redis_client.hgetall(KEYS.roles) == roles
    assert redis_client.xlen(KEYS.decisions) == decisions
    assert old.step() is None, "a standby now"

    decision = new.step()
    assert (decision.scope, decision.validators, decision.moved) == ("j/1", 9, 4)
    assert redis_client.llen(KEYS.boundaries) == 0


def test_a_boundary_is_answered_once_though_its_scheduler_dies_in_the_middle(redis_client):
    for i in range(10):
        add_device(redis_client, f"w{i}")
    first = scheduler(redis_client)
    first.step()
    boundary(redis_client, 9, 1)

    def dies(_: list[str]) -> None:
        raise KeyboardInterrupt

    first.control.apply_role = dies  # roles are written, the decision is not
    with pytest.raises(KeyboardInterrupt):
        first.step()
    redis_client.delete(KEYS.leader)
    second = scheduler(redis_client)
    decision = second.step()
    assert (decision.reason, decision.scope, decision.moved) == ("boundary", "j/1", 0)
    entries = [fields for _, fields in redis_client.xrange(KEYS.decisions)]
    assert [entry["scope"] for entry in entries] == ["", "j/1"]
    wrong = next(worker for worker, role in redis_client.hgetall(KEYS.roles).items() if role == "validate")
    second.control.consumed = {wrong: QUEUES["profile"]}
    second._due["repair"] = 0.0
    second.step()
    assert second.control.roles[-1] == [wrong], "who was not told of its role is told at the next comparison"


def test_taking_the_lease_over_changes_nothing(redis_client):
    for i in range(10):
        add_device(redis_client, f"w{i}")
    first = scheduler(redis_client)
    first.step()
    boundary(redis_client, 9, 1)
    first.step()
    first.resign()
    second = scheduler(redis_client)
    assert [second.step() for _ in range(3)] == [None] * 3
    assert roles_of(redis_client, "w") == [{"validate": 9, "profile": 1}]
    add_device(redis_client, "w10")
    assert second.step().validators == 9, "11 x 1/10 rounded up profile, by the load of the last boundary"


def test_a_step_in_which_nothing_happened_reads_no_device(redis_client):
    for i in range(200):
        add_device(redis_client, f"w{i:03}")
    it = scheduler(redis_client)
    it.step()
    it.step()
    ran: list[str] = []
    run = it._run
    it._run = lambda name, *args: (ran.append(name), run(name, *args))[1]
    commands = redis_client.info("stats")["total_commands_processed"]
    for _ in range(5):
        assert it.step() is None
    assert ran == ["lead", "pulse"] * 5
    assert len(run("pulse")) == 2, "and its answer does not grow with the devices"
    assert redis_client.info("stats")["total_commands_processed"] - commands < 120, "nor do the commands"


def test_workers_are_compared_some_at_a_time_those_that_moved_first(redis_client, monkeypatch):
    asked: list[list[str]] = []

    class Asked(Told):
        def subscriptions(self, workers: list[str]) -> dict[str, frozenset[str]]:
            asked.append(workers)
            return super().subscriptions(workers)

    monkeypatch.setattr(elastic, "REPAIR_S", 0.0)
    names = [f"w{i:03}" for i in range(120)]
    for name in names:
        add_device(redis_client, name)
    it = ElasticScheduler(redis_client, KEYS, Asked(), interval_s=0.01)
    it.step()
    it.control.consumed = {name: QUEUES[role] for name, role in redis_client.hgetall(KEYS.roles).items()}
    for _ in range(3):
        it.step()
    assert [len(workers) for workers in asked] == [50, 50, 50]
    assert set().union(*asked) == set(names)

    asked.clear()
    boundary(redis_client, 30, 70)
    decision = it.step()
    moved = it.control.roles[-1]
    it.step()
    assert decision.moved == len(moved) == 24
    assert set(moved) <= set(asked[0])


def test_a_redis_that_refuses_writes_is_waited_for(redis_client):
    add_device(redis_client, "w0")
    it, stop = scheduler(redis_client), threading.Event()
    thread = threading.Thread(target=it.run, args=(stop,))
    redis_client.config_set("min-replicas-to-write", 1)  # as a full disk does: NOREPLICAS, MISCONF
    try:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert not redis_client.exists(KEYS.roles)
    finally:
        redis_client.config_set("min-replicas-to-write", 0)
    wait_for(lambda: redis_client.hget(KEYS.roles, "w0"), what="a role")
    stop.set()
    thread.join(5)


# ---------------------------------------------------------------------------------------------- service time


def test_service_time_weights_the_queues_by_what_their_requests_take(redis_client):
    for i in range(8):
        add_device(redis_client, f"w{i}")
    it = scheduler(redis_client, policy="service_time")
    it.step()
    boundary(redis_client, 4, 4)
    assert it.step().profilers == 4, "nothing is known yet: Algorithm 2"
    served = {"served:validate": 100, "busy_s:validate": 300.0, "served:profile": 50, "busy_s:profile": 450.0}
    redis_client.hset(KEYS.counters, mapping=served)
    boundary(redis_client, 4, 4)
    decision = it.step()
    assert (decision.validators, decision.profilers) == (2, 6), "3 s against 9 s"
    assert (decision.max_validate, decision.max_profile) == (4, 4), "lengths, as they were"
    assert json.loads(decision.load) == {"maxima": {"cpu": [12_000, 36_000]}, "jobs": 1}


def test_service_times_follow_a_change_and_survive_a_wiped_redis():
    times, counters = ServiceTimes(), Counter()

    def serve(n: int, val_s: float, prof_s: float) -> tuple[int, int]:
        for name, seconds in (("validate", val_s), ("profile", prof_s)):
            counters[f"served:{name}"] += n
            counters[f"busy_s:{name}"] += n * seconds
        return times.learn({name: str(value) for name, value in counters.items()})

    assert times.learn({}) == (1, 1)
    assert serve(4, 2.0, 8.0) == (1, 1), "too few"
    assert serve(96, 2.0, 8.0) == (2000, 8000)
    for _ in range(100):
        now = serve(20, 4.0, 1.0)
    assert now == pytest.approx((4000, 1000), rel=0.02)
    counters.clear()
    assert serve(20, 4.0, 1.0) == pytest.approx((4000, 1000), rel=0.02)


# ------------------------------------------------------------------------------------------------- process


def test_the_process_waits_for_redis_and_says_so(tmp_path):
    server = Valkey(tmp_path / "v.sock", tmp_path)
    process = WorkerProcess(["workers.scheduler"], server.url, tmp_path)
    try:
        wait_for(lambda: "waiting_for_redis" in process.log.read_text(), 20, "the line")
        assert process.process.poll() is None
        server.start()
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            wait_for(lambda: client.exists(KEYS.leader), 20, f"the lease, see {process.log}")
            assert process.stop() == 0
            assert not client.exists(KEYS.leader), "given up at once"
            assert client.zcard("specgen:members") == 0
    finally:
        process.kill()
        server.stop()


def test_the_process_refuses_a_pool_of_another_version(redis_client, redis_url, tmp_path):
    info = json.dumps({"version": "0.0.1", "kind": "device", "host": socket.gethostname() + "x", "pid": 1})
    assert redis_client.eval(script("join"), 0, *KEYS.args("other", info, "0.0.1", 60)) == []
    process = WorkerProcess(["workers.scheduler"], redis_url, tmp_path)
    try:
        assert process.process.wait(20) == 2
        said = process.log.read_text()
        assert "0.0.1" in said
        assert specgen.__version__ in said
        assert "Traceback" not in said
        assert not redis_client.exists(KEYS.leader)
    finally:
        process.kill()
