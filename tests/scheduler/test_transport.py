"""Both queues hold their order, whatever comes back into them; nothing is ever in neither queue nor index."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from queue import Empty

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Connection, Consumer, Exchange, Producer, Queue

from specgen.errors import SettingsError
from specgen.scheduler.keys import DELIVERIES_HEADER, WAIT_HEADER, Keys, ScopeClosed, script
from specgen.scheduler.leases import HELD
from specgen.scheduler.transport import broker_url
from tests.scheduler.support import headers, wait_for

QUEUES = {name: Queue(name, Exchange(""), routing_key=name) for name in ("validate", "profile", "iterations", "other")}


@pytest.fixture
def connect(redis_url) -> Iterator:
    opened: list[Connection] = []

    def connection(**options) -> Connection:
        opened.append(Connection(broker_url(redis_url), transport_options=options))
        return opened[-1]

    yield connection
    for tag, _ in HELD.held:
        HELD.drop(tag)
    for one in opened:
        one.close()


def put(connection: Connection, queue: str, body: str, **kw) -> None:
    Producer(connection.default_channel).publish(body, routing_key=queue, headers=headers(**kw))


def get(connection: Connection, queue: str):
    return QUEUES[queue](connection.default_channel).get()


def drain(connection: Connection, queue: str) -> list[str]:
    bodies = []
    while (message := get(connection, queue)) is not None:
        bodies.append(message.payload)
        message.ack()
    return bodies


def test_validation_is_last_arrival_first(connect):
    connection = connect()
    for i in range(100):
        put(connection, "validate", str(i))
    assert drain(connection, "validate") == [str(i) for i in reversed(range(100))]


def test_profiling_is_first_in_first_out(connect):
    connection = connect()
    for i in range(100):
        put(connection, "profile", str(i))
    assert drain(connection, "profile") == [str(i) for i in range(100)]


ORDERS = {
    ("validate", "mains_first"): ["m2", "m1", "f3", "f2", "f1"],
    ("validate", "paper"): ["f3", "m2", "f2", "m1", "f1"],
    ("profile", "mains_first"): ["m1", "m2", "f1", "f2", "f3"],
    ("profile", "paper"): ["f1", "m1", "f2", "m2", "f3"],
}


@pytest.mark.parametrize(("queue", "order"), list(ORDERS))
def test_mains_go_first_unless_the_order_is_the_papers(connect, queue, order):
    connection = connect(specgen_order=order)
    for name in ("f1", "m1", "f2", "m2", "f3"):
        put(connection, queue, name, origin="main" if name[0] == "m" else "fork")
    assert drain(connection, queue) == ORDERS[queue, order]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
@pytest.mark.parametrize(("queue", "order"), list(ORDERS))
def test_what_comes_back_takes_its_own_place(connect, redis_client, queue, order, mains, data):
    """Any messages taken and given back in any order: the queue is as if they had never left."""
    redis_client.flushall()
    connection = connect(specgen_order=order)
    for i, main in enumerate(mains):
        put(connection, queue, str(i), origin="main" if main else "fork")
    untouched = drain(connection, queue)
    for i, main in enumerate(mains):
        put(connection, queue, str(i), origin="main" if main else "fork")

    taken = [get(connection, queue) for _ in range(data.draw(st.integers(0, len(mains))))]
    for message in data.draw(st.permutations(taken)):
        message.requeue()

    assert drain(connection, queue) == untouched
    assert redis_client.zcard("unacked_index") == 0
    assert redis_client.keys("specgen:message:*") == []


def test_maxima_are_exact_for_a_thousand_messages(connect, redis_client):
    connection = connect()
    redis_client.eval(script("open"), 0, *Keys().args("x/1", "cpu"))
    length = {"validate": 0, "profile": 0}
    longest = dict(length)
    for i in range(1000):
        queue = "validate" if i % 3 else "profile"
        put(connection, queue, str(i))
        length[queue] += 1
        longest[queue] = max(longest[queue], length[queue])
        if i % 5 == 0 or 400 < i < 600:
            message = get(connection, queue)
            message.ack()
            length[queue] -= 1
    redis_client.eval(script("close"), 0, *Keys().args("x/1", 60, 0))
    told = json.loads(redis_client.lpop(Keys().boundaries))
    assert told["maxima"] == {"cpu": [longest["validate"], longest["profile"]]}


def test_jobs_take_turns(connect):
    """Fair: a finished main first, then the newest (oldest) fork of the job that was served longest ago."""
    connection = connect()
    for queue, own in (("validate", ["a3", "a2", "a1"]), ("profile", ["a1", "a2", "a3"])):
        for name in ("a1", "a2", "b1", "a3", "c1", "bm"):
            put(connection, queue, name, scope=f"{name[0]}/1", origin="main" if name[1] == "m" else "fork")
        served = drain(connection, queue)
        assert served[0] == "bm"
        assert [name for name in served if name[0] == "a"] == own
        assert sorted(served[1:3]) == [own[0], "c1"], "b had its turn"
        assert served[3] == "b1"


def test_a_late_job_waits_for_no_long_queue(connect):
    connection = connect()
    for i in range(50):
        put(connection, "validate", f"a{i}", scope="a/1")
    assert get(connection, "validate").payload == "a49"
    put(connection, "validate", "b", scope="b/1")
    put(connection, "validate", "a50", scope="a/1")
    assert get(connection, "validate").payload == "b"


@pytest.mark.parametrize("order", ["fair_laf", "mains_first", "paper"])
def test_a_higher_priority_goes_first_in_every_order(connect, order):
    connection = connect(specgen_order=order)
    for name, priority in (("low", -9), ("mid", 0), ("high", 9), ("mid2", 0)):
        put(
            connection,
            "validate",
            name,
            scope=f"{name}/1",
            priority=priority,
            origin="main" if name == "low" else "fork",
        )
    served = drain(connection, "validate")
    assert (served[0], served[-1]) == ("high", "low")


def test_a_device_serves_only_its_labels(connect, redis_client):
    h200, a100 = connect(specgen_labels=("cuda", "h200")), connect(specgen_labels=("cuda", "a100"))
    for label in ("h200", "a100", "cuda", "cpu"):
        put(h200, "profile", label, label=label, scope=f"{label}/1")
    assert sorted(drain(a100, "profile")) == ["a100", "cuda"]
    assert drain(h200, "profile") == ["h200"]
    assert redis_client.zcard("profile") == 1


def test_who_lost_its_lease_can_neither_acknowledge_nor_renew_nor_give_back(connect, redis_client):
    """A worker that was stopped past its lease and wakes: the message is another's."""
    connection = connect(visibility_timeout=0.1, unacked_restore_throttle=1)
    put(connection, "validate", "x")
    zombie = get(connection, "validate")
    tag, stale = zombie.delivery_tag, HELD.delivery(zombie.delivery_tag)
    time.sleep(0.2)
    connection.default_channel.qos.restore_visible()
    heir = get(connect(), "validate")
    assert heir.delivery_tag == tag
    channel, keys = connection.default_channel, Keys()
    lease = redis_client.zscore("unacked_index", tag)
    assert redis_client.eval(script("done"), 0, *keys.args("unacked_index", tag, stale)) == 0
    assert channel.restore_ticket(tag, stale, redis_client) == 0
    assert redis_client.eval(script("renew"), 0, *keys.args("unacked_index", tag, stale)) == 0
    assert redis_client.zscore("unacked_index", tag) == lease
    heir.ack()
    assert redis_client.zcard("unacked_index") == 0


