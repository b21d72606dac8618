"""What `specgen.Client` refuses before anything is written, and what it says where a service is away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from specgen.client import Client
from specgen.errors import EnvironmentLacking, PoolUnavailable, StoreUnavailable, UserError
from specgen.scheduler.keys import Keys, script
from specgen.scheduler.members import Membership
from specgen.settings import Settings
from specgen.store import migrate
from specgen.types import JobSpec, ProblemSpec

SPEC = JobSpec(problem=ProblemSpec(name="p", source="x"))


@pytest.fixture
def client(tmp_path: Path, redis_url: str) -> Iterator[Client]:
    database = f"sqlite:///{tmp_path / 'specgen.db'}"
    migrate(database)
    with contextlib.closing(Client(Settings(home=tmp_path, redis_url=redis_url, database_url=database))) as made:
        yield made


def device(client: redis.Redis, name: str, *labels: str) -> None:
    info = json.dumps({"backend": labels[0], "labels": labels, "version": "1"})
    client.eval(script("heartbeat"), 0, *Keys("specgen").args(name, info))


def test_a_label_that_no_device_has_is_refused_with_those_that_are_there(
    client: Client, redis_client: redis.Redis
) -> None:
    wanted = SPEC.model_copy(update={"device": "h200"})
    with pytest.raises(UserError, match=r"'h200' is here .labels: none"):
        client.submit(wanted)
    assert client.submit(SPEC)  # no device at all, and none asked for: the system may be starting
    device(redis_client, "w1", "cpu", "big")
    with pytest.raises(UserError, match=r"'h200' is here .labels: big, cpu"):
        client.submit(wanted)
    gpu = SPEC.model_copy(update={"problem": SPEC.problem.model_copy(update={"backend": "cuda"})})
    with pytest.raises(UserError, match="'cuda'"):
        client.submit(gpu)
    before = len(client.store.jobs())
    assert client.submit(wanted, wait_for_device=True)
    device(redis_client, "w2", "cuda", "h200")
    assert client.submit(wanted)
    assert len(client.store.jobs()) == before + 2  # nothing of the refused ones


def test_a_pool_of_another_version_is_refused_with_both(client: Client, redis_client: redis.Redis) -> None:
    Membership(redis_client, Keys("specgen"), "device-x", "device worker", version="9.9").join()
    with pytest.raises(EnvironmentLacking, match=r"specgen .* runs 9\.9"):
        client.submit(SPEC)
    assert client.store.jobs() == ()


def test_services_that_are_away_are_one_line(client: Client, tmp_path: Path) -> None:
    settings = client.settings.model_copy(update={"redis_url": f"unix://{tmp_path / 'nobody.sock'}?db=0"})
    with contextlib.closing(Client(settings)) as lonely:
        with pytest.raises(PoolUnavailable, match="cannot be reached"):
            lonely.submit(SPEC)
        assert lonely.store.jobs() == ()
        job = lonely.store.create_job(SPEC)
        assert lonely.cancel(job).terminal  # the database decides; the pool follows
    with pytest.raises(StoreUnavailable):
        Client(settings.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:1/none"}))


def test_a_submission_leaves_no_subscription_behind(client: Client, redis_client: redis.Redis) -> None:
    client.submit(SPEC)
    assert redis_client.pubsub_channels("celery-task-meta-*") == []
