"""`specgen up` for weeks: what dies comes back, what does not come back is named, logs and disk stay bounded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from specgen.errors import EnvironmentLacking, InfrastructureError, PoolUnavailable, SettingsError
from specgen.evaluation.sandbox import bwrap
from specgen.runtime.logs import Pump, RotatingFile, last_line
from specgen.runtime.processes import Child
from specgen.runtime.stack import Stack, chosen_gpus, local_gpus
from specgen.runtime.supervision import RestartPolicy, Supervisor
from specgen.runtime.valkey import Valkey
from specgen.settings import Settings
from specgen.store import Store
from specgen.types import JobState
from tests.acceptance.test_end_to_end import command, ours
from tests.conftest import lacking
from tests.scheduler.support import wait_for


class Up:
    """A running `specgen up`; its lines are read as they come."""

    def __init__(self, home: Path, *arguments: str, **env: str) -> None:
        argv, clean = command(home, "up", *arguments)
        self.process = subprocess.Popen(
            argv, env=clean | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += iter(self.process.stdout.readline, "")

    def says(self, words: str, timeout_s: float = 60.0) -> str:
        def found() -> str | None:
            line = next((line for line in self.lines if words in line), None)
            assert line or self.process.poll() is None, self.lines
            return line

        return str(wait_for(found, timeout_s, f"{words!r} in {self.lines}"))

    def child(self, words: str) -> psutil.Process:
        def found() -> psutil.Process | None:
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self.process.pid).children():
                    if words in " ".join(process.cmdline()):
                        return process
            return None

        return wait_for(found, 30, f"child {words}")

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(30)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def up(tmp_path: Path) -> Iterator[type[Up]]:
    """The class; what a test started is ended."""
    started: list[Up] = []

    class Known(Up):
        def __init__(self, *arguments: str, **env: str) -> None:
            super().__init__(tmp_path, *arguments, **env)
            started.append(self)

    yield Known
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.end()


def submit(home: Path) -> str:
    """A job of one iteration, by a client process of that home; its id."""
    spec = 'JobSpec(problem=problem("T4"), model="specgen-synthetic", iterations=1)'
    _, env = command(home)
    program = f"from specgen import Client, JobSpec, problem; print(Client().submit({spec}))"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------------------------------------- end to end


@pytest.mark.timeout(180)
def test_killed_processes_come_back_and_the_job_finishes(up, tmp_path: Path) -> None:
    system = up("--synthetic", "400", "--cpu-devices", "1", SPECGEN_VISIBILITY_TIMEOUT_S="4")
    system.says("up; SPECGEN_REDIS_URL=")
    job = submit(tmp_path)
    wait_for(lambda: "validate" in (tmp_path / "logs/device-cpu0.log").read_text(), 30, "a validation")
    with contextlib.closing(Store.open(f"sqlite:///{tmp_path / 'specgen.db'}")) as store:
        before = {}
        for name in ("workers.device", "workers.builder", "workers.app", "valkey-server", "specgen.llm.server"):
            process = system.child(name)
            before[name] = process.pid
            process.kill()
        for name, pid in before.items():
            wait_for(lambda name=name, pid=pid: system.child(name).pid != pid, 30, f"{name} again")
        wait_for(lambda: store.job(job).state.terminal, 120, f"the job, see {tmp_path}")
        assert store.job(job).state is JobState.DONE
    for name in ("device-cpu0", "builder", "iterations", "valkey", "model-server"):
        assert "ended with -9" in system.says(f"{name} ended")
        assert sum(f"{name} ended" in line for line in system.lines) == 1
    assert system.end() == 0
    assert system.lines[-1].strip() == "stopped"
    assert not ours(tmp_path)


def test_a_redis_of_the_settings_is_waited_for_and_a_sigkill_leaves_nothing(up, tmp_path: Path) -> None:
    server = Valkey(tmp_path / "other.sock", tmp_path / "other")
    system = up("--synthetic", "400", "--cpu-devices", "0", SPECGEN_REDIS_URL=server.url)
    assert "cannot be reached" in system.says("waiting for Redis")
    with server:
        assert server.url in system.says("up; SPECGEN_REDIS_URL=")
        assert sum("waiting for" in line for line in system.lines) == 1
        system.child("workers.scheduler")
        assert not [p for p in psutil.Process(system.process.pid).children() if "valkey" in " ".join(p.cmdline())]
        assert not (tmp_path / "valkey").exists()
        system.process.kill()
        wait_for(lambda: len(ours(tmp_path)) == 1, 20, "nothing but the server")


def test_no_device_at_all_is_refused(tmp_path: Path) -> None:
    argv, env = command(tmp_path, "up", "--synthetic", "400", "--cpu-devices", "0")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no device is chosen" in done.stderr
    assert "hint:" in done.stderr
    assert not (tmp_path / "specgen.db").exists()


@pytest.mark.parametrize("choice", ["first", "0,", "-1", "0;1"])
def test_gpus_by_a_wrong_name(choice: str) -> None:
    with pytest.raises(SettingsError, match="no GPUs are called"):
        chosen_gpus(choice)


def test_gpus_that_are_not_there() -> None:
    with pytest.raises(EnvironmentLacking, match="no GPU 97"):
        chosen_gpus("97")
    if not local_gpus():
        with pytest.raises(EnvironmentLacking, match="no GPU here"):
            chosen_gpus("all")


# ---------------------------------------------------------------------------------------------- restarts


class Fragile:
    """A process whose deaths the test decides on."""

    name = "fragile"
    log = Path("/nowhere/fragile.log")

    def __init__(self) -> None:
        self.code: int | None = None
        self.starts: list[float] = []
        self.now = 0.0
        self.fails = False

    def poll(self) -> int | None:
        return self.code

    def start(self) -> None:
        self.starts.append(self.now)
        if self.fails:
            raise PoolUnavailable("no answer", "look")
        self.code = None


def run_until(supervisor: Supervisor, process: Fragile, end: float, life_s: float) -> None:
    """A tenth of a second at a time; every life is ``life_s`` long."""
    born = process.now
    while process.now < end:
        if process.code is None and process.now - born >= life_s:
            process.code = 1
        starts = len(process.starts)
        supervisor.step([process], process.now)
        if len(process.starts) > starts:
            born = process.now
        process.now += 0.1


def test_waits_double_up_to_a_minute_and_ten_short_lives_end_it() -> None:
    process, told = Fragile(), list[str]()
    with pytest.raises(InfrastructureError, match="fragile died 10 times in a row") as caught:
        run_until(Supervisor(RestartPolicy(), told.append), process, 1e4, 0.0)
    assert caught.value.hint == "its log is /nowhere/fragile.log"
    gaps = [round(b - a) for a, b in zip([0.0, *process.starts], process.starts, strict=False)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [line.rpartition(" again in ")[2] for line in told] == [f"{gap} s" for gap in gaps]


def test_a_long_life_forgets_earlier_deaths() -> None:
    process, told = Fragile(), list[str]()
    run_until(Supervisor(RestartPolicy(), told.append), process, 2000, 61.0)
    assert len(told) > 15
    assert {line.rpartition(" again in ")[2] for line in told} == {"1 s"}


def test_what_does_not_start_counts_as_a_death() -> None:
    process = Fragile()
    process.code, process.fails = 1, True
    with pytest.raises(InfrastructureError, match="the last time it did not start: no answer") as caught:
        run_until(Supervisor(RestartPolicy(), lambda _: None), process, 1e4, 0.0)
    assert caught.value.hint == "look"


def test_a_child_that_never_stays_up_ends_it_with_its_log(tmp_path: Path) -> None:
    told = list[str]()
    stack = Stack(Settings(home=tmp_path), tell=told.append, restarts=RestartPolicy(first_s=0.01, deaths=3))
    program = "import sys; print('no such device'); sys.exit(7)"
    stack.children.append(Child("broken", [sys.executable, "-c", program], stack.logs, os.environ).start())
    with pytest.raises(InfrastructureError, match=r"broken died 3 times.*ended with 7: no such device") as caught:
        stack.keep()
    assert caught.value.hint == f"its log is {stack.logs / 'broken.log'}"
    assert len(told) == 2
    stack.stop()


def test_what_a_dead_child_left_in_its_group_is_killed(tmp_path: Path) -> None:
    program = "import os, time\nif os.fork(): os._exit(3)\nprint(os.getpid(), flush=True)\ntime.sleep(300)"
    child = Child("parent", [sys.executable, "-c", program], tmp_path, os.environ).start()
    left = psutil.Process(int(wait_for(lambda: child.log.exists() and child.log.read_text().strip(), 10)))
    wait_for(lambda: child.poll() == 3, 10)
    with contextlib.suppress(psutil.NoSuchProcess):
        assert left.status() == psutil.STATUS_ZOMBIE or not left.is_running() or left.wait(5) is None


# ---------------------------------------------------------------------------------------------- logs


def test_a_log_stays_below_its_bound(tmp_path: Path) -> None:
    log = RotatingFile(tmp_path / "a.log", limit=1000, kept=2)
    for number in range(500):
        log.write(f"line {number}\n".encode())
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    text = "".join((tmp_path / name).read_text() for name in ("a.log.2", "a.log.1", "a.log"))
    numbers = [int(line.split()[1]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 500))


def test_an_earlier_run_s_log_counts(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 999)
    log = RotatingFile(tmp_path / "a.log", limit=1000)
    log.write(b"new\n")
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"new\n"
    assert (tmp_path / "a.log.1").stat().st_size == 999


def test_a_full_disk_does_not_reach_the_child(tmp_path: Path) -> None:
    (tmp_path / "noisy.log").symlink_to("/dev/full")
    program = "for n in range(20000): print('a line of some length', n)\nprint('end', flush=True)"
    child = Child("noisy", [sys.executable, "-c", program], tmp_path, os.environ).start()
    assert wait_for(lambda: child.poll() is not None, 20) is True
    assert child.poll() == 0
    assert child.pump is not None
    assert child.pump.file.trouble == "No space left on device"
    assert child.pump.file.dropped_bytes > 400_000
    stack = Stack(Settings(home=tmp_path), children=[child])
    assert stack._disk_troubles() == {"logs cannot be written (No space left on device): lines are dropped"}


def test_the_last_line_of_a_missing_and_of_a_long_log(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none.log") == "(no output)"
    (tmp_path / "long.log").write_text("first\n" * 10_000 + "last " + "x" * 1000 + "\n\n")
    assert last_line(tmp_path / "long.log") == "last " + "x" * 295


def test_a_pump_without_a_child_holds_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Child("absent", ["/no/such/program"], tmp_path, {}).start()
    Pump(tmp_path / "b.log").abandon()
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------------------------------------- the append-only file


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A directory whose server was killed, and its files of commands."""
    with Valkey(tmp_path / "v.sock", tmp_path / "v") as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        for number in range(1000):
            client.set(f"key{number}", "x" * 100)
        client.execute_command("WAITAOF", 1, 0, 5000)
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    return tmp_path / "v", sorted((tmp_path / "v" / "appendonlydir").glob("*.incr.aof"))


