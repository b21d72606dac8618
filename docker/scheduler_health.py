"""Healthy while some scheduler holds the lease: this one decides, or waits as the standby of one that does."""

from __future__ import annotations

import sys

import redis

from specgen.scheduler.keys import Keys
from specgen.settings import get_settings


def main() -> int:
    """0 if there is a leader."""
    settings = get_settings()
    keys = Keys(settings.prefix, settings.pool.order)
    with redis.Redis.from_url(settings.redis, socket_timeout=5) as client:
        return 0 if client.exists(keys.leader) else 1


if __name__ == "__main__":
    sys.exit(main())
