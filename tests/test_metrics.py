"""What `specgen metrics`, `specgen pool` and `specgen devices` tell, through the real transport and scripts."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest
import redis
from kombu import Connection, Exchange, Producer, Queue
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specgen.scheduler.keys import Keys, ScopeClosed, script
from specgen.scheduler.leases import HELD
from specgen.scheduler.metrics import PoolCollector
from specgen.scheduler.pool import count
from specgen.scheduler.transport import broker_url
from tests.scheduler.support import ROOT, WorkerProcess, headers, wait_for

KEYS = Keys()
CPU, BIG, BROKEN = (f"device-cpu{i}@host" for i in range(3))


class Pool:
    """Devices as their heartbeats make them, and messages that pass through the transport."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url, self.client = url, client
        self.opened: list[Connection] = []
        self.beat()
        self.run("assign", "", CPU, "validate", BIG, "profile")
        self.run("quarantine", BROKEN, "probe: expected 4, got 5\nand more")

    def beat(self) -> None:
        """Good for some seconds: again before a command that follows another."""
        for worker, labels in ((CPU, ["cpu"]), (BIG, ["cpu", "big"]), (BROKEN, ["cpu"])):
            info = {"device": worker[7:11], "backend": "cpu", "host": "host", "labels": labels, "version": "1.2.3"}
            self.run("heartbeat", worker, json.dumps(info))

    def run(self, name: str, *args: str | float) -> object:
        return self.client.eval(script(name), 0, *KEYS.args(*args))

    def channel(self, **options: object) -> object:
        self.opened.append(Connection(broker_url(self.url), transport_options=options))
        return self.opened[-1].default_channel

    def put(self, queue: str, scope: str, label: str = "cpu") -> None:
        Producer(self.channel()).publish("x", routing_key=queue, headers=headers(scope, label=label))

    def take(self, queue: str, worker: str, *labels: str) -> object:
        """As that device does."""
        channel = self.channel(specgen_device=worker, specgen_labels=labels)
        message = Queue(queue, Exchange(""), routing_key=queue)(channel).get()
        assert message is not None
        return message


@pytest.fixture
def pool(redis_url, redis_client) -> Iterator[Pool]:
    made = Pool(redis_url, redis_client)
    yield made
    for tag, _ in HELD.held:
        HELD.drop(tag)
    for one in made.opened:
        one.close()


@pytest.fixture
def used(pool) -> Pool:
    """Something of each kind has happened in it."""
    for scope in ("j7/1", "j8/1"):
        pool.run("open", scope, "cpu")
    for _ in range(3):
        pool.put("validate", "j7/1")
    pool.put("validate", "j8/1", "h200")  # nobody has such a device
    pool.put("profile", "j8/1")
    pool.take("validate", CPU, "cpu").ack()
    pool.take("validate", CPU, "cpu")
    pool.take("profile", BIG, "cpu", "big").ack()
    assert pool.run("claim", "j8/1", 5, 1, 60, "cpu") == 1
    pool.run("close", "j7/1", 60, 0)
    for name, n in (("aborted", 2), ("fence_refused", 3)):
        count(pool.client, KEYS, name, n)
    return pool


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, values of its labels by the labels' names) -> value. The parser refuses what is no exposition format."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(s.name, tuple(s.labels[name] for name in sorted(s.labels))): s.value for s in found}
    assert len(values) == len(found)  # no sample twice
    return values


def scrape(client: redis.Redis) -> str:
    registry = CollectorRegistry()
    registry.register(PoolCollector(client, KEYS))
    return generate_latest(registry).decode()


def test_what_happened_is_told(used):
    told = samples(scrape(used.client))

    def value(name: str, *labels: str) -> float:
        return told[f"specgen_{name}", labels]

    assert value("up") == 1
    assert value("queue_waiting", "cpu", "validate") == 0  # one was dropped
    assert value("queue_waiting", "h200", "validate") == 1
    assert value("queue_waiting", "", "iterations") == 0
    assert value("devices", "validate", "busy") == 1
    assert value("devices", "profile", "idle") == 1
    assert value("devices", "both", "quarantined") == 1
    assert sum(n for (name, _), n in told.items() if name == "specgen_devices") == 3
    assert value("label_devices", "big", "profile", "idle") == 1
    assert value("label_devices", "cpu", "profile", "idle") == 1
    assert value("label_devices", "big", "validate", "busy") == 0
    assert value("claims", "cpu") == 1
    assert value("leases") == 1
    assert value("open_scopes") == 1
    assert value("boundaries_pending") == 1
    assert value("scheduler_leader") == 0
    assert value("requests_enqueued_total", "validate") == 4
    assert value("requests_served_total", "validate") == 2
    assert value("requests_served_total", "profile") == 1
    assert value("requests_dropped_total") == 1
    assert value("boundaries_total") == 1
    assert value("role_changes_total") == 2
    assert value("evaluations_aborted_total") == 2
    assert value("fence_refusals_total") == 3
    assert value("queue_wait_seconds_count", "validate") == 2
    assert value("queue_wait_seconds_bucket", "+Inf", "validate") == 2
    assert 0 < value("queue_wait_seconds_sum", "validate") < 60


