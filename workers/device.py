"""One device: a Celery worker, prefork, concurrency 1, that serves the queues of its role.

``python -m workers.device --device cpu0`` or ``--gpu 3``. The parent pins the device by the environment and holds no
LLM key and no database address; the pool process holds the warm cell. Its role is read from Redis whenever it starts,
reconnects or is told that it changed; without one it serves both queues, profiling first; quarantined, none. Not here:
what a task does (`workers.serving`), what the pool knows of this worker (`workers.presence`), who decides on roles
(`workers.scheduler`).
"""

# mypy: allow-untyped-calls, allow-untyped-decorators, disable-error-code="misc,assignment"

from __future__ import annotations

import argparse
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import billiard.pool  # type: ignore[import-untyped]
import redis
import structlog
from celery import bootsteps, signals
from celery.worker import state as worker_state
from celery.worker.control import control_command

from specgen.errors import SpecGenError
from specgen.evaluation.cell import Device
from specgen.evaluation.processes import die_with_parent
from specgen.scheduler.elastic import QUEUES
from specgen.scheduler.keys import DEVICE_QUEUES, Keys
from specgen.settings import get_settings
from workers.ending import refuse, seconds
from workers.health import AGAIN_S, Health, Suspicion, Turn
from workers.labels import arch_list, ask_gpu, labels, parse_device, worker_name
from workers.patience import FOREVER, patiently
from workers.presence import Presence
from workers.probing import LIMIT_S, Probe
from workers.secrets import forget_secrets
from workers.watchdog import AFTER_S

APPLIED_S = 5.0  # until the event loop has changed its subscriptions

log = structlog.get_logger(__name__)


@dataclass
class Worker:
    """The parent's parts, and its consumer once there is one."""

    device: Device
    presence: Presence
    health: Health
    consumer: Any = None
    stop: threading.Event = field(default_factory=threading.Event)

    def isolate(self, reason: str) -> None:
        """Take nothing more: quarantined in Redis, and unsubscribed."""
        patiently(lambda: self.presence.quarantine(reason), FOREVER)
        self.resubscribe()

    def release(self) -> None:
        """The device passed its probe."""
        if patiently(lambda: self.presence.quarantine(""), FOREVER):
            log.info("quarantine_lifted", worker=self.presence.name)
            self.resubscribe()

    def resubscribe(self) -> None:
        """As the role says, done in the event loop; returns when it is."""
        if self.consumer is None:
            return
        done = threading.Event()

        def apply() -> None:
            apply_role(self.consumer)
            done.set()

        self.consumer.call_soon(apply)
        done.wait(APPLIED_S)

    def reset(self) -> None:
        """The role again, over a fresh connection. Returns at once: the event loop may hang."""
        if self.consumer is not None:
            self.consumer.call_soon(_reconnect, self.consumer)

    def start_threads(self) -> None:
        """Once the pool process is forked and the worker consumes."""
        self.presence.start_heartbeat(self.reset, lambda: int(worker_state.all_total_count[0]))
        threading.Thread(target=self.health.run, args=(self.stop,), name="health", daemon=True).start()

    def leave(self) -> None:
        """The worker ends."""
        self.stop.set()
        self.presence.leave()


WORKER: Worker | None = None


def apply_role(consumer: Any) -> None:
    """Subscribe to the queues of the role that Redis holds now, and to no other. Runs in the parent's event loop."""
    if WORKER is None or consumer.task_consumer is None:
        return
    role = WORKER.presence.register()
    wanted = frozenset() if role == "none" else QUEUES[role] if role in QUEUES else QUEUES["both"]
    for queue in DEVICE_QUEUES:
        consuming = consumer.task_consumer.consuming_from(queue)
        if queue in wanted and not consuming:
            consumer.add_task_queue(queue)
        elif queue not in wanted and consuming:
            consumer.cancel_task_queue(queue)


def _reconnect(consumer: Any) -> None:
    """Have Celery's own reconnecting begin: it closes the connection, starts afresh, and applies the role."""

    def broken() -> None:
        raise ConnectionResetError("reset by the watchdog")

    consumer.hub.call_later(0, broken)  # errors of timers reach the consumer, those of callbacks need not


