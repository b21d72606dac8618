"""Light workers, many in one process: ``python -m benchmarks.queue.light ours|stock FIRST COUNT``.

Each is what the parent process of a device worker is to the queue: a kombu connection with the real transport on
Celery's event loop, a consumer that holds one message, a heartbeat, and a remote-control mailbox by which its role
changes. What it runs is a no-op or a sleep in the loop, so what is measured is the queue: there is no pool process, no
start claim, no cell. A running sleep looks for its scope's boundary as often as a device worker does. The stock ones
differ in the transport and the queues' names alone; ``revoke`` ends a stock sleep, which the real one cannot do without
killing its pool process.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery
from kombu.asynchronous import Hub, set_event_loop
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer

from benchmarks.queue.system import STARTS
from specgen.scheduler.elastic import QUEUES
from specgen.scheduler.keys import Keys, script
from specgen.settings import get_settings
from workers.serving import WATCH_S

HEARTBEAT_S = 2.0
SERVES = "bench:serves"  # hash light worker -> the queues that it consumes


@dataclass
class Worker:
    """One light worker. Its roles and its watch are SpecGen's."""

    name: str
    hub: Any
    app: Celery
    client: redis.Redis
    running: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # task -> message, its timer

    def start(self) -> None:
        """Connect, listen for orders, consume."""
        self.connection = self.connect()
        channel = self.connection.channel()
        self.consumer = Consumer(
            channel, queues=self.queues(), callbacks=None, on_message=self._run, accept=["json"], prefetch_count=1
        )
        self.consumer.consume()
        mailbox = self.app.control.mailbox(self.connection)
        node = mailbox.Node(self.name, channel=self.connection.channel(), handlers=self.orders())
        self.listener = node.listen()
        self.connection.register_with_event_loop(self.hub)
        self._tell()

    def connect(self) -> Connection:
        """Through the transport with a device's name."""
        options = {**self.app.conf.broker_transport_options, "specgen_device": self.name, "specgen_labels": ("cpu",)}
        return Connection(self.app.conf.broker_url, transport_options=options)

    def queues(self) -> list[Queue]:
        """As its role says."""
        self.keys = Keys(order=get_settings().pool.order)
        return [_queue(name) for name in QUEUES[self.role()]]

    def orders(self) -> dict[str, Any]:
        """Remote control."""
        return {"apply_role": lambda _state: self._apply_role()}

    def sleep_s(self, body: list[Any]) -> float:
        """How long its task asks to sleep."""
        return float(json.loads(body[1]["request"]["source"])["sleep_s"])

    def finish(self, task: str) -> None:
        """Acknowledge, once."""
        if found := self.running.pop(task, None):
            message, timer = found
            timer.cancel()
            message.ack()

    def names(self) -> frozenset[str]:
        """The queues that it consumes."""
        return frozenset(queue.name for queue in self.consumer.queues or ())

    def subscribe(self, wanted: frozenset[str]) -> None:
        """Consume these queues and no other."""
        for name in self.names() - wanted:
            self.consumer.cancel_by_queue(name)
        for name in wanted:
            if not self.consumer.consuming_from(name):
                self.consumer.add_queue(_queue(name))
        self.consumer.consume()
        self._tell()

    def _run(self, message: Any) -> None:
        started, task = time.time(), message.headers["id"]
        self.client.rpush(STARTS + task, repr(started))
        seconds = self.sleep_s(json.loads(message.body))
        if not seconds:
            message.ack()
            return
        self.running[task] = message, self.hub.call_later(seconds, self.finish, task)

    def role(self) -> Any:
        """A heartbeat; answers its role."""
        info = json.dumps({"labels": ["cpu"], "device": self.name, "backend": "cpu"})
        return self.client.eval(script("heartbeat"), 0, *self.keys.args(self.name, info))

    def _apply_role(self) -> None:
        self.subscribe(QUEUES[self.role()])

    def _tell(self) -> None:
        self.client.hset(SERVES, self.name, ",".join(sorted(self.names())))


class StockWorker(Worker):
    """The same on kombu's own transport."""

    def connect(self) -> Connection:
        """As the stock application is configured."""
        return Connection(self.app.conf.broker_url, transport_options=self.app.conf.broker_transport_options)

    def queues(self) -> list[Queue]:
        """The first."""
        return [_queue("stock")]

    def orders(self) -> dict[str, Any]:
        """Celery's names."""
        return {
            "add_consumer": lambda _state, queue, **_: self._change(self.names() | {queue}),
            "cancel_consumer": lambda _state, queue, **_: self._change(self.names() - {queue}),
            "revoke": lambda _state, task_id, **_: self.finish(task_id),
        }

    def sleep_s(self, body: list[Any]) -> float:
        """The second argument."""
        return float(body[0][1])

    def _change(self, names: frozenset[str]) -> None:
        if names != self.names():
            self.subscribe(names)


def _queue(name: str) -> Queue:
    return Queue(name, Exchange(name), routing_key=name)


def name_of(side: str, index: int) -> str:
    """The name of a light worker."""
    return f"light-{side}-{index}@{socket.gethostname()}"


def watch(workers: list[Worker], client: redis.Redis, keys: Keys) -> None:
    """End what runs for a closed scope. One timer for all: the loop fires ten at most before it waits again."""
    running = [(worker, task, message) for worker in workers for task, (message, _) in worker.running.items()]
    if not running:
        return
    with client.pipeline(transaction=False) as pipe:
        for _, _, message in running:
            pipe.exists(keys.closed(message.headers["specgen_scope"]))
        for (worker, task, _), closed in zip(running, pipe.execute(), strict=True):
            if closed:
                worker.finish(task)


def beat(workers: list[Worker]) -> None:
    """A heartbeat of each."""
    for worker in workers:
        worker.role()


def main() -> None:
    """Until SIGTERM."""
    side, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hub = Hub()
    set_event_loop(hub)
    if side == "ours":
        from workers.app import app

        kind = Worker
    else:
        from benchmarks.stock_queue import app

        kind = StockWorker
    client = redis.Redis.from_url(os.environ["SPECGEN_REDIS_URL"], decode_responses=True)
    workers = [kind(name_of(side, index), hub, app, client) for index in range(first, first + count)]
    for worker in workers:
        worker.start()
    if side == "ours":
        hub.call_repeatedly(WATCH_S, watch, workers, client, workers[0].keys)
        hub.call_repeatedly(HEARTBEAT_S, beat, workers)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    hub.run_forever()


if __name__ == "__main__":
    main()
