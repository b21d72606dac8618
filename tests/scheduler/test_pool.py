"""K, claims, and what a boundary drops: of its own scope everything, of any other nothing."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgen.errors import PoolUnavailable
from specgen.scheduler.allocation import capacity, fork_count
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.pool import PoolState, RedisPool, publish_result, snapshot
from specgen.types import EvaluationResult, Phase, Status
from tests.scheduler.support import request

KEYS = Keys()
roles = st.sampled_from(["validate", "profile"])


def run(redis_url, send, body):
    async def with_pool():
        pool = RedisPool(redis_url, send)
        try:
            return await asyncio.wait_for(body(pool), 30)
        finally:
            await pool.aclose()

    return asyncio.run(with_pool())


def add_device(
    client: redis.Redis, worker: str, role: str | None = None, *, busy: bool = False, labels: tuple[str, ...] = ("cpu",)
) -> None:
    if busy:
        client.hset(KEYS.busy, worker, "some tag")
    client.eval(script("heartbeat"), 0, *KEYS.args(worker, json.dumps({"device": worker, "labels": labels})))
    if role:
        client.eval(script("assign"), 0, *KEYS.args("", worker, role))


def fill(client: redis.Redis, queue: str, n: int, *, label: str = "cpu", scope: str = "other/1") -> None:
    for i in range(n):
        args = KEYS.args(queue, f"{label}{queue}{i}", "{}", scope, "0", f"{label}{queue}{i}", label, 0)
        client.eval(script("put"), 0, *args)


def no_send(*_):
    raise AssertionError("nothing is sent here")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(roles, st.booleans()), max_size=12),
    st.booleans(),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(1, 12),
    st.booleans(),
)
def test_k_is_the_formula(redis_url, redis_client, pool, flexible, n_val, n_prof, held, max_k, at_least_one):
    redis_client.flushall()
    for i, (role, busy) in enumerate(pool):
        add_device(redis_client, f"w{i}", "both" if flexible else role, busy=busy)
    fill(redis_client, "validate", n_val)
    fill(redis_client, "profile", n_prof)

    async def claim(it: RedisPool) -> int:
        for _ in range(held):
            assert await it.claim("other/1", max_k=1, at_least_one=True) == 1
        return await it.claim("j/1", max_k=max_k, at_least_one=at_least_one)

    k = run(redis_url, no_send, claim)

    free = [role for role, busy in pool if not busy]
    if flexible or not pool:
        c_val = c_prof = capacity(len(free), n_val + n_prof, held)
    else:
        c_val = capacity(free.count("validate"), n_val, held)
        c_prof = capacity(free.count("profile"), n_prof, held)
    assert k == fork_count(c_val, c_prof, max_k=max_k, at_least_one=at_least_one)
    assert redis_client.zcard("specgen:claims:cpu") == held + k


def test_a_device_without_heartbeat_is_no_capacity(redis_url, redis_client):
    for i in range(4):
        add_device(redis_client, f"w{i}", "both")
    for key in redis_client.keys("specgen:idle:*") + redis_client.keys("specgen:present:*"):
        redis_client.zadd(key, {"w0": time.time() - 60, "w1": time.time() - 60})
    assert run(redis_url, no_send, lambda pool: pool.claim("j/1", max_k=9, at_least_one=False)) == 2


def test_claims_together_never_exceed_the_capacity(redis_url, redis_client):
    """Reserved atomically over all jobs: twenty iterations ask at once."""
    for i in range(10):
        add_device(redis_client, f"w{i}", "both")

    async def all_at_once(pool: RedisPool) -> list[int]:
        return await asyncio.gather(*(pool.claim(f"j{i}/1", max_k=3, at_least_one=False) for i in range(20)))

    assert sum(run(redis_url, no_send, all_at_once)) == 10


def test_a_closed_scope_gives_back_every_claim_it_held(redis_url, redis_client):
    """Claims that outlived their scope would strangle all later forking, silently."""
    for i in range(4):
        add_device(redis_client, f"w{i}", "both")

    async def body(pool: RedisPool) -> None:
        for iteration in range(50):
            scope = f"j/{iteration}"
            assert await pool.claim(scope, max_k=2, at_least_one=False) == 2
            assert await pool.claim(f"j/{iteration}2", max_k=9, at_least_one=False) == 2
            await pool.close(scope)
            assert (await pool.snapshot()).claims == 2, "of the other scope"
            await pool.release(f"j/{iteration}2", 2)
        assert (await pool.snapshot()).claims == 0

    run(redis_url, no_send, body)


def test_a_closed_scope_gets_no_claim(redis_url, redis_client):
    add_device(redis_client, "w", "both")

    async def body(pool: RedisPool) -> None:
        await pool.close("j/1")
        assert await pool.claim("j/1", max_k=2, at_least_one=True) == 0

    run(redis_url, no_send, body)


def test_an_iteration_taken_up_again_starts_without_its_old_claims(redis_url, redis_client):
    async def body(pool: RedisPool) -> None:
        await pool.claim("j/1", max_k=1, at_least_one=True)
        await pool.claim("j/12", max_k=1, at_least_one=True)
        assert await pool.open("j/1") == 1
        assert (await pool.snapshot()).claims == 1

    run(redis_url, no_send, body)


def test_release_gives_back_only_what_is_held(redis_url, redis_client):
    async def body(pool: RedisPool) -> None:
        await pool.claim("j/1", max_k=1, at_least_one=True)
        await pool.claim("j/2", max_k=1, at_least_one=True)
        await pool.release("j/1", 5)
        assert (await pool.snapshot()).claims == 1

    run(redis_url, no_send, body)


def test_close_drops_its_own_scope_exactly(redis_url, redis_client, send):
    scopes = ["j7/1", "j7/12", "j7/2", "j/71", "7/1"]

    async def body(pool: RedisPool) -> None:
        for i in range(60):
            phase = "profile" if i % 4 == 0 else "validate"
            assert await pool.submit(request(f"c{i}", scopes[i % 5], phase=phase))
        before = await pool.snapshot()
        assert (before.validate_queue, before.profile_queue) == (45, 15)

        assert await pool.close("j7/1") == 12

        after = await pool.snapshot()
        assert (after.validate_queue, after.profile_queue) == (36, 12)
        assert not await pool.submit(request("late", "j7/1"))
        assert await pool.submit(request("other", "j7/12"))
        assert await pool.close("j7/1") == 0

    run(redis_url, send, body)
    left = {redis_client.hget(key, "scope") for key in redis_client.keys("specgen:message:*")}
    assert left == set(scopes) - {"j7/1"}
    assert redis_client.keys("specgen:scope:j7/1") == []


def test_close_hands_the_maxima_since_it_was_opened_to_the_scheduler(redis_url, redis_client, send):
    async def body(pool: RedisPool) -> None:
        await pool.open("k/1")
        for i in range(6):
            await pool.submit(request(f"v{i}", "k/1"))
        await pool.close("k/1")
        await pool.open("j/1")
        for i in range(4):
            await pool.submit(request(f"v{i}", "j/1"))
        await pool.open("l/1")
        await pool.submit(request("other", "l/1"))
        await pool.submit(request("p", "j/1", phase="profile"))
        await pool.close("j/1")
        await pool.close("l/1")
        await pool.close("l/1")

    run(redis_url, send, body)
    told = [json.loads(text) for text in reversed(redis_client.lrange(KEYS.boundaries, 0, -1))]
    assert told == [
        {"scope": "k/1", "dropped": 6, "maxima": {"cpu": [6, 0]}},
        {"scope": "j/1", "dropped": 5, "maxima": {"cpu": [5, 1]}},
        {"scope": "l/1", "dropped": 1, "maxima": {"cpu": [5, 1]}},
    ], "of all jobs, as far back as each was open, and each boundary once"
    assert 0 < redis_client.ttl(KEYS.closed("j/1")) <= 6 * 3600
    assert redis_client.keys("specgen:peaks:*") == []
    assert redis_client.keys("specgen:lane*") == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["put", "pop", "open", "close"]), max_size=60), st.data())
def test_the_sliding_maximum_is_the_maximum(redis_url, redis_client, steps, data):
    """Any order of events: a boundary is told the longest that the queue was while its scope was open."""
    redis_client.flushall()
    length, opened = 0, {}
    for serial, step in enumerate(steps):
        if step == "put":
            fill_one(redis_client, f"t{serial}")
            length += 1
        elif step == "pop" and length:
            redis_client.eval(script("grab"), 0, *KEYS.args("index", "", "cpu", "1", "validate"))
            length -= 1
        elif step == "open":
            redis_client.eval(script("open"), 0, *KEYS.args(f"s/{serial}", "cpu"))
            opened[f"s/{serial}"] = length
        elif step == "close" and opened:
            scope = data.draw(st.sampled_from(sorted(opened)))
            redis_client.eval(script("close"), 0, *KEYS.args(scope, 60, 0))
            told = json.loads(redis_client.lpop(KEYS.boundaries))["maxima"]
            assert told.get("cpu", [0, 0])[0] == opened.pop(scope)
        opened = {scope: max(longest, length) for scope, longest in opened.items()}
    assert redis_client.zcard("specgen:peaks:validate:cpu") <= length + len(steps)


def fill_one(client: redis.Redis, tag: str) -> None:
    client.eval(script("put"), 0, *KEYS.args("validate", tag, "{}", "x/1", "0", tag, "cpu", 0))


def test_a_job_sees_the_devices_of_its_label_only(redis_url, redis_client, send):
    add_device(redis_client, "a", labels=("cuda", "h200"))
    add_device(redis_client, "b", labels=("cuda", "a100"), busy=True)
    add_device(redis_client, "c")

    async def body(label: str) -> tuple[int, int, int, int]:
        pool = RedisPool(redis_url, send, label=label)
        try:
            seen = await pool.snapshot()
            k = await pool.claim(f"{label}/1", max_k=9, at_least_one=False)
        finally:
            await pool.aclose()
        return seen.devices, seen.busy, seen.validate_queue, k

    fill(redis_client, "validate", 3, label="a100")
    seen = {label: asyncio.run(body(label)) for label in ("cuda", "h200", "a100", "cpu", "*")}
    assert seen == {
        "cuda": (2, 1, 0, 1),
        "h200": (1, 0, 0, 1),
        "a100": (1, 1, 3, 0),
        "cpu": (1, 0, 0, 1),
        "*": (3, 1, 3, 2),
    }


def test_a_quarantined_device_is_shown_and_is_no_capacity(redis_url, redis_client):
    add_device(redis_client, "a")
    assert redis_client.eval(script("quarantine"), 0, *KEYS.args("a", "probe: wrong value")) == 1
    assert redis_client.eval(script("heartbeat"), 0, *KEYS.args("a", "")) == "none"
    with PoolState(redis_url) as state:
        view = state.view()
        assert [device.quarantined for device in view.devices] == ["probe: wrong value"]
        assert view.labels == frozenset()
    assert snapshot(redis_client, KEYS).devices == 0
    assert redis_client.eval(script("quarantine"), 0, *KEYS.args("a", "")) == 1
    assert snapshot(redis_client, KEYS).devices == 1


def test_what_the_pool_lost_is_missing(redis_url, redis_client, send):
    async def body(pool: RedisPool) -> set[str]:
        queued, lost = request("a"), request("b")
        await pool.submit(queued)
        redis_client.set(KEYS.start("running"), "w")
        return await pool.missing([queued.request_id, lost.request_id, "running"]) - {lost.request_id}

    assert run(redis_url, send, body) == set()


def test_roles_are_given_by_the_leader_only(redis_client):
    add_device(redis_client, "a")
    redis_client.set(KEYS.leader, "first")
    assert redis_client.eval(script("assign"), 0, *KEYS.args("second", "a", "profile")) == -1
    assert redis_client.hgetall(KEYS.roles) == {}
    assert redis_client.eval(script("assign"), 0, *KEYS.args("first", "a", "profile")) == 1
    assert redis_client.hgetall(KEYS.roles) == {"a": "profile"}


def test_results_from_the_first_on_and_as_they_come(redis_url, redis_client):
    def result(i: int) -> EvaluationResult:
        return EvaluationResult(request_id=str(i), candidate_id="c", phase=Phase.VALIDATE, status=Status.HANG)

    publish_result(redis_client, KEYS, "j/1", result(0))
    publish_result(redis_client, KEYS, "j/12", result(99))

    async def body(pool: RedisPool) -> list[str]:
        got: list[str] = []
        async for one in pool.results("j/1"):
            got.append(one.request_id)
            if len(got) < 4:
                await asyncio.to_thread(publish_result, redis_client, KEYS, "j/1", result(len(got)))
            else:
                return got
        raise AssertionError("results end only by cancellation")

    assert run(redis_url, no_send, body) == ["0", "1", "2", "3"]


def test_the_pool_as_commands_see_it(redis_url, redis_client):
    add_device(redis_client, "b", "validate")
    add_device(redis_client, "a")
    with PoolState(redis_url) as state:
        assert [(device.worker, device.role, device.busy) for device in state.devices()] == [
            ("a", "both", ""),
            ("b", "validate", ""),
        ]
    seen = snapshot(redis_client, KEYS)
    assert (seen.devices, seen.validators, seen.profilers, seen.busy) == (2, 2, 1, 0)


def test_without_redis_the_pool_is_unavailable(tmp_path):
    with PoolState(f"unix://{tmp_path}/none.sock") as state, pytest.raises(PoolUnavailable):
        state.devices()
