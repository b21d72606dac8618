# ruff: noqa: F401, F811 (fixtures of other folders)
"""Flower as an operator sees it: in a real browser, over real device workers."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from specgen.scheduler.pool import RedisPool
from tests.conftest import lacking
from tests.scheduler.conftest import celery_app, send
from tests.scheduler.support import request, wait_for
from tests.test_metrics import samples, scrape
from tests.workers.conftest import device, start

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WORKER = f"device-cpu0@{socket.gethostname()}"
SOURCE = "void marker_of_a_source();"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url: str, auth: str = "") -> int:
    """The HTTP status, 0 where nobody answers."""
    headers = {"Authorization": f"Basic {b64encode(auth.encode()).decode()}"} if auth else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as response:
            return response.status
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code
    except OSError:
        return 0


class System:
    """A pool of one device, and requests."""

    def __init__(self, redis_url, send) -> None:
        self._url, self._send = redis_url, send

    def _call(self, name: str, *args: object) -> None:
        async def call() -> None:
            pool = RedisPool(self._url, self._send)
            await getattr(pool, name)(*args)
            await pool.aclose()

        with ThreadPoolExecutor(1) as thread:  # the browser's driver runs an event loop in this one
            thread.submit(asyncio.run, call()).result()

    def submit(self, name: str, scope: str, *, sleep_s: float = 0.0, phase: str = "validate") -> str:
        one = request(name, scope, phase=phase, source=json.dumps({"sleep_s": sleep_s, "text": SOURCE}))
        self._call("submit", one)
        return one.request_id

    def close(self, scope: str) -> None:
        self._call("close", scope)


@pytest.fixture
def system(redis_url, send) -> System:
    return System(redis_url, send)


@pytest.fixture
def dashboard(start) -> str:
    """Its address; name and password are ops and word."""
    port = free_port()
    process = start("specgen", "dashboard", "--port", str(port), FLOWER_BASIC_AUTH="ops:word")
    wait_for(lambda: get(f"http://127.0.0.1:{port}/healthcheck") == 200, 20, f"Flower, see {process.log}")
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def browser(tmp_path) -> Iterator[BrowserContext]:
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    if binary is None:
        lacking("a browser", f"none of {', '.join(BROWSERS)} on PATH")
    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=binary,
            args=FLAGS,
            http_credentials={"username": "ops", "password": "word"},
        )
        yield context
        context.close()


def rows(page: Page, table: str) -> dict[str, list[str]]:
    """The text of each cell, by that of the first."""
    found = [row.locator("td").all_inner_texts() for row in page.locator(f"{table} tbody tr").all()]
    return {cells[0]: cells[1:] for cells in found}


def test_what_an_operator_sees(browser, system, dashboard, device, redis_client) -> None:
    device("cpu0")
    page = browser.new_page()
    broken: list[str] = []
    page.on("response", lambda answer: broken.append(answer.url) if answer.status >= 400 else None)
    page.on("pageerror", lambda error: broken.append(str(error)))

    done = system.submit("done", "job7/1", phase="profile")
    running = system.submit("running", "job8/1", sleep_s=600)
    page.goto(f"{dashboard}/workers")
    expect(page.locator("#workers-table tbody tr")).to_contain_text([WORKER])
    expect(page.locator("#workers-active")).to_have_text("1", timeout=10_000)
    expect(page.locator("#workers-succeeded")).to_have_text("1")

    for name, phase in (("a", "validate"), ("b", "validate"), ("c", "profile")):
        system.submit(name, "job9/1", sleep_s=600, phase=phase)
    page.goto(f"{dashboard}/broker")  # columns: messages, unacknowledged, ready, consumers
    assert {queue: cells[:4] for queue, cells in rows(page, "#queue-table").items()} == {
        "iterations": ["0", "0", "0", "0"],
        "profile": ["1", "0", "1", "1"],
        "validate": ["3", "1", "2", "1"],
    }

    page.goto(f"{dashboard}/task/{running}")
    expect(page.locator(".badge")).to_have_text("STARTED")
    expect(page.locator("#task-page")).to_contain_text("workers.validation.validate")
    expect(page.locator("#task-page")).to_contain_text("job8/1 fork cpu running")
    assert SOURCE not in page.content()
    expect(page.get_by_role("button", name="Terminate")).to_have_count(0)  # it would orphan the evaluation

    page.goto(f"{dashboard}/worker/{WORKER}#tab-queues")
    expect(page.locator("#worker-queues tr td:first-child")).to_have_text(["profile", "validate"])
    expect(page.locator("#tab-tasks")).to_contain_text(running)
    assert SOURCE not in page.content()

    system.close("job8/1")
    system.close("job9/1")
    page.goto(f"{dashboard}/tasks")
    table = page.locator("#tasks-table tbody")
    expect(table).to_contain_text("job8")
    page.get_by_role("button", name="Succeeded").click()
    expect(table.locator("tr")).to_have_count(1)
    expect(table).to_contain_text(done)
    expect(table).to_contain_text("workers.profiling.profile")
    page.get_by_role("searchbox").fill("state:REVOKED kwargs:job8")
    expect(table.locator("tr")).to_have_count(1, timeout=10_000)
    expect(table).to_contain_text(running)
    expect(table).to_contain_text("REVOKED")
    assert SOURCE not in page.content()
    assert broken == []

    told = samples(scrape(redis_client))  # the same in figures
    assert told["specgen_evaluations_aborted_total", ()] >= 1
    assert told["specgen_requests_served_total", ("profile",)] >= 1
    assert told["specgen_queue_waiting", ("cpu", "validate")] == 0


def test_nobody_enters_without_the_password(dashboard) -> None:
    pages = [f"{dashboard}/{page}" for page in ("", "workers", "tasks", "broker", "api/workers", "api/tasks")]
    assert {get(page) for page in pages} == {401}
    assert {get(page, "ops:other") for page in pages} == {401}
    assert {get(page, "ops:word") for page in pages} == {200}
    port = dashboard.rpartition(":")[2]
    sockets = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    bound = {local for local, _, state in sockets if state == "0A" and local.endswith(f":{int(port):04X}")}
    assert bound == {f"0100007F:{int(port):04X}"}  # listens at 127.0.0.1 and nowhere else
