"""How every benchmark ends: one JSON object a figure, on a line of its own."""

from __future__ import annotations

import json
import os
import platform
from typing import Any


def figure(name: str, value: float, unit: str, bar: str, holds: bool | None, paper: str = "") -> dict[str, Any]:
    """Print and return one figure; ``holds`` is None where a number is shown without a bar. ``paper``: its number."""
    row = {"name": name, "value": round(value, 4), "unit": unit, "bar": bar, "holds": holds}
    if paper:
        row["paper"] = paper
    print(json.dumps(row), flush=True)
    return row


def machine() -> str:
    """What it ran on, in one line."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
