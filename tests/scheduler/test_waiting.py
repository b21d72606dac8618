"""A look at the queues tells what devices will take, in their order, and takes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Connection, Exchange, Producer, Queue

from specgen.scheduler.keys import Keys
from specgen.scheduler.leases import HELD
from specgen.scheduler.pool import TASKS
from specgen.scheduler.transport import broker_url
from specgen.scheduler.waiting import Waiting
from specgen.types import Phase
from tests.scheduler.support import headers, request

LABELS = ("cpu", "fast")
TICKETS = st.lists(
    st.tuples(
        st.sampled_from(("j1/1", "j2/1", "j3/1", "j3/2")),
        st.sampled_from(("main", "fork")),
        st.sampled_from((*LABELS, "other")),
        st.integers(-1, 1),
    ),
    min_size=1,
    max_size=24,
)


@pytest.fixture
def connect(redis_url) -> Iterator:
    opened: list[Connection] = []

    def connection(order: str) -> Connection:
        options = {"specgen_order": order, "specgen_labels": LABELS}
        opened.append(Connection(broker_url(redis_url), transport_options=options))
        return opened[-1]

    yield connection
    for tag, _ in HELD.held:
        HELD.drop(tag)
    for one in opened:
        one.close()


@pytest.mark.parametrize("order", ["fair_laf", "mains_first", "paper"])
@pytest.mark.parametrize("queue", ["validate", "profile"])
def test_the_order_is_that_of_devices_and_nothing_is_taken(connect, redis_client, order: str, queue: str) -> None:
    waiting = Waiting(redis_client, Keys(order=order))
    connection = connect(order)
    from_queue = Queue(queue, Exchange(""), routing_key=queue)

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(tickets=TICKETS, served=st.integers(0, 6), looked=st.integers(1, 30))
    def check(tickets, served: int, looked: int) -> None:
        redis_client.flushall()
        producer = Producer(connection.default_channel)
        for scope, origin, label, priority in tickets:
            sent = headers(scope, origin, label=label, priority=priority)
            producer.publish("x", routing_key=queue, headers=sent)
        here = [ticket for ticket in tickets if ticket[2] in LABELS]
        bound = from_queue(connection.default_channel)
        for _ in range(min(served, len(here))):  # so that jobs have had their turns already
            bound.get().ack()
        before = _everything(redis_client)
        seen = waiting.tags(queue, LABELS, looked)
        assert _everything(redis_client) == before
        taken = []
        while (message := bound.get()) is not None:
            taken.append(message.delivery_tag)
            message.ack()
        assert seen == taken[:looked]

    check()


def test_a_ticket_tells_its_request_until_it_is_gone(send, redis_client) -> None:
    waiting = Waiting(redis_client, Keys())
    asked = request("c", source="x = 1")
    send(TASKS[Phase.VALIDATE], {"request": asked.model_dump(mode="json")}, "validate", headers(), asked.request_id)
    [tag] = waiting.tags("validate", ("cpu",), 5)
    assert waiting.request(tag) == asked
    assert waiting.wanted([tag, "other"]) == {tag}
    redis_client.flushall()
    assert waiting.request(tag) is None
    assert waiting.wanted([tag]) == set()


def _everything(client) -> dict[str, bytes]:
    return {key: client.dump(key) for key in client.keys("*") if not key.startswith("_kombu")}
