"""Whose fault it is when code that a user brought (a search algorithm, a criterion) raises: told with its traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from specgen.errors import SpecGenError, UserError

LONGEST = 4_000  # characters of a traceback


@contextmanager
def blame(what: str) -> Iterator[None]:
    """An exception within becomes a UserError: one line that names ``what``, then the traceback. It fails the job, and
    is its reason."""
    try:
        yield
    except SpecGenError:
        raise
    except Exception as exc:
        told = "".join(traceback.format_exception(exc)[1:])[-LONGEST:].rstrip()
        raise UserError(f"{what} raised {type(exc).__name__}: {exc}\n{told}") from exc
