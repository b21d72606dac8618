"""A device worker that can be made deaf: while the file ``SPECGEN_TEST_DEAF`` exists, its connection is fine and it
answers remote control, but it never asks its queues for anything. As after a reset that kombu did not survive."""

from __future__ import annotations

import os

from specgen.scheduler.keys import DEVICE_QUEUES
from specgen.scheduler.transport import Channel
from workers.device import main

_start = Channel._brpop_start


def deaf(channel: Channel, *args: object, **kwargs: object) -> None:
    if os.path.exists(os.environ["SPECGEN_TEST_DEAF"]) and set(channel.active_queues) & set(DEVICE_QUEUES):
        return
    _start(channel, *args, **kwargs)


if __name__ == "__main__":
    Channel._brpop_start = deaf
    main()
