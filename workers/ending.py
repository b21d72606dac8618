"""How a process of the pool ends: told to, or because it cannot go on. Codes: 2, it was refused; 75, another start may
do better."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import structlog

from specgen.errors import SettingsError, SpecGenError

REFUSED, TRY_AGAIN = 2, 75  # 75 is EX_TEMPFAIL of sysexits.h

log = structlog.get_logger(__name__)


def until_signal() -> threading.Event:
    """Set by SIGTERM or SIGINT, after which this process should end. For a main thread that waits for it.

    Set by a thread: a handler runs in the main thread, at any moment, also while that holds the event's own lock, for
    which the handler would then wait for ever.
    """
    stop = threading.Event()
    told, tell = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def listen() -> None:
        os.read(told, 1)
        stop.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    return stop


def refuse(error: SpecGenError) -> NoReturn:
    """The error's line and its hint on standard error, and code 2. For a main thread before its work begins."""
    sys.stderr.write(f"specgen: {' '.join(error.message.split())}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
    sys.exit(REFUSED)


def give_up(why: str, tidy: Callable[[], object], code: int = TRY_AGAIN) -> NoReturn:
    """From any thread, whatever the others hang in: one line, ``tidy``, and this process is gone. Its pool process and
    what that runs die with it."""
    log.error("worker_gives_up", why=why, code=code)
    try:
        tidy()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def seconds(name: str, default: float) -> float:
    """A positive number of seconds from the environment. Raises SettingsError."""
    text = os.environ.get(name, "")
    try:
        value = float(text or default)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise SettingsError(f"{name}: {text!r} is no positive number of seconds", f"the default is {default:g}")
    return value
