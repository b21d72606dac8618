"""Redis goes away and comes back while a request runs: it runs once, and its result arrives."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest
import redis

from specgen.runtime.valkey import Valkey
from specgen.scheduler.keys import ORIGIN_HEADER, SCOPE_HEADER, Keys
from specgen.scheduler.pool import TASKS
from tests.scheduler.support import WorkerProcess, devices, request, wait_for

KEYS = Keys()


@pytest.fixture
def server(monkeypatch):
    """A Valkey of this test's own, and the settings that point to it."""
    from specgen.settings import get_settings

    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        valkey = Valkey(Path(folder) / "valkey.sock", Path(folder))
        valkey.start()
        monkeypatch.setenv("SPECGEN_REDIS_URL", valkey.url)
        get_settings.cache_clear()
        yield valkey
        valkey.stop()
        get_settings.cache_clear()


def test_redis_restarts_while_a_request_runs(server, tmp_path):
    import importlib

    from celery import Celery

    from workers.app import sender

    app = Celery("test", set_as_current=False)
    app.config_from_object(importlib.reload(importlib.import_module("celeryconfig")))
    client = redis.Redis.from_url(server.url, decode_responses=True)
    server.stop()
    worker = WorkerProcess(
        ["workers.device", "--device", "cpu0"], server.url, tmp_path, SPECGEN_VISIBILITY_TIMEOUT_S="3"
    )
    try:
        wait_for(lambda: "redis_away" in worker.log.read_text(), 20, "a line about Redis that is away")
        server.start()
        wait_for(lambda: devices(client), 20, f"the device, see {worker.log}")
        for name, sleep_s in (("runs", 5), ("after", 0)):
            it = request(name, source=json.dumps({"sleep_s": sleep_s}))
            headers = {SCOPE_HEADER: it.scope, ORIGIN_HEADER: it.origin.value}
            payload = {"request": it.model_dump(mode="json")}
            sender(app)(TASKS[it.phase], payload, it.phase.value, headers, it.request_id)
            wait_for(lambda: client.keys(KEYS.start("runs*")), what="the start claim")
        time.sleep(1.2)  # the append-only file is written every second

        server.stop()
        time.sleep(1.0)
        server.start()

        def results() -> list[str]:
            entries = client.xrange(KEYS.results("j/1"))
            return [json.loads(fields["result"])["candidate_id"] for _, fields in entries]

        wait_for(lambda: len(results()) >= 2, 30, f"both results, see {worker.log}")
        wait_for(lambda: client.keys("specgen:message:*") == [], 10, "both acknowledged")
        time.sleep(4.0)  # a lease that had run out would be restored by now
        assert results() == ["runs", "after"]
        assert client.zcard("unacked_index") == 0
    finally:
        worker.kill()
        client.close()
        app.close()
