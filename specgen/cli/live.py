"""Live progress of one job in the terminal: a status line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specgen.types import Event, EventKind

PLAIN_EVERY_S = 5.0  # between two status lines where the output is not a terminal


@dataclass
class Progress:
    """What the events told so far."""

    console: Console
    iterations: int
    started: float = field(default_factory=time.monotonic)
    iteration: int = 0
    chars: int = 0
    rate: float = 0.0
    triggers: int = 0
    forks: int = 0
    early: int = 0
    best: float | None = None
    pool: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    _last_plain: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(self.status(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def status(self) -> Text:
        """One line: iteration, reasoning rate, triggers, forks, queues, best."""
        pool = self.pool
        queues = f"queues v{pool.get('validate_queue', 0)} p{pool.get('profile_queue', 0)}"
        busy = f"busy {pool.get('busy', 0)}/{pool.get('devices', 0)}"
        best = f"{self.best:.2f}x" if self.best is not None else "-"
        return Text(
            f"[{time.monotonic() - self.started:6.1f} s] iteration {self.iteration}/{self.iterations}"
            f"  reasoning {self.chars:,} chars ({self.rate:,.0f}/s)  triggers {self.triggers}  forks {self.forks}"
            f"  {queues}  {busy}  early {self.early}  best {best}"
        )

    def add(self, event: Event | None) -> None:
        """Take in one event (None: time passed) and show what changed."""
        if event is not None:
            line = getattr(self, f"_on_{event.kind.value}")(event)
            if line:
                self.console.print(f"[{time.monotonic() - self.started:6.1f} s] {line}", markup=False, highlight=False)
        if self._live is not None:
            self._live.update(self.status())
        elif time.monotonic() - self._last_plain > PLAIN_EVERY_S and self.iteration:
            self._last_plain = time.monotonic()
            self.console.print(self.status())

    # one method an event kind; each returns the line to keep on the screen, or nothing

    def _on_iteration(self, event: Event) -> str:
        self.iteration, self.chars, self.rate = event.iteration + 1, 0, 0.0
        return f"iteration {self.iteration}: {event.data.get('step')}"

    def _on_progress(self, event: Event) -> str:
        self.pool = event.data
        self.chars = int(event.data.get("reasoning_chars") or 0)
        self.rate = self.chars / max(0.1, float(event.data.get("seconds") or 0.0))
        return ""

    def _on_trigger(self, event: Event) -> str:
        self.triggers += 1
        launched = int(event.data.get("launched") or 0)
        self.forks += launched
        if not launched:
            return ""
        words = " ".join(str(event.data.get("text") or "").split())[:60]
        return f"  trigger {event.data['kind']} at {event.data['position']} chars: {launched} fork(s)  {words}"

    def _on_fork(self, event: Event) -> str:
        return "" if event.data.get("candidate") else "  a fork gave no kernel"

    def _on_result(self, event: Event) -> str:
        speedup = event.data.get("speedup")
        if event.data["phase"] == "profile" and speedup is not None:
            self.best = max(self.best or 0.0, float(speedup))
        told = str(event.data.get("error") or "").split("\n")[0][:80]
        if speedup is not None:
            told = f"{float(speedup):.2f}x"
        return f"  {event.data['phase']} {event.data['candidate']}: {event.data['status']} {told}"

    def _on_boundary(self, event: Event) -> str:
        reason = str(event.data["reason"])
        self.early += reason == "early_termination"
        speedup = event.data.get("speedup")
        chosen = f"k* at {float(speedup):.2f}x" if speedup is not None else "nothing valid"
        return f"  boundary: {reason}, {chosen}"

    def _on_waiting(self, event: Event) -> str:
        return f"  waiting: {event.data['reason']}"

    def _on_job(self, event: Event) -> str:
        return f"job {event.data['state']}: {event.data.get('reason') or ''}"


assert all(hasattr(Progress, f"_on_{kind.value}") for kind in EventKind)
