"""Opt-in: the client against real LLM servers, which these tests start and stop.

scripts/llm-servers llamacpp && .venv/bin/python -m pytest -m llamacpp
scripts/llm-servers vllm && .venv/bin/python -m pytest -m vllm
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from benchmarks.llm import servers
from benchmarks.llm.servers import DROPS, Kind, Server


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each group runs where it is asked for by name."""
    for item in items:
        for kind in get_args(Kind):
            if item.get_closest_marker(kind) and kind not in (config.option.markexpr or ""):
                how = f"{servers.how_to(kind)} && .venv/bin/python -m pytest -m {kind}"
                item.add_marker(pytest.mark.skip(reason=f"opt-in: {how}"))


def need(kind: Kind) -> None:
    """Asked for by name, so it must be there."""
    if servers.installed(kind) is None:
        pytest.fail(f"{kind} is not installed: {servers.how_to(kind)}", pytrace=False)


@pytest.fixture(scope="session")
def llamacpp_server() -> Iterator[Server]:
    """With a template that keeps reasoning."""
    need("llamacpp")
    with servers.llamacpp() as server:
        yield server


@pytest.fixture(scope="session")
def llamacpp_dropping() -> Iterator[Server]:
    """With a template that drops reasoning given in a message."""
    need("llamacpp")
    with servers.llamacpp(template=DROPS) as server:
        yield server


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[Server]:
    """Its model emits whole words, and its template keeps reasoning."""
    need("vllm")
    with servers.vllm() as server:
        yield server


@pytest.fixture(scope="session")
def vllm_dropping() -> Iterator[Server]:
    """Its model emits parts of words, and its template drops reasoning given in a message."""
    need("vllm")
    with servers.vllm(model="pieces", template=DROPS) as server:
        yield server
