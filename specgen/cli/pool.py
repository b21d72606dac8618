"""Commands that look at the pool: pool, devices."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live

from specgen.cli.main import app, terminal
from specgen.cli.run import configure
from specgen.errors import PoolUnavailable
from specgen.report.pool import as_json, device_table, screen
from specgen.scheduler.pool import PoolState, PoolView

DECISIONS = 5

console = terminal()
AsJson = Annotated[bool, typer.Option("--json", help="one line of JSON, for machines")]
Home = Annotated[str, typer.Option(help="folder of the embedded system's state")]


@app.command()
def pool(
    machine: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="again and again, until Ctrl-C")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="seconds between two looks")] = 2.0,
    home: Home = "",
) -> None:
    """Queues, devices, claims, the scheduler and its last decisions."""
    settings = configure(home, "")
    with PoolState(settings.redis, settings.prefix) as state:
        if watch:
            _watch(state, every, machine)
        else:
            view, decisions = state.view(), state.decisions(DECISIONS)
            _show(as_json(view, decisions) if machine else screen(view, decisions))
            _refuse_empty(view)


@app.command()
def devices(machine: AsJson = False, home: Home = "") -> None:
    """The devices of the pool alone."""
    settings = configure(home, "")
    with PoolState(settings.redis, settings.prefix) as state:
        view = state.view()
        _show(as_json(view, [])["devices"] if machine else device_table(view))
        _refuse_empty(view)


def _refuse_empty(view: PoolView) -> None:
    if not view.devices:
        raise PoolUnavailable(
            "no device is in the pool", "start one: specgen worker device --device cpu0, or specgen up"
        )


def _show(what: Any) -> None:
    if isinstance(what, dict | list):
        typer.echo(json.dumps(what))
    else:
        console.print(what)


def _watch(state: PoolState, every: float, machine: bool) -> None:
    """A screen that renews itself on a terminal, one look below the other elsewhere. An empty pool is shown as such,
    a Redis that is away is waited for."""

    def look() -> RenderableType | dict[str, Any]:
        try:
            view, decisions = state.view(), state.decisions(DECISIONS)
        except PoolUnavailable as exc:
            return {"error": exc.message} if machine else f"{exc.message}; trying again"
        return as_json(view, decisions) if machine else screen(view, decisions)

    if machine or not console.is_terminal:
        while True:
            _show(look())
            time.sleep(every)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(look(), refresh=True)  # type: ignore[arg-type]  # never JSON here
            time.sleep(every)
