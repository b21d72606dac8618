"""A Celery application and a pool on the session's Valkey."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from celery import Celery

from specgen.scheduler.pool import Send
from specgen.settings import get_settings


@pytest.fixture
def celery_app(redis_url, monkeypatch) -> Iterator[Celery]:
    """Configured as the workers are."""
    monkeypatch.setenv("SPECGEN_REDIS_URL", redis_url)
    get_settings.cache_clear()
    app = Celery("test", set_as_current=False)
    app.config_from_object(importlib.reload(importlib.import_module("celeryconfig")))
    yield app
    app.close()
    get_settings.cache_clear()


@pytest.fixture
def send(celery_app) -> Send:
    from workers.app import sender

    return sender(celery_app)