class RoleStep(bootsteps.StartStopStep):
    """After every (re)connect: register, and subscribe as the role says."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """Called by Celery with its consumer."""
        if WORKER is not None:
            WORKER.consumer = c
        apply_role(c)


@control_command(name="apply_role")
def _apply_role(state: Any) -> dict[str, str]:
    """The scheduler changed this worker's role."""
    state.consumer.call_soon(apply_role, state.consumer)
    return {"ok": "role read"}


def _start_server(worker: Worker) -> None:
    """In the pool process: the connection, the stale group, the warm cell. It must not outlive its parent, whose
    successor would share the device with it."""
    from workers import serving

    die_with_parent()
    worker.presence.claim.forked()
    settings = get_settings()
    serving.SERVER = serving.Server(
        client=redis.Redis.from_url(settings.redis, decode_responses=True),
        keys=Keys(settings.prefix, settings.pool.order),
        worker=worker.presence.name,
        device=worker.device,
        policy=settings.evaluation,
        cache_root=settings.cache_path,
        turn=worker.health.turn,
        suspicion=worker.health.suspicion,
    )
    serving.SERVER.prepare()


def _stop_server() -> None:
    from specgen.evaluation.cell import close_zygote
    from workers import serving

    if serving.SERVER is not None:
        serving.SERVER.shutdown()
    close_zygote()


def _environment(device: Device) -> None:
    """Before Celery's application is imported: no secrets, and this device only."""
    forget_secrets()
    os.environ["SPECGEN_WORKER"] = worker_name(device)
    if device.backend == "cuda":
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device.index)


def _enter(device: Device) -> Worker:
    """Join the pool, take the device, and start its first probe. Raises SpecGenError where one of these is refused;
    a Redis that is away is waited for."""
    _environment(device)
    gpu = ask_gpu(device.index) if device.backend == "cuda" else None
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid  # numbers change with what a container or a mask shows
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", arch_list(gpu.facts.compute_capability))  # as builders have it
    os.environ["SPECGEN_LABELS"] = ",".join(labels(device, gpu))
    presence = Presence(get_settings(), device, gpu, watchdog_s=seconds("SPECGEN_WATCHDOG_S", AFTER_S))
    health = Health(
        probe=Probe(device, seconds("SPECGEN_PROBE_LIMIT_S", LIMIT_S)),
        turn=Turn(),
        suspicion=Suspicion(),
        again_s=seconds("SPECGEN_PROBE_AGAIN_S", AGAIN_S),
    )
    worker = Worker(device, presence, health)
    health.isolate, health.release = worker.isolate, worker.release
    patiently(presence.enter, FOREVER)
    health.begin()
    return worker


def main(arguments: list[str] | None = None) -> None:
    """Run until SIGTERM (the running request is finished first)."""
    parser = argparse.ArgumentParser(prog="python -m workers.device", description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--device", type=parse_device, help="name of the device, such as cpu0")
    which.add_argument("--gpu", type=lambda text: parse_device(f"gpu{text}"), help="index of the GPU")
    parser.add_argument("-l", "--loglevel", default="INFO")
    parsed = parser.parse_args(arguments)
    device: Device = parsed.device or parsed.gpu

    global WORKER
    try:
        WORKER = worker = _enter(device)
    except SpecGenError as exc:
        refuse(exc)
    from workers.app import app

    # a pool process that ends waits so long (tenths of a second, else 300) for its last message to be read
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = 20
    app.steps["consumer"].add(RoleStep)
    signals.worker_process_init.connect(lambda **_: _start_server(worker), weak=False)
    signals.worker_process_shutdown.connect(lambda **_: _stop_server(), weak=False)
    signals.worker_ready.connect(lambda **_: worker.start_threads(), weak=False)
    signals.worker_shutting_down.connect(lambda **_: worker.presence.stopping(), weak=False)
    signals.worker_shutdown.connect(lambda **_: worker.leave(), weak=False)
    name = ["--hostname", worker_name(device), "--queues", ",".join(DEVICE_QUEUES), "--loglevel", parsed.loglevel]
    pool = ["--pool", "prefork", "--concurrency", "1", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", *name, *pool])


if __name__ == "__main__":
    main()