def test_an_acknowledgement_after_the_lease_ran_out_takes_it_off_the_queue(connect, redis_client):
    connection = connect(visibility_timeout=0.1)
    put(connection, "profile", "x")
    message = get(connection, "profile")
    time.sleep(0.2)
    connection.default_channel.qos.restore_visible()
    assert redis_client.zcard("profile") == 1
    message.ack()
    assert redis_client.zcard("profile") == 0
    assert redis_client.keys("specgen:message:*") == []
    assert redis_client.hgetall("specgen:lengths") == {"profile:cpu": "0"}


def test_waits_are_measured_by_the_servers_clock(connect, redis_client):
    connection = connect()
    put(connection, "validate", "x")
    time.sleep(0.06)
    assert 0.05 < get(connection, "validate").headers[WAIT_HEADER] < 5
    waits = redis_client.hgetall(Keys().waits("validate"))
    assert 0.05 < float(waits.pop("sum")) < 5
    assert list(waits.values()) == ["1"]


def test_a_host_whose_clock_is_wrong_does_no_harm(connect, redis_client, monkeypatch):
    """Leases and waits are by the server's clock; a host a day ahead neither steals nor loses a lease."""
    own = connect(visibility_timeout=60)
    for queue in ("validate", "other"):
        put(own, queue, queue)
    held = [get(own, queue) for queue in ("validate", "other")]
    ahead = time.time() + 86_400
    monkeypatch.setattr("time.time", lambda: ahead)
    monkeypatch.setattr("kombu.transport.redis.time", lambda: ahead)
    skewed = connect(visibility_timeout=60)
    skewed.default_channel.qos._born = float("-inf")  # it connected long ago
    skewed.default_channel.qos.restore_visible()
    assert redis_client.zcard("unacked_index") == 2
    put(skewed, "other", "its own")
    held.append(get(skewed, "other"))
    assert max(lease for _, lease in redis_client.zrange("unacked_index", 0, -1, withscores=True)) < ahead - 80_000
    for message in held:
        message.ack()


