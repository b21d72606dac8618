"""One job from submission to best kernel through every real part: Valkey, Celery workers, scheduler, sandboxed
evaluation, SQLite, and the project's own model server over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specgen.store import Store

SPEED = "400"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def command(home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPECGEN_", "OPENAI_"))}
    if cache := os.environ.get("SPECGEN_TEST_CACHE"):  # the build support library, half a minute, once
        clean["SPECGEN_CACHE"] = cache
    return [sys.executable, "-m", "specgen", *arguments], {**clean, "SPECGEN_HOME": str(home)}


def ours(home: Path) -> list[str]:
    """Processes of this home that are still alive."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SPECGEN_HOME") == str(home) or str(home) in " ".join(process.cmdline()):
                found.append(" ".join(process.cmdline())[:120])
    return found


def query(home: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(home / "specgen.db")) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.timeout(300)
def test_a_kernel_gets_faster_and_everything_stops(home: Path) -> None:
    argv, env = command(home, "demo", "T4", "--iterations", "4", "--speed", SPEED, "--seed", "3")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kernel = Path(done.stdout.strip().splitlines()[-1])
    assert "class ModelNew" in kernel.read_text()
    assert query(home, "SELECT state FROM jobs") == [("done",)]
    assert query(home, "SELECT count(*) FROM iterations WHERE closed_at IS NOT NULL") == [(4,)]
    ((forks,),) = query(home, "SELECT count(*) FROM generations WHERE kind = 'fork'")
    assert isinstance(forks, int)
    assert forks > 0
    assert query(home, "SELECT count(*) FROM outcomes WHERE status = 'valid' AND speedup > 0")[0][0]
    assert not query(home, "SELECT candidate_id FROM outcomes GROUP BY job_id, candidate_id HAVING count(*) > 1")
    assert query(home, "SELECT count(*) FROM scheduler_decisions")[0][0]
    assert not ours(home)


@pytest.mark.timeout(300)
def test_a_model_cut_at_the_token_limit_ends_with_that_reason(home: Path) -> None:
    argv, env = command(
        home, "run", "T4", "--synthetic", SPEED, "--iterations", "2", "--max-tokens", "200", "--seed", "6"
    )
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the model never produced code" in done.stdout
    ((reason,),) = query(home, "SELECT reason FROM jobs ORDER BY created_at DESC LIMIT 1")
    assert "never produced code" in str(reason)
    assert query(home, "SELECT DISTINCT finish_reason FROM generations WHERE seed IS NOT NULL AND kind = 'main' "
                 "AND job_id = (SELECT id FROM jobs ORDER BY created_at DESC LIMIT 1)") == [("length",)]  # fmt: skip


@pytest.mark.timeout(300)
def test_ctrl_c_stops_everything_and_resume_goes_on(home: Path) -> None:
    argv, env = command(home, "demo", "T4", "--iterations", "3", "--speed", SPEED, "--seed", "4")
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "iteration 2:" in line:
                break
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
        assert running.wait(60) == 130, rest
    assert "specgen resume" in rest
    assert not ours(home)
    job = rest.split("specgen resume ")[1].split()[0]
    store = Store.open(f"sqlite:///{home / 'specgen.db'}")
    assert store.job(job).state == "stopped"
    before = {e.candidate.candidate_id: e.result.finished_at for e in store.evaluated(job)}
    argv, env = command(home, "resume", job, "--synthetic", SPEED)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert store.job(job).state == "done"
    assert sum(record.closed for record in store.iterations(job)) == 3
    after = {e.candidate.candidate_id: e.result.finished_at for e in store.evaluated(job)}
    assert before.items() <= after.items()  # what was measured is not measured again
    store.close()
    assert not ours(home)


@pytest.mark.timeout(300)
def test_a_killed_command_leaves_nothing_behind_and_its_job_can_be_resumed(home: Path) -> None:
    argv, env = command(home, "demo", "T4", "--iterations", "2", "--speed", SPEED, "--seed", "5")
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        job = ""
        for line in running.stdout:
            if line.startswith("job "):
                job = line.split()[1].rstrip(":")
            if "iteration 1:" in line:
                break
        running.kill()
    deadline = time.monotonic() + 30
    while ours(home) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not ours(home)
    argv, env = command(home, "resume", job, "--synthetic", SPEED)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(200)
def test_a_worker_that_dies_is_told_instead_of_waited_for(home: Path) -> None:
    argv, env = command(home, "demo", "T4", "--iterations", "9", "--speed", "20", "--seed", "6")
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "iteration 1:" in line:
                break
        for process in psutil.Process(running.pid).children():
            if "workers.scheduler" in process.cmdline():
                process.kill()
        rest = running.stdout.read()
        assert running.wait(60) == 3, rest
    assert "scheduler ended with -9" in rest
    assert not ours(home)


@pytest.mark.timeout(300)
def test_a_job_is_paused_resumed_and_cancelled_from_another_terminal(home: Path) -> None:
    def told(*arguments: str) -> str:
        argv, env = command(home, *arguments)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def follow(*arguments: str, until: str, then: str) -> tuple[str, str]:
        """Run a command; once it says ``until``, do ``then`` to its job. Returns job and output."""
        argv, env = command(home, *arguments)
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            assert running.stdout is not None
            job, seen = "", ""
            for line in running.stdout:
                seen += line
                if line.startswith("job "):
                    job = line.split()[1].rstrip(":")
                if until in line:
                    assert f"{job} will " in told(then, job)
                    break
            seen += running.stdout.read()
            assert running.wait(120) == 3, seen
        return job, seen

    run = ("demo", "T4", "--iterations", "9", "--speed", SPEED, "--seed", "7")
    job, seen = follow(*run, until="iteration 1:", then="pause")
    assert f"paused by the user; go on with: specgen resume {job}" in seen
    assert query(home, f"SELECT count(*), count(closed_at) FROM iterations WHERE job_id = '{job}'") == [(1, 1)]
    assert "paused" in told("jobs")
    told("priority", job, "-3")
    ((priority,),) = query(home, f"SELECT priority FROM jobs WHERE id = '{job}'")
    assert priority == -3

    again, seen = follow("resume", job, "--synthetic", SPEED, until="iteration 2:", then="cancel")
    assert again == job
    assert "cancelled by the user" in seen
    assert query(home, f"SELECT state, wish FROM jobs WHERE id = '{job}'") == [("cancelled", "")]
    left = f"SELECT count(*) FROM requests WHERE job_id = '{job}' AND status = 'queued'"
    assert query(home, left) == [(0,)]
    assert query(home, f"SELECT count(*) FROM generations WHERE job_id = '{job}' AND ended_at IS NULL") == [(0,)]
    assert not ours(home)
