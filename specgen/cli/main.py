"""`specgen …`: exit codes. Errors of the tree in specgen.errors become one line, a hint, and code 2 or 3."""

from __future__ import annotations

import io
import signal
import sys

import typer
from rich.console import Console

from specgen.errors import InfrastructureError, SpecGenError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
WIDTH = 120  # of tables where the output is not a terminal


def terminal() -> Console:
    """Standard output: a terminal's own width, a fixed one elsewhere; lines are never broken."""
    return Console(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)


err = Console(stderr=True, highlight=False, soft_wrap=True)


def report(error: SpecGenError) -> int:
    """Print the error's line and hint; returns the exit code (2: the user's input, 3: infrastructure)."""
    err.print(f"specgen: {' '.join(error.message.split())}", markup=False)
    if error.hint:
        err.print(f"  hint: {error.hint}", markup=False)
    return 3 if isinstance(error, InfrastructureError) else 2


def main() -> None:
    """Entry point of the console script."""
    from specgen.cli import (  # noqa: F401  each adds its commands to `app`
        evaluate,
        history,
        model,
        operate,
        pool,
        problems,
        run,
    )

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # progress through a pipe, line by line
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: everything stopped, resumable
    try:
        sys.exit(app(standalone_mode=False) or 0)  # a command's typer.Exit comes back as its code
    except SpecGenError as exc:
        sys.exit(report(exc))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception as exc:
        usage = getattr(exc, "format_message", None)  # click's UsageError and its kin
        if usage is None:
            raise
        err.print(f"specgen: {usage()}", markup=False)
        err.print("  hint: specgen --help", markup=False)
        sys.exit(2)
