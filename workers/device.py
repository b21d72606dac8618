"""One device: a Celery worker, prefork, concurrency 1, that serves the queues of its role.

``python -m workers.device --device cpu0`` or ``--gpu 3``. The parent pins the device by the environment and holds no
LLM key and no database address; the pool process holds the warm cell. Its role is read from Redis whenever it starts,
reconnects or is told that it changed; without one it serves both queues, profiling first. Not here: what a task does
(`workers.serving`), who decides on roles (`workers.scheduler`).
"""

# mypy: allow-untyped-calls, allow-untyped-decorators, disable-error-code="misc,assignment"

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import threading
from dataclasses import asdict
from typing import Any

import billiard.pool  # type: ignore[import-untyped]
import redis
import structlog
from celery import bootsteps, signals
from celery.worker.control import control_command

from specgen.evaluation.cell import Device
from specgen.prompts import cpu_facts
from specgen.scheduler.elastic import QUEUES
from specgen.scheduler.keys import DEVICE_QUEUES, UNACKED_INDEX, Keys, script
from specgen.settings import Settings, get_settings

HEARTBEAT_S = 2.0
SECRETS = ("SPECGEN_LLM", "SPECGEN_DATABASE_URL", "OPENAI_", "ANTHROPIC_", "DEEPSEEK_")

log = structlog.get_logger(__name__)


def parse_device(name: str) -> Device:
    """``cpu0``, ``cpu:0``, ``<host>/cpu0`` or ``gpu1``. Raises ValueError otherwise."""
    found = re.fullmatch(r"(?:.*/)?(cpu|gpu|cuda):?(\d+)", name)
    if not found:
        raise ValueError(f"not a device: {name} (such as cpu0 or gpu1)")
    return Device(name=name, backend="cpu" if found[1] == "cpu" else "cuda", index=int(found[2]))


def worker_name(device: Device) -> str:
    """The Celery node's name, by which roles and heartbeats go."""
    kind = "cpu" if device.backend == "cpu" else "gpu"
    return f"device-{kind}{device.index}@{socket.gethostname()}"


class Presence:
    """Registration, heartbeat and role of this worker in Redis (the parent process)."""

    def __init__(self, settings: Settings, device: Device) -> None:
        self.client = redis.Redis.from_url(settings.redis, decode_responses=True)
        self.keys = Keys(settings.prefix, settings.pool.order)
        self.name = worker_name(device)
        facts = asdict(cpu_facts()) if device.backend == "cpu" else None  # what prompts say of the device
        about = {"device": device.name, "backend": device.backend, "host": socket.gethostname(), "pid": os.getpid()}
        self.info = json.dumps(about | {"facts": facts})
        self._stop = threading.Event()
        self._fresh = True

    def register(self) -> str:
        """Say that this device is there; returns its role. On a fresh start, what its predecessor held goes back."""
        if self._fresh:
            restored = self.client.eval(script("register"), 0, *self.keys.args(self.name, UNACKED_INDEX))
            log.info("registered", worker=self.name, restored=restored)
            self._fresh = False
        return str(self.client.eval(script("heartbeat"), 0, *self.keys.args(self.name, self.info)))

    def start_heartbeat(self) -> None:
        """Every two seconds, until `leave`; a Redis that cannot be reached is tried again."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def leave(self) -> None:
        """This device is gone; its role stays, and what it was sent but never started goes back at once."""
        self._stop.set()
        try:
            self.client.eval(script("register"), 0, *self.keys.args(self.name, UNACKED_INDEX))
            self.client.zrem(self.keys.devices, self.name)
        except redis.RedisError as exc:
            log.warning("not_unregistered", worker=self.name, error=str(exc))

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self.client.eval(script("heartbeat"), 0, *self.keys.args(self.name, self.info))
            except redis.RedisError as exc:
                log.warning("no_heartbeat", worker=self.name, error=str(exc))


PRESENCE: Presence | None = None


def apply_role(consumer: Any) -> None:
    """Subscribe to the queues of the role that Redis holds now, and to no other. Runs in the parent's event loop."""
    if PRESENCE is None or consumer.task_consumer is None:
        return
    role = PRESENCE.register()
    wanted = QUEUES[role] if role in QUEUES else QUEUES["both"]
    for queue in DEVICE_QUEUES:
        consuming = consumer.task_consumer.consuming_from(queue)
        if queue in wanted and not consuming:
            consumer.add_task_queue(queue)
        elif queue not in wanted and consuming:
            consumer.cancel_task_queue(queue)


class RoleStep(bootsteps.StartStopStep):
    """After every (re)connect: register, and subscribe as the role says."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """Called by Celery with its consumer."""
        apply_role(c)


@control_command(name="apply_role")
def _apply_role(state: Any) -> dict[str, str]:
    """The scheduler changed this worker's role."""
    state.consumer.call_soon(apply_role, state.consumer)
    return {"ok": "role read"}


def _start_server(device: Device) -> None:
    """In the pool process: the connection, the stale group, the warm cell."""
    from workers import serving

    settings = get_settings()
    serving.SERVER = serving.Server(
        client=redis.Redis.from_url(settings.redis, decode_responses=True),
        keys=Keys(settings.prefix, settings.pool.order),
        worker=worker_name(device),
        device=device,
        policy=settings.evaluation,
        cache_root=settings.cache_path,
    )
    serving.SERVER.prepare()


def _stop_server() -> None:
    from specgen.evaluation.cell import close_zygote
    from workers import serving

    if serving.SERVER is not None:
        serving.SERVER.shutdown()
    close_zygote()


def _environment(device: Device) -> None:
    """Before Celery is imported: no secrets, and this device only."""
    for name in [name for name in os.environ if name.startswith(SECRETS)]:
        del os.environ[name]
    os.environ["SPECGEN_WORKER"] = worker_name(device)
    if device.backend == "cuda":
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device.index)


def main(arguments: list[str] | None = None) -> None:
    """Run until SIGTERM (the running request is finished first)."""
    parser = argparse.ArgumentParser(prog="python -m workers.device", description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--device", type=parse_device, help="name of the device, such as cpu0")
    which.add_argument("--gpu", type=lambda text: parse_device(f"gpu{text}"), help="index of the GPU")
    parser.add_argument("-l", "--loglevel", default="INFO")
    parsed = parser.parse_args(arguments)
    device: Device = parsed.device or parsed.gpu
    _environment(device)

    global PRESENCE
    PRESENCE = Presence(get_settings(), device)
    from workers.app import app

    # a pool process that ends waits so long (tenths of a second, else 300) for its last message to be read
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = 20
    app.steps["consumer"].add(RoleStep)
    signals.worker_process_init.connect(lambda **_: _start_server(device), weak=False)
    signals.worker_process_shutdown.connect(lambda **_: _stop_server(), weak=False)
    signals.worker_ready.connect(lambda **_: PRESENCE.start_heartbeat(), weak=False)
    signals.worker_shutdown.connect(lambda **_: PRESENCE.leave(), weak=False)
    name = ["--hostname", worker_name(device), "--queues", ",".join(DEVICE_QUEUES), "--loglevel", parsed.loglevel]
    pool = ["--pool", "prefork", "--concurrency", "1", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", *name, *pool])


if __name__ == "__main__":
    main()