def test_a_killed_server_has_its_data_again(filled, tmp_path: Path) -> None:
    with Valkey(tmp_path / "v.sock", filled[0]) as server, redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 1000


def test_a_file_cut_by_a_power_loss_loads_without_its_last_command(filled, tmp_path: Path) -> None:
    directory, (log,) = filled
    os.truncate(log, log.stat().st_size - 40)
    with Valkey(tmp_path / "v.sock", directory) as server, redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 999
        assert client.set("again", "1")


def test_a_file_damaged_in_the_middle_is_told_and_left_alone(filled, tmp_path: Path) -> None:
    directory, (log,) = filled
    data = bytearray(log.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = b"\0" * 200
    log.write_bytes(data)
    with pytest.raises(PoolUnavailable, match="append-only file is damaged") as caught:
        Valkey(tmp_path / "v.sock", directory).start()
    assert str(directory / "appendonlydir") in caught.value.hint
    assert "valkey-check-aof" in caught.value.hint
    assert log.read_bytes() == bytes(data)
    (directory / "appendonlydir").rename(directory / "away")  # what the hint says
    with Valkey(tmp_path / "v.sock", directory) as server, redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0


FULL_DISK = textwrap.dedent("""
    import pathlib, sys, time
    import redis
    from specgen.runtime.stack import Stack
    from specgen.runtime.valkey import Valkey
    from specgen.settings import Settings
    folder = pathlib.Path(sys.argv[1])
    (folder / "filler").write_bytes(b"x" * (4 << 20))
    server = Valkey(folder / "v.sock", folder / "v").start()
    stack = Stack(Settings(home=folder), valkey=server)
    client = redis.Redis.from_url(server.url)
    refused = ""
    for number in range(400):
        try:
            client.set(f"key{number}", "x" * 65536)
        except redis.ResponseError as exc:
            refused = str(exc)
            break
        time.sleep(0.005)
    assert refused.startswith("MISCONF"), refused
    assert server.poll() is None and client.get("key0")
    (trouble,) = stack._disk_troubles()
    assert "Valkey refuses writes" in trouble and "has space" in trouble, trouble
    (folder / "filler").unlink()
    deadline = time.monotonic() + 10
    while stack._disk_troubles():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    client.set("after", "1")
    server.stop()
    print("held")
""")


def test_a_full_disk_refuses_writes_until_there_is_space(tmp_path: Path) -> None:
    size = ["--size", str(8 << 20), "--tmpfs", str(tmp_path)]
    argv = [bwrap(), "--dev-bind", "/", "/", *size, sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[1])
    if done.stderr.startswith("bwrap:"):
        lacking("a small file system", done.stderr)
    assert done.stdout.strip() == "held", done.stderr
