"""Prometheus metrics over HTTP: ``python -m workers.metrics``, or ``specgen metrics``. They are those of
`specgen.scheduler.metrics`, read from Redis at each scrape: one of these serves a whole system.

Without a password, so bound to loopback unless told otherwise; what it tells are counts and labels, no secrets.
"""

from __future__ import annotations

import argparse
import sys

import redis
from prometheus_client import CollectorRegistry, start_http_server
from redis.backoff import NoBackoff
from redis.retry import Retry

from specgen.errors import EnvironmentLacking
from specgen.scheduler.keys import Keys
from specgen.scheduler.metrics import PoolCollector
from specgen.settings import get_settings
from workers.ending import until_signal

ADDRESS, PORT = "127.0.0.1", 9464
PATIENCE_S = 3.0  # with Redis; Prometheus itself gives up after ten


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises EnvironmentLacking where the address cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m workers.metrics", description=__doc__.partition("\n")[0])
    parser.add_argument("--address", default=ADDRESS)
    parser.add_argument("--port", type=int, default=PORT)
    parsed = parser.parse_args(arguments)
    settings, stop = get_settings(), until_signal()
    client = redis.Redis.from_url(
        settings.redis,
        decode_responses=True,
        socket_timeout=PATIENCE_S,
        socket_connect_timeout=PATIENCE_S,
        retry=Retry(NoBackoff(), 1),  # a connection that a restart of Redis left stale
    )
    with client:
        registry = CollectorRegistry()
        registry.register(PoolCollector(client, Keys(settings.prefix, settings.pool.order)))
        try:
            server, thread = start_http_server(parsed.port, parsed.address, registry)
        except (OSError, OverflowError) as exc:
            why = getattr(exc, "strerror", None) or exc
            raise EnvironmentLacking(
                f"metrics cannot be served at {parsed.address}:{parsed.port}: {why}", "choose another --port"
            ) from exc
        sys.stdout.write(f"metrics at http://{parsed.address}:{parsed.port}/metrics\n")
        if parsed.address not in ("127.0.0.1", "localhost", "::1"):
            sys.stdout.write("everyone who reaches that address can read them: counts and labels, no secrets\n")
        sys.stdout.flush()
        stop.wait()
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    from specgen.cli.main import report
    from specgen.errors import SpecGenError

    try:
        main()
    except SpecGenError as error:
        sys.exit(report(error))