def test_lost_workers_and_late_requests_are_told(used):
    used.run("register", CPU, "unacked_index")  # it starts again: what it held goes back, here to a closed scope
    used.take("validate", BIG, "h200")
    assert used.run("register", BIG, "unacked_index") == 1
    with pytest.raises(ScopeClosed):
        used.put("validate", "j7/1")
    told = samples(scrape(used.client))
    assert told["specgen_redeliveries_total", ()] == 1
    assert told["specgen_requests_refused_total", ()] == 1
    assert told["specgen_queue_waiting", ("h200", "validate")] == 1
    assert told["specgen_leases", ()] == 0


def test_names_hold_prometheus_conventions(used):
    text = scrape(used.client)
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert set(kinds.values()) == {"gauge", "counter", "histogram"}
    assert all(family.documentation for family in text_string_to_metric_families(text))
    if promtool := shutil.which("promtool"):
        checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_labels_do_not_grow_with_jobs_or_devices(used):
    before = set(samples(scrape(used.client)))
    for i in range(20):
        used.run("open", f"k{i}/1", "cpu")
        used.put("validate", f"k{i}/1")
        used.run("heartbeat", f"device-cpu{i}@other", json.dumps({"labels": ["cpu"]}))
    assert set(samples(scrape(used.client))) == before


def test_it_is_served_until_a_signal(pool, tmp_path):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    process = WorkerProcess(["specgen", "metrics", "--port", str(port)], pool.url, tmp_path)
    try:
        wait_for(lambda: "metrics at http://127.0.0.1" in process.log.read_text(), 20, str(process.log))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert samples(answer.read().decode())["specgen_devices", ("validate", "idle")] == 1
        assert process.stop() == 0
    finally:
        process.kill()
    taken = cli(pool.url, tmp_path, "metrics", "--port", str(port), occupied=port)
    assert (taken.returncode, taken.stdout) == (2, "")
    assert f"metrics cannot be served at 127.0.0.1:{port}" in taken.stderr


def test_without_redis_only_that_is_told(tmp_path):
    with redis.Redis.from_url(f"unix://{tmp_path}/nobody.sock", decode_responses=True) as nobody:
        assert samples(scrape(nobody)) == {("specgen_up", ()): 0}


# ------------------------------------------------------------------------------------------------------- specgen pool


def cli(url: str, home, *arguments: str, occupied: int = 0) -> subprocess.CompletedProcess[str]:
    with socket.socket() as taken:
        if occupied:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", occupied))
            taken.listen()
        command = [sys.executable, "-m", "specgen", *arguments, *(["--home", str(home)] if home else [])]
        env = {"PATH": "/usr/bin:/bin", "SPECGEN_REDIS_URL": url, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=env, cwd=home, text=True, capture_output=True, timeout=60)


def test_the_pool_on_one_screen(used, tmp_path):
    decision = {"at": "1000.5", "reason": "boundary", "scope": "j7/1", "policy": "paper", "devices": 2, "validators": 1}
    decision |= {"profilers": 1, "max_validate": 3, "max_profile": 1, "moved": 0, "dropped": 1, "groups": "[]"}
    used.client.xadd(KEYS.decisions, decision)
    shown = cli(used.url, tmp_path, "pool")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "scheduler: NONE" in shown.stdout
    assert "validate j7/1" in lines[CPU]
    assert "cpu big" in lines[BIG]
    assert "idle" in lines[BIG]
    assert "QUARANTINED: probe: expected 4, got 5 and more" in lines[BROKEN]
    assert "1.2.3" in lines[CPU]
    assert "no device serves it" in next(line for line in shown.stdout.splitlines() if "h200" in line)
    assert "boundary j7/1" in shown.stdout


def test_the_pool_for_machines(used, tmp_path):
    told = json.loads(cli(used.url, tmp_path, "pool", "--json").stdout)
    assert {(q["queue"], q["label"]): q["waiting"] for q in told["queues"] if q["waiting"]} == {("validate", "h200"): 1}
    assert {device["worker"]: device["state"] for device in told["devices"]} == {
        CPU: "busy",
        BIG: "idle",
        BROKEN: "quarantined",
    }
    assert told["claims"] == 1
    used.beat()
    only = json.loads(cli(used.url, tmp_path, "devices", "--json").stdout)
    assert [device["worker"] for device in only] == [CPU, BIG, BROKEN]


def test_an_empty_pool_and_no_redis_are_one_line_each(redis_url, tmp_path):
    empty = cli(redis_url, tmp_path, "pool")
    assert empty.returncode == 3
    assert empty.stderr.startswith("specgen: no device is in the pool\n  hint: start one:")
    assert "iterations" in empty.stdout  # what waits is shown all the same
    for command in ("pool", "devices"):
        away = cli(f"unix://{tmp_path}/nobody.sock", tmp_path, command)
        assert (away.returncode, away.stdout) == (3, "")
        assert [line.split()[0] for line in away.stderr.splitlines()] == ["specgen:", "hint:"]


def test_watching_goes_on_while_redis_is_away(tmp_path):
    command = [sys.executable, "-m", "specgen", "pool", "--watch", "--every", "0.1"]
    env = {"PATH": "/usr/bin:/bin", "SPECGEN_REDIS_URL": f"unix://{tmp_path}/nobody.sock", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        stop = threading.Timer(30, process.kill)
        stop.start()
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        assert process.wait(10) == 130
        stop.cancel()
    assert all("Redis cannot be used" in line and "trying again" in line for line in lines)