def test_a_redis_that_refuses_writes_is_waited_for(connect, redis_client, monkeypatch):
    monkeypatch.setattr("specgen.scheduler.transport.REFUSED_S", 0.05)
    connection = connect()
    put(connection, "validate", "x")
    held = get(connection, "validate")
    put(connection, "validate", "y")
    listener = Listener(connection, "validate")
    redis_client.config_set("min-replicas-to-write", 1)  # refuses every write, as for a full disk
    try:
        with pytest.raises(redis.ConnectionError):
            put(connection, "validate", "z")
        assert listener.listen(0.3) == []
        held.ack()
        assert HELD.owed == [held.delivery_tag]
    finally:
        redis_client.config_set("min-replicas-to-write", 0)
    connection.default_channel.qos.settle()
    assert HELD.owed == []
    wait_for(lambda: listener.listen(0.5), what="the message after all")
    assert listener.got[0][0] == "y"


def test_a_channel_that_was_closed_meanwhile_is_a_lost_connection(connect):
    """Once it failed a job: the publisher must come again on a new channel, not end with our own error."""
    channel = connect().default_channel
    channel.close()
    with pytest.raises(redis.ConnectionError, match="closed"):
        channel._put("iterations", {"headers": {}, "properties": {"delivery_tag": "t"}})


def test_a_redis_without_memory_takes_nothing_new_and_gives_what_it_has(connect, redis_client):
    connection = connect()
    put(connection, "validate", "x")
    before = redis_client.dbsize()
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ConnectionError):
            put(connection, "validate", "z")
        assert redis_client.dbsize() == before, "nothing half-written"
        assert drain(connection, "validate") == ["x"]
    finally:
        redis_client.config_set("maxmemory", 0)


def test_a_closed_scope_is_refused_at_enqueue(connect, redis_client):
    connection = connect()
    redis_client.set("specgen:closed:j/1", 1)
    with pytest.raises(ScopeClosed):
        put(connection, "validate", "late")
    put(connection, "validate", "other", scope="j/12")
    assert drain(connection, "validate") == ["other"]


def test_a_request_that_waits_or_runs_is_not_doubled(connect):
    connection = connect()
    put(connection, "validate", "first", task="same")
    put(connection, "validate", "again", task="same")
    message = get(connection, "validate")
    put(connection, "validate", "while it runs", task="same")
    assert get(connection, "validate") is None
    message.ack()
    put(connection, "validate", "after", task="same")
    assert drain(connection, "validate") == ["after"]


