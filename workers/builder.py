"""One builder a host of devices: it builds what waits in the queues before a device is spent on it.

``python -m workers.builder --device cpu:0`` (once for each device of this host), or ``--gpus all``. Same version as the
pool, no LLM key, no database address, no device: it looks at requests and warms this host's cache. Without it, or when
it dies, devices build for themselves. Not here: what is built, and when that is given up (`workers.yard`).
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
from collections.abc import Sequence

import redis
import structlog

from specgen.errors import InfrastructureError, SettingsError, SpecGenError
from specgen.evaluation.cell import Device, close_zygote
from specgen.scheduler.keys import Keys, is_away
from specgen.scheduler.pool import count
from specgen.scheduler.waiting import Waiting
from specgen.settings import Settings, get_settings
from workers.ending import refuse, until_signal
from workers.labels import arch_list, ask_gpu, gpus_here, labels, parse_device
from workers.patience import AWAY
from workers.secrets import forget_secrets
from workers.startup import enter_pool
from workers.yard import Plan, Target, Yard, memory_here

LOOK_S = 0.2  # between two looks at the queues
REAP_S = 0.02  # between two looks at builds that run: a device may wait for one
AGAIN_S = 5.0  # after an error of this host

log = structlog.get_logger(__name__)


def targets(devices: Sequence[Device]) -> list[Target]:
    """The kinds of devices there are. Raises SettingsError where a GPU's architecture is not known."""
    found: list[Target] = []
    for device in devices:
        gpu = ask_gpu(device.index) if device.backend == "cuda" else None
        arch = os.environ.get("TORCH_CUDA_ARCH_LIST") or (arch_list(gpu.facts.compute_capability) if gpu else "")
        if device.backend == "cuda" and not arch:
            raise SettingsError(
                f"the architecture of {device.name} is not known here", "set TORCH_CUDA_ARCH_LIST, such as 9.0a"
            )
        found.append(Target(device.backend, labels(device, gpu), arch if device.backend == "cuda" else ""))
    return list(dict.fromkeys(found))


def plan(devices: Sequence[Device]) -> Plan:
    """What this host has left for builds; this process and its children keep to these cores."""
    cpus = [device.index for device in devices if device.backend == "cpu"]
    made = Plan.of(sorted(os.sched_getaffinity(0)), cpus, len(devices) - len(cpus), memory_here())
    os.sched_setaffinity(0, made.cores)
    return made


def run(yard: Yard, stop: threading.Event) -> None:
    """Until ``stop``. A Redis that is away, and a cache that cannot be used, are tried again."""
    rounds = max(1, round(LOOK_S / REAP_S))
    turn, trouble = 0, ""
    while not stop.wait(REAP_S if yard.sites else LOOK_S):
        yard.reap()
        turn += 1
        if yard.sites and turn % rounds:
            continue
        try:
            yard.warm()
            yard.look()
            trouble = ""
        except (InfrastructureError, *AWAY) as exc:
            if not isinstance(exc, InfrastructureError) and not is_away(exc):
                raise
            if str(exc) != trouble:
                log.warning("builder_waits", error=str(exc), tried_again_s=AGAIN_S)
                trouble = str(exc)
            stop.wait(AGAIN_S if isinstance(exc, InfrastructureError) else 1.0)


def serve(kinds: Sequence[Target], made: Plan, settings: Settings, stop: threading.Event) -> None:
    """Join the pool and build until ``stop``."""
    enter_pool(settings, f"builder-{os.getpid()}@{socket.gethostname()}", stop, "builder")
    keys = Keys(settings.prefix, settings.pool.order)
    with redis.Redis.from_url(settings.redis, decode_responses=True) as client:
        yard = Yard(
            Waiting(client, keys), kinds, made, settings.evaluation, settings.cache_path,
            lambda name: count(client, keys, name),
        )  # fmt: skip
        log.info("builder_started", at_once=made.slots, cores=sorted(made.cores), targets=len(kinds))
        try:
            run(yard, stop)
        finally:
            yard.close()
            close_zygote()


def main(arguments: list[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT; builds that run then are given up."""
    parser = argparse.ArgumentParser(prog="python -m workers.builder", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", type=parse_device, action="append", default=[], help="such as cpu:0; repeatable")
    parser.add_argument("--gpus", default="", help="all, or numbers such as 0,1")
    parsed = parser.parse_args(arguments)
    forget_secrets()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no build may use a device
    try:
        devices = [*parsed.device, *gpus_here(parsed.gpus)]
        if not devices:
            raise SettingsError("a builder needs the devices of its host", "--device cpu:0 (repeatable), or --gpus all")
        serve(targets(devices), plan(devices), get_settings(), until_signal())
    except SpecGenError as exc:
        refuse(exc)


if __name__ == "__main__":
    main()
