"""Healthy while this container's builder says that it is in the pool."""

from __future__ import annotations

import socket
import sys

import redis

from specgen.scheduler.members import TTL_S
from specgen.settings import get_settings


def main() -> int:
    """0 if it does."""
    settings = get_settings()
    with redis.Redis.from_url(settings.redis, decode_responses=True, socket_timeout=5) as client:
        seconds, microseconds = client.time()
        since = seconds + microseconds / 1e6 - TTL_S
        members = client.zrangebyscore(f"{settings.prefix}:members", since, "+inf")
    host = f"@{socket.gethostname()}"
    return 0 if any(name.startswith("builder-") and name.endswith(host) for name in members) else 1


if __name__ == "__main__":
    sys.exit(main())