def test_deliveries_are_counted(connect):
    connection = connect()
    put(connection, "profile", "x")
    counts = []
    for _ in range(4):
        message = get(connection, "profile")
        counts.append(message.headers[DELIVERIES_HEADER])
        message.requeue()
    assert counts == [1, 2, 3, 4]


def test_a_lease_that_nobody_renews_is_restored_at_the_same_score(connect, redis_client):
    connection = connect(visibility_timeout=0.2, unacked_restore_throttle=1)
    for name in ("old", "lost", "new"):
        put(connection, "validate", name)
    get(connection, "validate").ack()
    score = redis_client.zrange("validate", -1, -1, withscores=True)
    get(connection, "validate")
    assert redis_client.zcard("validate") == 1

    time.sleep(0.3)
    connection.default_channel.qos.restore_visible(num=10, interval=1)

    assert redis_client.zrange("validate", -1, -1, withscores=True) == score
    connection.default_channel.qos.restore_visible(num=10, interval=1)
    assert redis_client.zcard("validate") == 2, "restored once"


def test_right_after_connecting_nothing_is_restored(connect, redis_client):
    """After a restart of Redis every lease looks old; those who live must be able to renew first."""
    connection = connect(visibility_timeout=60)
    put(connection, "validate", "x")
    get(connection, "validate")
    redis_client.zadd("unacked_index", dict.fromkeys(redis_client.zrange("unacked_index", 0, -1), 1.0))
    connection.default_channel.qos.restore_visible(num=10, interval=1)
    assert redis_client.zcard("validate") == 0


def test_leases_are_renewed_for_all_that_this_process_holds(connect, redis_client):
    connection = connect()
    put(connection, "validate", "device")
    put(connection, "other", "ordinary")
    held = [get(connection, "validate"), get(connection, "other")]
    redis_client.zadd("unacked_index", dict.fromkeys(redis_client.zrange("unacked_index", 0, -1), 1.0))
    connection.default_channel.qos.renew()
    assert all(score > 1e9 for _, score in redis_client.zrange("unacked_index", 0, -1, withscores=True))
    for message in held:
        message.ack()
    assert redis_client.zcard("unacked_index") == 0
    assert HELD.held == []


def test_an_acknowledgement_outlives_its_channel(connect, redis_client):
    connection = connect()
    put(connection, "validate", "x")
    message = get(connection, "validate")
    connection.close()
    message.ack()
    assert redis_client.zcard("unacked_index") == 0
    assert redis_client.keys("specgen:message:*") == []


