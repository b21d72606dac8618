"""The priority queues of §6.2.2 as a kombu transport over Redis: ``validate`` last arrival first, ``profile`` FIFO.

A queue holds tickets; the message lies beside it until its acknowledgement. Workers block on a bell (a list that every
put rings), then pop and lease a ticket in one script, so there is no moment at which a message is in neither the queue
nor the index of leases. Every way back (requeue, lost worker, switch) puts a ticket at its own place, and a worker that
was delivered a ticket earlier can neither acknowledge nor renew it. Who is served next is read from lanes
(``lua/lib.lua``). ``iterations`` is such a queue too, first in first out; all others (control, replies) are kombu's.

Not here: who subscribes to what (`elastic`), what a boundary drops (`pool`). One Redis server, no Cluster.

URLs: ``specgen://host:port/db`` and ``specgen+socket:///path?virtual_host=0``.
"""

# kombu carries no annotations, and what mypy infers of its class attributes is narrower than what they hold
# mypy: allow-untyped-calls, disable-error-code="assignment,union-attr"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from queue import Empty
from threading import RLock
from time import monotonic, sleep
from typing import Any

import redis
from kombu.log import get_logger
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis.commands.core import Script

from specgen.crash_points import crash_point
from specgen.errors import SettingsError
from specgen.scheduler.keys import (
    DELIVERIES_HEADER,
    DEVICE_QUEUES,
    LABEL_HEADER,
    ORIGIN_HEADER,
    PRIORITY_HEADER,
    SCOPE_HEADER,
    TICKET_QUEUES,
    WAIT_BOUNDS_S,
    WAIT_HEADER,
    Keys,
    ScopeClosed,
    is_away,
    script,
)
from specgen.scheduler.leases import HELD
from specgen.types import Origin

logger = get_logger("specgen.scheduler.transport")
OWN_CONNECTIONS = 1024
SETTLE_S = 1.0  # between two attempts at an acknowledgement that Redis did not take
REFUSED_S = 1.0  # between two attempts at a pop that Redis refuses (its disk or its memory is full)
BOUNDS = " ".join(f"{bound:g}" for bound in WAIT_BOUNDS_S)


@cache
def registered(name: str) -> Script:
    """A script with its hash, made once; on a server that does not know it yet it is sent whole."""
    return redis.Redis().register_script(script(name))


class QoS(stock.QoS):
    """Leases instead of a long visibility timeout: renewed while this process lives, whatever the task takes."""

    restore_at_shutdown = False

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._lock = RLock()
        self._born = monotonic()
        # acknowledgements outlive the channel, and may come from many threads at once
        params = channel._connparams() | {"max_connections": OWN_CONNECTIONS}
        self.own = redis.Redis(connection_pool=redis.ConnectionPool(**params))

    @contextmanager
    def pipe_or_acquire(self, pipe: Any = None, client: Any = None) -> Iterator[Any]:
        """A pipeline that works after the channel is closed, too."""
        yield pipe or (client or self.own).pipeline()

    def append(self, message: Any, delivery_tag: str) -> None:
        """A message was delivered. Tickets were leased when they were popped."""
        delivery = message.properties.get("specgen_delivery", "")
        with self._lock:
            HELD.hold(delivery_tag, delivery)
            if delivery:
                virtual.QoS.append(self, message, delivery_tag)
            else:
                super().append(message, delivery_tag)
                self._renew([(delivery_tag, "")])  # by the server's clock: that of this host may be wrong

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; while Redis cannot be reached the acknowledgement is owed and the lease kept."""
        crash_point("ticket.acknowledging")
        with self._lock:
            self._quick_ack(delivery_tag)
        self._settle(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue at the message's own place, or drop it."""
        if not requeue:
            self.ack(delivery_tag)
            return
        with self._lock:
            self._quick_ack(delivery_tag)
        delivery = HELD.delivery(delivery_tag)
        HELD.drop(delivery_tag)  # should Redis be away now, the lease runs out and the message is restored then
        if delivery:
            self.channel.restore_ticket(delivery_tag, delivery, self.own)
        else:
            super().restore_by_tag(delivery_tag, self.own, leftmost=True)

    def restore_by_tag(self, tag: str | bytes, client: Any = None, leftmost: bool = False) -> None:
        """Put a message back whose lease ran out."""
        tag = bytes_to_str(tag)
        if self.channel.restore_ticket(tag, "", client or self.own) < 0:
            super().restore_by_tag(tag, client or self.own, leftmost)

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:  # noqa: ARG002 (kombu's)
        """Restore what nobody renews; not within one timeout of connecting, so that the living can renew first."""
        if monotonic() - self._born < self.visibility_timeout:
            return
        for tag in self.channel.run("expired", self.own, self.unacked_index_key, self.visibility_timeout, num or -1):
            self.restore_by_tag(tag)

    def renew(self) -> None:
        """Renew every lease of this process."""
        self._renew(HELD.held)

    def _renew(self, held: list[tuple[str, str]]) -> None:
        if held:
            self.channel.run("renew", self.own, self.unacked_index_key, *(text for pair in held for text in pair))

    def settle(self) -> None:
        """Try the owed acknowledgements again."""
        for tag in HELD.owed:
            self._settle(tag)

    def _settle(self, tag: str) -> None:
        try:
            if delivery := HELD.delivery(tag):
                self.channel.run("done", self.own, self.unacked_index_key, tag, delivery)
            else:
                self._remove_from_indices(tag).execute()
        except (*self.channel.connection_errors, redis.ResponseError) as exc:
            if not is_away(exc):
                raise
            HELD.owe(tag)
            logger.warning("acknowledgement of %s is owed: Redis is away (%s)", tag, exc)
        else:
            HELD.drop(tag)


