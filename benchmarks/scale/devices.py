"""So many simulated devices in one process: ``python -m benchmarks.scale.devices FIRST COUNT SERVICE_S SOCKET``.

Until SIGTERM; then one line of JSON says what they did.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
import time

from benchmarks.simulated_device import SCRIPTS, Device
from benchmarks.wire import Wire
from specgen.scheduler.keys import Keys
from workers.serving import WATCH_S


async def main(first: int, count: int, service_s: float, socket: str) -> None:
    """Run them."""
    chance = random.Random(first)
    wire = await Wire.connect(socket)
    await wire.load(SCRIPTS)
    wire.close()
    crew = [
        Device(f"device{i}", Keys(), lambda *_: service_s * chance.uniform(0.5, 1.5), WATCH_S)
        for i in range(first, first + count)
    ]
    tasks = []
    for device in crew:
        tasks.append(asyncio.create_task(device.run(socket)))
        if len(tasks) % 20 == 0:
            await asyncio.sleep(0.02)  # connections are accepted one after another
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    failed = [repr(task.exception()) for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    served, aborted = sum(device.served for device in crew), sum(device.aborted for device in crew)
    print(json.dumps({"served": served, "aborted": aborted, "failed": failed[:3], "cpu_s": time.process_time()}))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
