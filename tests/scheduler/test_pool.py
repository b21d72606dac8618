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
from specgen.scheduler.pool import PoolState, RedisPool, publish_result
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


def add_device(client: redis.Redis, worker: str, role: str | None = None, *, busy: bool = False) -> None:
    client.eval(script("heartbeat"), 0, *KEYS.args(worker, json.dumps({"device": worker})))
    if role:
        client.hset(KEYS.roles, worker, role)
    if busy:
        client.hset(KEYS.busy, worker, "some tag")


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
    if n_val:
        redis_client.zadd("validate", {f"v{i}": i for i in range(n_val)})
    if n_prof:
        redis_client.lpush("profile", *(f"p{i}" for i in range(n_prof)))
    if held:
        redis_client.zadd("specgen:claims", {f"{i} other/1": time.time() + 60 for i in range(held)})

    async def claim(it: RedisPool) -> int:
        return await it.claim("j/1", max_k=max_k, at_least_one=at_least_one)

    k = run(redis_url, no_send, claim)

    free = [role for role, busy in pool if not busy]
    if flexible or not pool:
        c_val = c_prof = capacity(len(free), n_val + n_prof, held)
    else:
        c_val = capacity(free.count("validate"), n_val, held)
        c_prof = capacity(free.count("profile"), n_prof, held)
    assert k == fork_count(c_val, c_prof, max_k=max_k, at_least_one=at_least_one)
    assert redis_client.zcard("specgen:claims") == held + k


def test_a_device_without_heartbeat_is_no_capacity(redis_url, redis_client):
    for i in range(4):
        add_device(redis_client, f"w{i}", "both")
    redis_client.zadd(KEYS.devices, {"w0": time.time() - 60, "w1": time.time() - 60})
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


def test_close_hands_the_maxima_to_the_scheduler_and_resets_them(redis_url, redis_client, send):
    async def body(pool: RedisPool) -> None:
        for i in range(4):
            await pool.submit(request(f"v{i}", "j/1"))
        await pool.submit(request("other", "k/1"))
        await pool.submit(request("p", "j/1", phase="profile"))
        await pool.close("j/1")

    run(redis_url, send, body)
    assert redis_client.hgetall("specgen:maxima") == {"validate": "1", "profile": "0"}
    told = [json.loads(text) for text in redis_client.lrange(KEYS.boundaries, 0, -1)]
    assert told == [{"scope": "j/1", "l_val": 5, "l_prof": 1, "dropped": 5}]
    assert 0 < redis_client.ttl(KEYS.closed("j/1")) <= 6 * 3600


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
        snapshot = state.view().snapshot
        assert (snapshot.devices, snapshot.validators, snapshot.profilers, snapshot.busy) == (2, 2, 1, 0)


def test_without_redis_the_pool_is_unavailable(tmp_path):
    with PoolState(f"unix://{tmp_path}/none.sock") as state, pytest.raises(PoolUnavailable):
        state.devices()
