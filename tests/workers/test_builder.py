"""Builds ahead of their turn: used by devices, harmless to queues, and gone with whoever made them. Real sandboxes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from specgen.evaluation import processes, stored
from specgen.evaluation.build import ensure_support
from specgen.evaluation.cell import Cell, Device, close_zygote
from specgen.evaluation.problems import load_problem
from specgen.evaluation.stored import Claim
from specgen.scheduler.keys import Keys
from specgen.scheduler.metrics import PoolCollector
from specgen.scheduler.waiting import Waiting
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, Status, source_id
from tests.evaluation.candidates import t4
from tests.scheduler.support import request as made
from tests.scheduler.support import wait_for
from tests.workers.support import results
from tests.workers.test_device import close
from workers import ahead
from workers.builder import main
from workers.labels import arch_list
from workers.yard import GIB, Plan, Target, Yard

KEYS = Keys()
CORE = min(os.sched_getaffinity(0))
CPU = Target("cpu", ("cpu",))
POLICY = EvaluationPolicy()
SLOW = "# cpp_extension\nimport time\ntime.sleep(600)\n"
BROKEN = "# cpp_extension\nraise RuntimeError('no')\n"


@pytest.fixture(scope="module")
def support(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A place for the build support library; kept between runs where SPECGEN_TEST_CACHE names one."""
    place = Path(os.environ.get("SPECGEN_TEST_CACHE") or tmp_path_factory.mktemp("support"))
    ensure_support(place)
    yield place
    close_zygote()


