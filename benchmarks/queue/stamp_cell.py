"""The sleeping cell, whose results also say when Celery began the task: what the stock worker stamps, too."""

# mypy: allow-untyped-calls

from __future__ import annotations

import time
from typing import Any

from celery.signals import task_prerun

from benchmarks.sleep_cell import SleepCell
from specgen.types import EvaluationResult

_begun = 0.0


def _stamp(**_: Any) -> None:
    global _begun
    _begun = time.time()


task_prerun.connect(_stamp, weak=False)


class StampCell(SleepCell):
    """``environment["began_at"]`` is the start of the task, ``started_at`` that of its evaluation (unix s)."""

    def poll(self, timeout_s: float) -> EvaluationResult | None:
        """With the stamp."""
        if (result := super().poll(timeout_s)) is None:
            return None
        return result.model_copy(update={"environment": {**result.environment, "began_at": repr(_begun)}})
