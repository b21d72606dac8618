"""Looking at requests that wait, without taking any: for whoever prepares what a device will need (`workers.builder`).

Not here: taking and leasing them (`specgen.scheduler.transport`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, cast

import redis

from specgen.scheduler.keys import Keys, script
from specgen.types import EvaluationRequest


class Waiting:
    """Reads only. Every method raises redis.RedisError while Redis is away."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys  # a client that answers str
        self._peek = client.register_script(script("peek"))

    def tags(self, queue: str, labels: Sequence[str], count: int) -> list[str]:
        """At most ``count`` tickets in the order in which devices with these labels would take them now."""
        return cast("list[str]", self._peek(args=self._keys.args(queue, count, *labels)))

    def request(self, tag: str) -> EvaluationRequest | None:
        """What a ticket asks for; None where it is gone. Raises ValueError for a message that is no request."""
        payload = cast("str | None", self._client.hget(self._key(tag), "payload"))
        return None if payload is None else _request_of(json.loads(payload))

    def wanted(self, tags: Sequence[str]) -> set[str]:
        """Those that somebody still waits for: queued or being evaluated, on any host."""
        with self._client.pipeline(transaction=False) as pipe:
            for tag in tags:
                pipe.exists(self._key(tag))
            return {tag for tag, there in zip(tags, pipe.execute(), strict=True) if there}

    def _key(self, tag: str) -> str:
        return f"{self._keys.prefix}:message:{tag}"


def _request_of(message: dict[str, Any]) -> EvaluationRequest:
    """From Celery's message (protocol 2): the body is [args, kwargs, embedded]."""
    body = message["body"]
    if message.get("properties", {}).get("body_encoding") == "base64":
        body = base64.b64decode(body)
    _, kwargs, _ = json.loads(body)
    return EvaluationRequest.model_validate(kwargs["request"])
