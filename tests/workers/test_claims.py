"""Two workers on one device: the second refuses and says who has it, whatever the two share."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from specgen.errors import EnvironmentLacking, SettingsError
from specgen.evaluation.cell import Device
from specgen.scheduler import process_groups
from specgen.scheduler.keys import Keys
from specgen.scheduler.pool import PoolState
from tests.scheduler.support import ROOT, devices, request, wait_for
from tests.workers.support import WORKER, results
from workers import claims
from workers.claims import DeviceClaim
from workers.ending import TRY_AGAIN
from workers.labels import gpu_label, identity, labels, parse_gpu

KEYS = Keys()
GPU = "GPU-7d5f5a2e"
TAKE = """
import os, redis, signal, sys, tempfile
tempfile.tempdir = sys.argv[2]
from specgen.scheduler.keys import Keys
from workers.claims import DeviceClaim
DeviceClaim(redis.Redis.from_url(sys.argv[1]), Keys(), sys.argv[3], "device-gpu0@here", pool=sys.argv[4]).take()
print("taken", flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(redis_url, folder):
    """Another process that holds the GPU; its pool decides about the lock file."""
    started = []

    def one(pool: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", TAKE, redis_url, str(folder), GPU, pool]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def claim(client, *, keys: Keys = KEYS, pool: str = "") -> DeviceClaim:
    return DeviceClaim(client, keys, GPU, "device-gpu0@test", pool=pool)


def refused(it: DeviceClaim) -> str:
    with pytest.raises(EnvironmentLacking) as caught:
        it.take()
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("pool", ["", "a temporary folder of its own"])
def test_a_device_that_a_live_process_holds_is_refused_at_once(redis_client, holder, pool: str) -> None:
    """By the lock file; and by Redis alone, as between containers."""
    process = holder(pool)
    began = time.monotonic()
    message = refused(claim(redis_client))
    assert time.monotonic() - began < 1.0
    assert f"device-gpu0@here (pid {process.pid} on {socket.gethostname()})" in message
    assert GPU in message


@pytest.mark.parametrize("pool", ["", "a temporary folder of its own"])
def test_a_killed_holder_is_taken_over_from_at_once(redis_client, holder, pool: str) -> None:
    process = holder(pool)
    process.send_signal(signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    claim(redis_client).take()
    assert time.monotonic() - began < 1.0


def test_two_pools_on_one_gpu(redis_client) -> None:
    first, second = claim(redis_client), claim(redis_client, keys=Keys("another"))
    first.take()
    assert "device-gpu0@test" in refused(second)
    assert not redis_client.exists(f"another:held:{GPU}")
    assert stat.S_IMODE(first.lock_path.stat().st_mode) == 0o666
    first.release()
    assert not first.lock_path.exists()
    second.take()
    second.release()


def held_elsewhere(client, lapses_ms: int | None) -> None:
    """As a worker of another machine would hold it."""
    process = process_groups.this_process().model_copy(update={"host": "elsewhere", "pid": 4711})
    about = f'{{"owner": "o", "worker": "device-gpu0@elsewhere", "process": {process.model_dump_json()}}}'
    client.set(f"specgen:held:{GPU}", about, px=lapses_ms)


def test_a_holder_of_another_host_is_waited_for_until_it_lapses(redis_client, monkeypatch) -> None:
    held_elsewhere(redis_client, 400)
    it = claim(redis_client)
    it.take()
    assert it.renew()
    it.release()
    monkeypatch.setattr(claims, "TTL_S", -1.5)
    held_elsewhere(redis_client, None)
    assert "device-gpu0@elsewhere (pid 4711 on elsewhere)" in refused(it)
    it.release()
    assert redis_client.exists(f"specgen:held:{GPU}"), "not its to let go"


def test_a_holder_that_was_stopped_for_too_long_is_told(redis_client) -> None:
    it = claim(redis_client)
    it.take()
    assert it.renew()
    held_elsewhere(redis_client, None)
    assert not it.renew()
    it.release()


def test_a_worker_that_lost_its_device_ends(device, redis_client):
    """Stopped for so long that another took it: two on one device would be worse."""
    worker = device("cpu0")
    [key] = redis_client.keys("specgen:held:*")
    redis_client.set(key, json.dumps({"owner": "another", "worker": "another"}))
    assert worker.process.wait(10) == TRY_AGAIN
    assert "another worker holds the device now" in worker.log.read_text()
    assert devices(redis_client) == []
    assert "another" in redis_client.get(key)


def test_a_second_worker_on_a_device_does_not_start_and_the_first_goes_on(
    device, start, submit, redis_client, redis_url
):
    first = device("cpu0", SPECGEN_DEVICE_LABELS="big, lab.2")
    second = start("workers.device", "--device", "cpu0")
    assert second.process.wait(20) == 2
    line, hint = second.log.read_text().strip().splitlines()
    assert line == (
        f"specgen: device {socket.gethostname()}/cpu0 is taken: {WORKER} (pid {first.pid} on {socket.gethostname()}) "
        "has it"
    )
    assert "hint:" in hint
    with PoolState(redis_url) as pool:
        [state] = pool.devices()
    assert state.info["pid"] == first.pid
    assert state.labels == ("cpu", "big", "lab.2")
    assert redis_client.zrange("specgen:members", 0, -1) == [WORKER]
    submit(request("elsewhere", label="h200"), request("here", label="lab.2"))
    wait_for(lambda: results(redis_client), what="the request for one of its labels")
    assert redis_client.zcard("validate") == 1, "the one for another device waits"
    assert first.stop() == 0
    assert devices(redis_client) == []
    assert redis_client.zcard("specgen:members") == 0
    assert not redis_client.keys("specgen:held:*")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("Tesla V100-PCIE-16GB", "v100"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"), ("NVIDIA L40S", "l40s"), ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"), ("NVIDIA H100 NVL", "h100"),
    ],
)  # fmt: skip
def test_a_gpus_label_is_its_model(name: str, label: str) -> None:
    assert gpu_label(name) == label


def test_what_a_driver_says_of_a_gpu() -> None:
    """Recorded from nvidia-smi on an H200, and what it says where there is none."""
    gpu = parse_gpu("GPU-a2f25d26-be25-634e-3b1e-9416048277c5, NVIDIA H200, 9.0, 143771\n")
    assert gpu is not None
    assert (gpu.facts.name, gpu.facts.compute_capability, gpu.facts.memory_gib) == ("NVIDIA H200", "9.0", 140.4)
    device = Device("gpu3", "cuda", 3)
    assert identity(device, gpu) == "GPU-a2f25d26-be25-634e-3b1e-9416048277c5"
    assert labels(device, gpu) == ("cuda", "h200")
    assert parse_gpu("No devices were found\n") is None
    assert identity(device, None) == f"{socket.gethostname()}/gpu3"
    assert labels(device, None) == ("cuda",)


@pytest.mark.parametrize("text", ["*", "a b", "H200", "a:b", "-x"])
def test_a_label_that_is_none_is_refused(text: str, monkeypatch) -> None:
    monkeypatch.setenv("SPECGEN_DEVICE_LABELS", f"fine,{text}")
    with pytest.raises(SettingsError, match="is no label"):
        labels(Device("cpu0", "cpu", 0), None)


def test_a_group_is_ended_only_if_it_is_the_one_recorded() -> None:
    """Pids come again: what started at another moment is left alone, what lost its leader is ended all the same."""
    script = "import os, time\nif os.fork():\n    time.sleep(60)\nprint(flush=True)\ntime.sleep(60)"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        group = process_groups.record(process.pid)
        assert group is not None
        for other in ({"started_ticks": group.started_ticks + 1}, {"boot_id": "x"}, {"host": "x"}, {"pids": "x"}):
            assert not process_groups.end(group.model_copy(update=other))
        assert len(process_groups.members(group.pgid)) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: len(process_groups.members(group.pgid)) == 1, what="the leader's end")
        assert process_groups.end(group)
        assert process_groups.members(group.pgid) == []
