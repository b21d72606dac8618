"""The validation task: build, run, compare with the reference (§6.2). See `workers.serving`."""

# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any

from specgen.types import Json
from workers.app import app
from workers.serving import serve


@app.task(bind=True, name="workers.validation.validate", acks_on_timeout=False)
def validate(self: Any, request: dict[str, Json]) -> dict[str, Json]:
    """``request`` is an EvaluationRequest as JSON."""
    return serve(self, request)