def test_acknowledgements_from_many_threads(connect, redis_client):
    """As with Celery's threads pool."""
    connection = connect()
    for i in range(64):
        put(connection, "other" if i % 2 else "validate", str(i))
    messages = [get(connection, "other" if i % 2 else "validate") for i in range(64)]
    threads = [threading.Thread(target=message.ack) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert HELD.held == []
    assert redis_client.zcard("unacked_index") == 0
    assert redis_client.hlen("unacked") == 0


class Listener:
    """A consumer that blocks on its queues in this thread."""

    def __init__(self, connection: Connection, *queues: str) -> None:
        self.connection, self.got = connection, []
        self.consumer = Consumer(
            connection.default_channel, [QUEUES[q] for q in queues], callbacks=[lambda b, m: self.got.append((b, m))]
        )
        self.consumer.consume()

    def listen(self, seconds: float) -> list[str]:
        with contextlib.suppress(TimeoutError):
            self.connection.drain_events(timeout=seconds)
        return [body for body, _ in self.got]


def test_both_queues_profiling_first_without_waiting(connect):
    connection = connect()
    for queue in ("validate", "profile"):
        put(connection, queue, queue)
    listener = Listener(connection, "validate", "profile")
    assert listener.listen(1.0) == ["profile"]
    assert listener.listen(1.0) == ["profile", "validate"]
    for i in range(20):
        ringing = threading.Timer(0.02, put, [connect(), "validate" if i % 2 else "profile", str(i)])
        ringing.start()
        started = time.monotonic()
        assert listener.listen(2.0)[-1] == str(i)
        assert time.monotonic() - started < 0.5
        ringing.join()


def test_a_switch_with_a_pop_in_flight_loses_nothing(connect, redis_client):
    """Unsubscribed after its pop was sent: the message goes back to its place and counts as not delivered."""
    connection = connect()
    listener = Listener(connection, "validate")
    channel = connection.default_channel
    put(connect(), "validate", "x")
    channel.connection.cycle.on_poll_start()
    assert channel._awaiting == "EVAL"
    wait_for(lambda: redis_client.zcard("validate") == 0, what="the server's pop")
    listener.consumer.cancel_by_queue("validate")
    with pytest.raises(Empty):
        channel._brpop_read()
    assert redis_client.zcard("validate") == 1
    assert redis_client.zcard("unacked_index") == 0
    message = get(connect(), "validate")
    assert (message.payload, message.headers[DELIVERIES_HEADER]) == ("x", 1)


def test_a_switch_ends_the_blocked_pop_at_once(connect):
    connection = connect()
    listener = Listener(connection, "validate")
    channel = connection.default_channel
    assert listener.listen(0.1) == []
    assert channel._in_poll, "blocked"
    put(connect(), "profile", "x")
    started = time.monotonic()
    listener.consumer.cancel_by_queue("validate")
    listener.consumer.add_queue(QUEUES["profile"])
    listener.consumer.consume()
    while not listener.listen(0.5):
        pass
    assert time.monotonic() - started < 0.3
    assert listener.got[0][0] == "x"


@pytest.mark.parametrize("queue", ["iterations", "other"])
def test_other_queues_are_first_in_first_out(connect, redis_client, queue):
    connection = connect()
    for i in range(3):
        put(connection, queue, str(i))
    assert (redis_client.zcard if queue == "iterations" else redis_client.llen)(queue) == 3
    assert QUEUES[queue](connection.default_channel).queue_declare(passive=True).message_count == 3
    if queue == "iterations":
        get(connection, queue).requeue()  # kombu's own put it at the back
    assert drain(connection, queue) == ["0", "1", "2"]


def test_size_and_purge(connect, redis_client):
    connection = connect()
    for queue in ("validate", "profile"):
        for i in range(5):
            put(connection, queue, str(i))
        bound = QUEUES[queue](connection.default_channel)
        assert bound.queue_declare(passive=True).message_count == 5
        assert bound.purge() == 5
    assert redis_client.keys("specgen:message:*") == []
    assert redis_client.keys("specgen:tag:*") == []


def test_messages_of_a_dead_predecessor_go_back_when_its_name_registers(connect, redis_client):
    connection = connect(specgen_device="device-cpu0@h")
    put(connection, "validate", "x")
    get(connection, "validate")
    assert redis_client.hkeys("specgen:busy") == ["device-cpu0@h"]
    args = Keys().args("device-cpu0@h", "unacked_index")
    assert redis_client.eval(script("register"), 0, *args) == 1
    assert redis_client.hkeys("specgen:busy") == []
    assert redis_client.zcard("validate") == 1
    assert redis_client.eval(script("register"), 0, *args) == 0


def test_global_keyprefix_is_refused(connect):
    connection = connect(global_keyprefix="x")
    with pytest.raises(SettingsError, match="global_keyprefix"):
        connection.default_channel  # noqa: B018


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///a/b.sock?db=2", "specgen+socket:///a/b.sock?virtual_host=2"),
        ("unix:///a/b.sock", "specgen+socket:///a/b.sock?virtual_host=0"),
        ("redis://u:p@h:1/3", "specgen://u:p@h:1/3"),
    ],
)
def test_broker_url(url, expected):
    assert broker_url(url) == expected


def test_other_urls_are_refused():
    with pytest.raises(SettingsError, match="not a Redis URL"):
        broker_url("amqp://h")
