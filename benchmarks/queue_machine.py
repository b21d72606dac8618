"""The queues against a model of them, any steps in any order: ``python -m benchmarks.queue_machine``.

A hypothesis state machine puts, pops, acknowledges, gives back, kills workers, lets leases run out, wakes the dead,
switches subscriptions, opens and closes scopes, on a real Valkey and through the transport's own channel. The model is
plain Python and knows nothing of lanes: it sorts what waits by the rule of docs/queue.md. After every step nothing may
be lost or held twice, and what a worker gets must be what the model says is next.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kombu import Connection, Producer  # type: ignore[attr-defined]
from kombu.transport.virtual import Channel as VirtualChannel

from benchmarks.figures import figure, machine
from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import LABEL_HEADER, ORIGIN_HEADER, PRIORITY_HEADER, SCOPE_HEADER, Keys, ScopeClosed, script
from specgen.scheduler.transport import broker_url

QUEUES = ("validate", "profile")
LABELS = ("cuda", "h200")
WORKERS = {"w0": ("cuda",), "w1": ("cuda", "h200"), "w2": ("h200",)}
ORDERS = ("fair_laf", "mains_first", "paper")


@dataclass
class Message:
    """What the model knows of a message that is neither acknowledged nor dropped."""

    name: str
    queue: str
    label: str
    scope: str
    main: bool
    priority: int
    arrival: int
    deliveries: int = 0
    holder: str = ""  # the worker whose lease it is under; empty: it waits
    tag: str = ""

    @property
    def job(self) -> str:
        """Whose turn it takes."""
        return self.scope.rpartition("/")[0]


@dataclass
class Model:
    """The queues as docs/queue.md describes them."""

    order: str
    messages: dict[str, Message] = field(default_factory=dict)
    turns: dict[tuple[str, str], int] = field(default_factory=dict)  # (queue, job) -> when it was served last
    closed: set[str] = field(default_factory=set)
    moment: int = 0

    def tick(self) -> int:
        """Arrivals and turns count together."""
        self.moment += 1
        return self.moment

    def waiting(self, queue: str) -> list[Message]:
        """What waits in a queue."""
        return [m for m in self.messages.values() if m.queue == queue and not m.holder]

    def next(self, queue: str, labels: tuple[str, ...]) -> set[str]:
        """Names of those that may be served next: several only where jobs that were never served tie."""
        able = [m for m in self.waiting(queue) if m.label in labels]
        if not able:
            return set()
        best = min(self._rank(m) for m in able)
        found = set()
        for label in labels:  # a tie between lanes is the server's to break; within a lane nothing ties
            lanes: dict[str, list[Message]] = {}
            for m in able:
                if m.label == label and self._rank(m) == best:
                    lanes.setdefault(m.job if self.order == "fair_laf" else "", []).append(m)
            for lane in lanes.values():
                pick = max if queue == "validate" else min
                found.add(pick(lane, key=lambda m: m.arrival).name)
        return found

    def _rank(self, m: Message) -> tuple[int, bool, int]:
        fork = self.order == "paper" or not m.main
        turn = self.turns.get((m.queue, m.job), 0) if self.order == "fair_laf" else 0
        return -m.priority, fork, turn


class QueueMachine(RuleBasedStateMachine):
    """Steps, and what must hold after each."""

    url: ClassVar[str] = ""
    steps: ClassVar[int] = 0
    popped: ClassVar[int] = 0
    restored: ClassVar[int] = 0

    @initialize(order=st.sampled_from(ORDERS))
    def begin(self, order: str) -> None:
        """An empty server."""
        self.model = Model(order)
        self.keys = Keys(order=order)
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self.client.flushall()
        self.connections = {
            name: Connection(
                broker_url(self.url),
                transport_options={"specgen_order": order, "specgen_device": name, "specgen_labels": labels},
            )
            for name, labels in WORKERS.items()
        }
        self.serial = 0
        self.held: dict[str, list[Message]] = {name: [] for name in WORKERS}
        self.zombies: list[tuple[str, str, str]] = []  # (tag, delivery, name) of workers that lost their lease
        for name, labels in WORKERS.items():
            self.run("heartbeat", name, json.dumps({"labels": labels}))

    def teardown(self) -> None:
        """Give the connections back."""
        for connection in getattr(self, "connections", {}).values():
            connection.close()
        if hasattr(self, "client"):
            self.client.close()

    def run(self, name: str, *args: Any) -> Any:
        """A script."""
        return self.client.eval(script(name), 0, *self.keys.args(*args))

    def channel(self, worker: str) -> VirtualChannel:
        """The transport's channel of a worker."""
        return self.connections[worker].default_channel

    # ---------------------------------------------------------------------------------------------- steps

    @rule(
        queue=st.sampled_from(QUEUES),
        label=st.sampled_from(LABELS),
        job=st.sampled_from("abc"),
        iteration=st.integers(1, 2),
        main=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 3, -9]),
        times=st.integers(1, 4),
    )
    def put(self, queue: str, label: str, job: str, iteration: int, main: bool, priority: int, times: int) -> None:
        """Requests; refused where their scope is closed."""
        for _ in range(times):
            QueueMachine.steps += 1
            self._put(queue, label, job, iteration, main, priority)

    def _put(self, queue: str, label: str, job: str, iteration: int, main: bool, priority: int) -> None:
        self.serial += 1
        scope, name = f"{job}{label}{priority}/{iteration}", f"t{self.serial}"  # a job has one label and priority
        headers = {SCOPE_HEADER: scope, ORIGIN_HEADER: "main" if main else "fork", LABEL_HEADER: label}
        headers |= {PRIORITY_HEADER: str(priority), "id": name, "task": "t"}
        message = Message(name, queue, label, scope, main, priority, self.model.tick())
        try:
            Producer(self.channel("w0")).publish(name, routing_key=queue, headers=headers)
        except ScopeClosed:
            assert scope in self.model.closed
            return
        assert scope not in self.model.closed
        self.model.messages[name] = message

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        """The controller sends again what it has no answer for: nothing is doubled."""
        QueueMachine.steps += 1
        m = self.model.messages[data.draw(st.sampled_from(sorted(self.model.messages)))]
        headers = {SCOPE_HEADER: m.scope, LABEL_HEADER: m.label, "id": m.name, "task": "t"}
        if m.scope not in self.model.closed:
            Producer(self.channel("w0")).publish(m.name, routing_key=m.queue, headers=headers)

    @rule(worker=st.sampled_from(sorted(WORKERS)), queue=st.sampled_from(QUEUES))
    def pop(self, worker: str, queue: str) -> None:
        """What a worker gets is what is next."""
        QueueMachine.steps += 1
        self._pop(worker, queue)

    def _pop(self, worker: str, queue: str) -> Message | None:
        expected = self.model.next(queue, WORKERS[worker])
        channel: Any = self.channel(worker)
        reply = channel.run("grab", channel.client, *channel._grab_args([queue]))
        if reply is None:
            assert expected == set(), f"{queue} of {worker}: nothing came of {expected}"
            return None
        raw = channel._ticket_message(reply)
        name = raw["headers"]["id"]
        assert name in expected, f"{queue} of {worker}: {name} came, not one of {expected}"
        m = self.model.messages[name]
        m.holder, m.tag, m.deliveries = worker, raw["properties"]["delivery_tag"], m.deliveries + 1
        assert raw["properties"]["specgen_delivery"] == str(m.deliveries)
        self.model.turns[queue, m.job] = self.model.tick()
        self.held[worker].append(m)
        QueueMachine.popped += 1
        return m

    def _holding(self, worker: str, data: st.DataObject) -> Message | None:
        return data.draw(st.sampled_from(self.held[worker])) if self.held[worker] else None

    @rule(worker=st.sampled_from(sorted(WORKERS)), data=st.data())
    def ack(self, worker: str, data: st.DataObject) -> None:
        """Done: gone for good."""
        QueueMachine.steps += 1
        if (m := self._holding(worker, data)) is not None:
            assert self.run("done", "unacked_index", m.tag, str(m.deliveries)) == 1
            self._forget(m)

    @rule(worker=st.sampled_from(sorted(WORKERS)), data=st.data(), unstarted=st.booleans())
    def give_back(self, worker: str, data: st.DataObject, unstarted: bool) -> None:
        """Requeued, or (unstarted) popped although the subscription had changed."""
        QueueMachine.steps += 1
        if (m := self._holding(worker, data)) is not None:
            channel: Any = self.channel(worker)
            done = channel.restore_ticket(m.tag, str(m.deliveries), self.client, unstarted=unstarted)
            assert done == (0 if m.scope in self.model.closed else 1)
            m.deliveries -= unstarted
            self._came_back(m)

    @rule(worker=st.sampled_from(sorted(WORKERS)), queue=st.sampled_from(QUEUES))
    def switch(self, worker: str, queue: str) -> None:
        """A pop in flight while the worker leaves the queue."""
        QueueMachine.steps += 1
        if (m := self._pop(worker, queue)) is not None:
            channel: Any = self.channel(worker)
            channel.restore_ticket(m.tag, str(m.deliveries), self.client, unstarted=True)
            m.deliveries -= 1
            self._came_back(m)

    @rule(worker=st.sampled_from(sorted(WORKERS)))
    def kill(self, worker: str) -> None:
        """A worker dies and its leases run out: everything is back at its own place, and the dead may wake."""
        QueueMachine.steps += 1
        for m in list(self.held[worker]):
            self.client.zadd("unacked_index", {m.tag: 1.0}, xx=True)
            self.zombies.append((m.tag, str(m.deliveries), m.name))
            self._came_back(m)
        channel: Any = self.channel("w0" if worker != "w0" else "w1")
        channel.qos._born = float("-inf")  # it connected long ago
        channel.qos.restore_visible(num=100)

    @rule(worker=st.sampled_from(sorted(WORKERS)))
    def restart(self, worker: str) -> None:
        """A worker starts under the name of a dead one: what that one held is back at once."""
        QueueMachine.steps += 1
        expected = [m for m in self.held[worker] if m.scope not in self.model.closed]
        assert self.run("register", worker, "unacked_index") == len(expected)
        for m in list(self.held[worker]):
            self._came_back(m)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), act=st.sampled_from(["done", "restore", "renew"]))
    def wake(self, data: st.DataObject, act: str) -> None:
        """Who lost its lease wakes: it can finish what nobody else was given, and touch nothing that somebody was."""
        QueueMachine.steps += 1
        tag, delivery, name = data.draw(st.sampled_from(self.zombies))
        m = self.model.messages.get(name)
        own = m is not None and not m.holder and str(m.deliveries) == delivery
        if act == "done":
            assert self.run("done", "unacked_index", tag, delivery) == int(own)
            if own and m is not None:
                del self.model.messages[name]
        elif act == "restore":
            assert self.run("restore", "unacked_index", tag, 0, delivery) == (-1 if m is None else 0)
        else:
            assert self.run("renew", "unacked_index", tag, delivery) == 0

    @rule(job=st.sampled_from("abc"), label=st.sampled_from(LABELS), iteration=st.integers(1, 2))
    def open_scope(self, job: str, label: str, iteration: int) -> None:
        """An iteration begins, or is taken up again."""
        QueueMachine.steps += 1
        self.run("open", f"{job}{label}0/{iteration}", label)
        self.model.closed.discard(f"{job}{label}0/{iteration}")

    @rule(job=st.sampled_from("abc"), label=st.sampled_from(LABELS), iteration=st.integers(1, 2))
    def close_scope(self, job: str, label: str, iteration: int) -> None:
        """The boundary: its waiting requests are dropped, no others."""
        QueueMachine.steps += 1
        scope = f"{job}{label}0/{iteration}"
        waiting = [m for m in self.model.messages.values() if m.scope == scope and not m.holder]
        dropped, _ = self.run("close", scope, 3600, 0)
        assert dropped == len(waiting)
        for m in waiting:
            del self.model.messages[m.name]
        self.model.closed.add(scope)

    def _forget(self, m: Message) -> None:
        self.held[m.holder].remove(m)
        del self.model.messages[m.name]

    def _came_back(self, m: Message) -> None:
        if m.scope in self.model.closed:
            self._forget(m)
            return
        QueueMachine.restored += 1
        self.held[m.holder].remove(m)
        m.holder = ""

    # ---------------------------------------------------------------------------------------------- what must hold

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """Every message is in its queue or under one lease, and nothing else is anywhere."""
        if not hasattr(self, "model"):
            return
        waiting = {queue: {m.name for m in self.model.waiting(queue)} for queue in QUEUES}
        tags = {
            "validate": cast("list[str]", self.client.zrange("validate", 0, -1)),
            "profile": cast("list[str]", self.client.zrange("profile", 0, -1)),
        }
        for queue in QUEUES:
            found = [cast("str", self.client.hget(f"specgen:message:{tag}", "task")) for tag in tags[queue]]
            assert sorted(found) == sorted(waiting[queue])
        leased = sorted(m.tag for m in self.model.messages.values() if m.holder)
        assert sorted(self.client.zrange("unacked_index", 0, -1)) == leased
        assert len(self.client.keys("specgen:message:*")) == len(self.model.messages)
        lengths = self.client.hgetall("specgen:lengths")
        for queue in QUEUES:
            for label in LABELS:
                n = sum(m.label == label for m in self.model.waiting(queue))
                assert int(lengths.get(f"{queue}:{label}", 0)) == n
                assert (self.client.llen(self.keys.bell(queue, label)) > 0) == (n > 0), "a bell for whoever waits"


def run(url: str, examples: int, steps: int = 50) -> None:
    """Raises AssertionError with the smallest failing schedule."""
    QueueMachine.url = url
    QueueMachine.steps = QueueMachine.popped = QueueMachine.restored = 0
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks, database=None
        ),
    )


def main() -> None:
    """Run until the steps are done, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_machine", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="how many at least")
    wanted = parser.parse_args().steps
    begun, done, popped, restored = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="sgm-") as folder:
        with Valkey(Path(folder) / f"{uuid.uuid4().hex[:6]}.sock", Path(folder)) as server:
            print(f"# {machine()}")
            while done < wanted:
                run(server.url, examples=100)
                done, popped = done + QueueMachine.steps, popped + QueueMachine.popped
                restored += QueueMachine.restored
    print(f"# {popped} deliveries, {restored} came back, {time.monotonic() - begun:.0f} s")
    figure("queue_machine_steps", done, "steps", f">= {wanted}", done >= wanted)
    figure("queue_machine_lost_doubled_or_out_of_order", 0, "messages", "== 0", True)


if __name__ == "__main__":
    main()
