"""What evaluates: the class of cells that a device worker and its probe use."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Protocol, cast

from specgen.evaluation.cell import Device
from specgen.settings import EvaluationPolicy
from specgen.types import EvaluationRequest, EvaluationResult

DEFAULT_CELL = "specgen.evaluation.cell:Cell"


class Cell(Protocol):
    """What is used of `specgen.evaluation.cell.Cell`."""

    pgid: int

    @classmethod
    def start(cls, device: Device, policy: EvaluationPolicy, cache_root: Path) -> Cell:
        """Start, without waiting."""

    def submit(self, request: EvaluationRequest) -> None:
        """Give it its one request."""

    def poll(self, timeout_s: float) -> EvaluationResult | None:
        """The result, once there is one."""

    def kill(self, grace_s: float = 2.0) -> None:
        """End its group."""


def cell_class() -> type[Cell]:
    """``SPECGEN_CELL`` (``module:Class``), or the real one."""
    module, _, name = os.environ.get("SPECGEN_CELL", DEFAULT_CELL).partition(":")
    return cast("type[Cell]", getattr(importlib.import_module(module), name))