@pytest.fixture(scope="module")
def cache(support: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache without builds."""
    folder = tmp_path_factory.mktemp("cache")
    for found in support.glob("support*"):
        (folder / found.name).symlink_to(found)
    return folder


@pytest.fixture
def counted() -> Counter[str]:
    return Counter()


@pytest.fixture
def yard(cache: Path, redis_client, counted: Counter[str]) -> Iterator[Callable[[], Yard]]:
    """Yards of one build at a time; their first sandbox is ready."""
    opened: list[Yard] = []
    plan = Plan(slots=1, cores=frozenset({CORE}), memory_bytes=4 * GIB)

    def one() -> Yard:
        opened.append(
            Yard(Waiting(redis_client, KEYS), [CPU], plan, POLICY, cache, lambda name: counted.update([name]))
        )
        opened[-1].warm()
        assert opened[-1]._warm[CPU][0].cell.wait_ready(60)
        return opened[-1]

    yield one
    for it in opened:
        it.close()


def candidate(source: str, scope: str = "j/1", **more: object) -> EvaluationRequest:
    unique = f"{source}\n# {uuid.uuid4()}\n"
    fields = {"candidate_id": source_id(unique), "problem": load_problem("T4")} | more
    return made("c", scope, source=unique).model_copy(update=fields)


def free(place: Path) -> bool:
    claim = Claim.alone(place)
    if claim is not None:
        claim.release()
    return claim is not None


@pytest.mark.timeout(240)
def test_a_device_finds_it_built_and_a_killed_builder_leaves_nothing(
    start, submit, redis_client, redis_url, cache: Path
) -> None:
    """Latest first, the queue untouched; SIGKILL while it builds; then the device, which builds nothing."""
    older, newer = candidate(t4(), "j/2"), candidate(t4())
    submit(older, newer)
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter() if "member" not in key}
    env = {"SPECGEN_CELL": "specgen.evaluation.cell:Cell", "SPECGEN_CACHE": str(cache)}
    hidden = {"SPECGEN_DATABASE_URL": "sqlite:///hidden-4711.db", "SPECGEN_LLM__DEFAULT__API_KEY": "key-4711"}
    builder = start("workers.builder", "--device", f"cpu{CORE}", **env, **hidden)
    places = [stored.entry(cache, it.source) for it in (older, newer)]
    wait_for(lambda: all(place.is_file() for place in places), 60, f"both builds, see {builder.log}")
    assert places[1].stat().st_mtime_ns < places[0].stat().st_mtime_ns
    after = {key: redis_client.dump(key) for key in redis_client.scan_iter() if "member" not in key}
    after.pop(KEYS.counters), before.pop(KEYS.counters)  # it counts
    assert after == {key: value for key, value in before.items() if "member" not in key}

    slow = candidate(SLOW, "j/2")
    submit(slow)
    place = stored.entry(cache, slow.source)
    wait_for(lambda: not free(place), 30, "the slow build")
    inside = processes.descendants(builder.pid)
    for pid in inside:
        found = Path(f"/proc/{pid}/environ")
        assert b"4711" not in (found.read_bytes() if found.exists() else b"")
    os.kill(builder.pid, signal.SIGKILL)
    wait_for(lambda: free(place), 10, "its claim")
    wait_for(lambda: not any(map(processes.running, inside)), 10, "the end of its processes")
    assert not place.parent.exists() or not list(place.parent.iterdir())
    close(redis_url, "j/2")

    worker = start("workers.device", "--device", f"cpu{CORE}", **env)
    [result] = wait_for(lambda: results(redis_client), 120, f"the result, see {worker.log}")
    assert (result.candidate_id, result.build_route) == (newer.candidate_id, "cached")
    assert result.status is not Status.INFRA_ERROR
    assert result.environment["build_ahead"] == "ready"
    registry = CollectorRegistry()
    registry.register(PoolCollector(redis_client, KEYS))
    told = registry.get_sample_value
    assert told("specgen_validation_builds_total", {"result": "ready"}) == 1
    assert told("specgen_builds_ahead_total", {"result": "kept"}) == 2


def test_what_nobody_waits_for_is_stopped(yard, submit, redis_url, cache: Path, counted: Counter[str]) -> None:
    it, slow = yard(), candidate(SLOW)
    submit(slow)
    it.look()
    [site] = it.sites
    group = site.cell
    place = stored.entry(cache, slow.source)
    assert not free(place)
    it.look()
    assert it.sites == [site], "still wanted"
    close(redis_url, "j/1")
    it.look()
    assert it.sites == []
    assert free(place)
    assert not processes.running(group.pgid)
    assert counted == {"built_ahead:stopped": 1}


@pytest.mark.timeout(180)
def test_two_builders_and_a_device_build_once(
    yard, submit, redis_client, cache: Path, counted: Counter[str], monkeypatch
) -> None:
    """The second builder leaves it alone, the device waits for it, and then both find it; a name cannot lead astray."""
    one, other = yard(), yard()
    wanted = candidate(t4(), candidate_id="../../elsewhere")
    submit(wanted, candidate(BROKEN))  # the newer one first
    one.look()
    wait_for(lambda: (one.reap(), not one.sites)[1], 30, "the broken one")
    assert counted == {"built_ahead:failed": 1}
    one.warm()
    assert one._warm[CPU][0].cell.wait_ready(60)
    one.look()
    assert [site.request.request_id for site in one.sites] == [wanted.request_id], "what failed is not tried again"
    other._settled.update(one._settled)
    other.look()
    assert other.sites == []

    monkeypatch.setattr(ahead, "WAIT_S", 0.2)
    assert ahead.begin(cache, wanted, lambda: None, 0.01).state == "", "not for ever"
    monkeypatch.undo()
    start = ahead.begin(cache, wanted, one.reap, 0.01)
    assert start.state == "waited"
    assert not one.sites
    assert not free(stored.entry(cache, wanted.source)), "builders are kept off"
    start.release()
    other.look()
    assert (other.sites, counted["built_ahead:kept"]) == ([], 1)
    assert not (cache.parent / "elsewhere").exists()
    assert [path.name for path in stored.entry(cache, wanted.source).parent.iterdir()] == ["build.tar"]

    cell = Cell.start(Device(f"cpu{CORE}", "cpu", CORE), POLICY, cache)
    try:
        cell.submit(wanted)
        result = wait_for(lambda: cell.poll(1.0), 60, "the evaluation")
    finally:
        cell.kill()
    assert (result.status, result.build_route) == (Status.VALID, "cached")
    assert (ahead.Start("waited", 0.5).counter(result), ahead.Start().counter(result)) == (
        "builds:waited",
        "builds:ready",
    )


def test_a_wait_ends_with_what_its_tick_raises(cache: Path) -> None:
    it = candidate(t4())
    holder = Claim.alone(stored.entry(cache, it.source))
    assert holder is not None

    def closed() -> None:
        raise KeyError("closed")

    with pytest.raises(KeyError):
        ahead.begin(cache, it, closed, 0.01)
    holder.release()
    both = [ahead.begin(cache, it, closed, 0.01), ahead.begin(cache, it, closed, 0.01)]
    assert [one.state for one in both] == ["", ""], "evaluations do not wait for one another"
    for one in both:
        one.release()
    assert free(stored.entry(cache, it.source))


def test_an_entry_is_whole_or_not_there(tmp_path: Path) -> None:
    place = stored.entry(tmp_path, "x = 1")
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            stored.put(place, b"a" * 400_000)
            stored.put(place, b"b" * 400_000)
    try:
        wait_for(place.is_file, 10, "the first")
        for _ in range(50):
            data = place.read_bytes()
            assert data == data[:1] * len(data)
            assert len(data) == 400_000
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    (place.parent / "build.1234").write_bytes(b"half")
    stored.sweep(place)
    assert [path.name for path in place.parent.iterdir()] == ["build.tar"]


@pytest.mark.parametrize(
    ("cores", "cpus", "gpus", "gib", "slots", "used"),
    [
        (2, [0], 0, 23, 1, {1}),
        (8, [0, 1, 2, 3], 0, 64, 4, {4, 5, 6, 7}),
        (16, [], 1, 128, 15, set(range(16))),
        (32, [], 8, 32, 4, set(range(32))),
        (128, [], 8, 560, 16, set(range(128))),
        (4, [], 8, 64, 1, set(range(4))),
    ],
)
def test_how_many_at_once(cores, cpus, gpus, gib, slots, used) -> None:
    plan = Plan.of(range(cores), cpus, gpus, gib * GIB)
    assert (plan.slots, plan.cores) == (slots, used)
    assert plan.memory_bytes >= 2 * GIB
    assert plan.slots * plan.memory_bytes <= max(2 * GIB, 0.3 * gib * GIB)


def test_a_host_whose_every_core_is_a_device_builds_nothing_ahead(redis_url, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SPECGEN_REDIS_URL", redis_url)
    with pytest.raises(SystemExit):
        main([word for core in os.sched_getaffinity(0) for word in ("--device", f"cpu{core}")])
    assert "none is left for a builder" in capsys.readouterr().err


def test_a_signal_never_waits_for_the_lock_of_the_event_that_it_sets() -> None:
    program = """
import os, signal
from workers.ending import until_signal
stop = until_signal()
with stop._cond:  # as within `wait`, which the signal may interrupt anywhere
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(1000))
assert stop.wait(20)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_architectures_as_torch_writes_them() -> None:
    assert [arch_list(one) for one in ("8.9", "9.0", "10.0", "12.0")] == ["8.9", "9.0a", "10.0a", "12.0a"]


def test_a_builder_without_devices_or_in_a_foreign_pool_is_refused(
    redis_url, redis_client, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("SPECGEN_REDIS_URL", redis_url)
    for arguments in ([], ["--gpus", "one"], ["--gpus", "all"]):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "hint:" in capsys.readouterr().err