class Channel(stock.Channel):
    """Ordinary queues as kombu has them; those of `TICKET_QUEUES` by tickets, bells and scripts."""

    QoS = QoS
    do_restore = False  # a lost connection must not requeue what still runs
    priority_steps = (0,)
    supports_batch_publish = False
    specgen_prefix = "specgen"
    specgen_order = "fair_laf"
    specgen_device = ""  # name of the device worker in this process
    specgen_labels = ("cpu",)  # of that device
    from_transport_options = (
        *stock.Channel.from_transport_options,
        "specgen_prefix",
        "specgen_order",
        "specgen_device",
        "specgen_labels",
    )

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        if connection.client.transport_options.get("global_keyprefix"):
            raise SettingsError(
                "the transport option global_keyprefix cannot be used with the specgen transport",
                "its scripts name keys themselves: set SPECGEN_PREFIX, or use a Redis database of its own",
            )
        self._look = True  # pop before blocking: something may have come while nobody listened
        self._awaiting = "BRPOP"
        self._client_id: int | None = None
        self._publishing: Any = None
        self._known_socket: Any = None
        super().__init__(connection, **kwargs)
        self.keys = Keys(self.specgen_prefix, self.specgen_order)

    def run(self, name: str, client: Any, *args: Any) -> Any:
        """Run a script."""
        return registered(name)(args=self.keys.args(*args), client=client)

    # -------------------------------------------------------------------------------------------- enqueue

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """An exchange named as its queue needs no binding table, so that a wiped Redis loses no message."""
        if routing_key in TICKET_QUEUES or (routing_key and routing_key == exchange):
            return [routing_key]
        found: list[str] = super()._lookup(exchange, routing_key, default)
        return found

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if queue not in TICKET_QUEUES:
            super()._put(queue, message, **kwargs)
            return
        headers = message.get("headers") or {}
        scope = headers.get(SCOPE_HEADER) or ""
        main = "1" if headers.get(ORIGIN_HEADER) == Origin.MAIN else "0"
        label = headers.get(LABEL_HEADER) or "cpu" if queue in DEVICE_QUEUES else ""
        tag, task = message["properties"]["delivery_tag"], headers.get("id") or ""
        args = queue, tag, dumps(message), scope, main, task, label, int(headers.get(PRIORITY_HEADER) or 0)
        try:
            length = self.run("put", self._publisher(), *args)
        except redis.ResponseError as exc:
            if is_away(exc):  # it refuses writes: for the publisher the same as one that cannot be reached
                raise redis.ConnectionError(str(exc)) from exc
            raise
        crash_point("put.stored")
        if length < 0:
            raise ScopeClosed(f"scope {scope} is closed")

    def _publisher(self) -> Any:
        """One client for each pool of connections: kombu's own are made anew for every message.

        Raises redis.ConnectionError where the channel was closed meanwhile (Redis went away under another message):
        the publisher then comes again on a new one.
        """
        if self.connection is None:
            raise redis.ConnectionError("the channel is closed")
        if self._publishing is None or self._publishing.connection_pool is not self.pool:
            self._publishing = self.Client(connection_pool=self.pool)
        return self._publishing

    def restore_ticket(self, tag: str, delivery: str, client: Any, *, unstarted: bool = False) -> int:
        """Put a leased ticket back at its own place: 1, or 0 where there was nothing to do, -1 for no ticket.

        ``delivery`` says whose it is to give back; empty: whoever finds its lease run out.
        """
        return int(self.run("restore", client, self.unacked_index_key, tag, int(unstarted), delivery))

    # -------------------------------------------------------------------------------------------- consume

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        tickets = [queue for queue in TICKET_QUEUES if queue in queues]
        connection = self.client.connection
        self._learn_client_id(connection)
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        if tickets and self._look:
            self._send_grab(tickets)
        else:
            self._awaiting = "BRPOP"
            keys = [*self._bells(tickets), *(queue for queue in queues if queue not in tickets)]
            connection.send_command("BRPOP", *keys, timeout or self.brpop_timeout)

    def _bells(self, queues: list[str]) -> list[str]:
        return [
            self.keys.bell(queue, label)
            for queue in queues
            for label in (self.specgen_labels if queue in DEVICE_QUEUES else ("",))
        ]

    def _grab_args(self, queues: list[str]) -> list[Any]:
        labels = " ".join(self.specgen_labels) if queues[0] in DEVICE_QUEUES else "-"
        return [self.unacked_index_key, self.specgen_device, labels, BOUNDS, *queues]

    def _learn_client_id(self, connection: Any) -> None:
        """What `CLIENT UNBLOCK` needs; a new socket has a new one."""
        if connection._sock is None or connection._sock is not self._known_socket:
            connection.send_command("CLIENT", "ID")
            self._client_id, self._known_socket = connection.read_response(), connection._sock

    def _brpop_read(self, **options: Any) -> bool:
        try:
            reply = self._reply(**options)
            if self._awaiting == "EVAL":
                return self._deliver_ticket(reply)
            self._look = True
            if not reply:
                raise Empty  # the next round looks into the queues
            key = bytes_to_str(reply[0])
            if key not in self._bells(list(TICKET_QUEUES)):
                return self._deliver_ordinary(key, reply[1])
            tickets = [queue for queue in TICKET_QUEUES if queue in self.active_queues]
            if not tickets:
                raise Empty  # unsubscribed meanwhile; the bell rings again for whoever looks next
            self._send_grab(tickets)
            return self._deliver_ticket(self._reply())
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _reply(self, **options: Any) -> Any:
        try:
            return self.client.parse_response(self.client.connection, self._awaiting, **options)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        except redis.ResponseError as exc:
            if not is_away(exc):
                raise
            logger.warning("no message can be taken, tried again in %g s: Redis refuses (%s)", REFUSED_S, exc)
            sleep(REFUSED_S)  # nothing else here could write either
            raise Empty from exc

    def _send_grab(self, queues: list[str]) -> None:
        self._awaiting = "EVAL"  # not EVALSHA: a restarted server has forgotten it
        args = self.keys.args(*self._grab_args(queues))
        self.client.connection.send_command("EVAL", script("grab"), 0, *args)

    def _deliver_ticket(self, reply: Any) -> bool:
        if not reply:
            self._look = False
            raise Empty
        queue, tag = bytes_to_str(reply[0]), bytes_to_str(reply[1])
        if self._closing or queue not in self.active_queues:  # unsubscribed while the pop was in flight
            self.restore_ticket(tag, bytes_to_str(reply[3]), self.qos.own, unstarted=True)
            raise Empty
        crash_point("ticket.grabbed")
        self.connection._deliver(self._ticket_message(reply), queue)
        return True

    def _deliver_ordinary(self, queue: str, payload: bytes) -> bool:
        if self._closing or queue not in self.active_queues:
            self.qos.own.rpush(queue, payload)  # the end that BRPOP takes next
            raise Empty
        self._queue_cycle.rotate(queue)
        self.connection._deliver(loads(bytes_to_str(payload)), queue)
        return True

    @staticmethod
    def _ticket_message(reply: Any) -> dict[str, Any]:
        message: dict[str, Any] = loads(bytes_to_str(reply[2]))
        message["properties"]["specgen_delivery"] = str(int(reply[3]))
        message["headers"][DELIVERIES_HEADER] = int(reply[3])
        message["headers"][WAIT_HEADER] = float(reply[4])
        if int(reply[3]) > 1:
            message["headers"]["redelivered"] = True
            message["properties"]["delivery_info"]["redelivered"] = True
        return message

    def _update_queue_cycle(self) -> None:
        """The subscription changed: end a pop that names the old queues, which else blocks for up to 1 s."""
        super()._update_queue_cycle()
        self._look = True
        if not self._in_poll or self._awaiting != "BRPOP" or self._client_id is None:
            return
        try:
            self.qos.own.client_unblock(self._client_id)
        except self.connection_errors:
            logger.debug("CLIENT UNBLOCK failed; the pop ends by itself", exc_info=True)

    # -------------------------------------------------------------------------------------------- inspect

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 (kombu's)
        if queue not in TICKET_QUEUES:
            message: dict[str, Any] = super()._get(queue)
            return message
        with self.conn_or_acquire() as client:
            reply = self.run("grab", client, *self._grab_args([queue]))
        if not reply:
            raise Empty
        return self._ticket_message(reply)

    def _size(self, queue: str) -> int:
        if queue not in TICKET_QUEUES:
            return int(super()._size(queue))
        with self.conn_or_acquire() as client:
            return int(client.zcard(queue))

    def _purge(self, queue: str) -> int:
        if queue not in TICKET_QUEUES:
            return int(super()._purge(queue))
        with self.conn_or_acquire() as client:
            return int(self.run("purge", client, queue))

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if queue in TICKET_QUEUES:
            self._purge(queue)
        super()._delete(queue, *args, **kwargs)


class Transport(stock.Transport):
    """Registered as ``specgen``; `driver_type` stays ``redis``, so control, events and Flower work."""

    Channel = Channel
    driver_type = "redis"
    supports_batch_publish = False

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Kombu's own timers, lease renewal, and owed acknowledgements."""
        super().register_with_event_loop(connection, loop)
        timeout = connection.client.transport_options.get("visibility_timeout", Channel.visibility_timeout)
        for attribute, interval, method in (
            ("_renew_timer", timeout / 4, "renew"),
            ("_settle_timer", SETTLE_S, "settle"),
        ):
            if old := getattr(self.cycle, attribute, None):
                old.cancel()
            setattr(self.cycle, attribute, loop.call_repeatedly(interval, self._for_process, method))

    def _for_process(self, method: str) -> None:
        """Leases belong to the process: any channel that consumes will do."""
        for channel in self.cycle._channels:
            if channel._qos is not None:
                try:
                    getattr(channel._qos, method)()
                except (*channel.connection_errors, redis.ResponseError) as exc:
                    if not is_away(exc):
                        raise
                    logger.warning("leases: %s failed, tried again on the next tick: %s", method, exc)
                return


TRANSPORT_ALIASES["specgen"] = f"{__name__}:Transport"


def broker_url(redis_url: str) -> str:
    """The broker URL of a redis-py URL (``redis://``, ``rediss://`` or ``unix://``)."""
    scheme, _, rest = redis_url.partition("://")
    if scheme == "unix":
        path, _, query = rest.partition("?")
        options = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
        return f"specgen+socket://{path}?virtual_host={options.get('db', '0')}"
    if scheme not in ("redis", "rediss"):
        raise SettingsError(f"not a Redis URL: {redis_url}", "use redis://, rediss:// or unix://")
    return f"specgen://{rest}"
